"""What the commands write: records as lines, complaints, rates; and what Ctrl-C does to their input."""

import json
import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from headway.cli.display.terminal import complaints, throughput_text
from headway.cli.records.record_lines import record_json, text_line
from headway.records.record_types import ConsumerRecord, RecordSource
from headway.runtime.interrupt import Interrupt


class Message:
    """A message as the Kafka client hands it over."""

    def __init__(self, key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]] | None) -> None:
        self._key, self._value, self._headers = key, value, headers

    def topic(self) -> str:
        return "orders-2"

    def partition(self) -> int:
        return 4

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, Any]] | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def leader_epoch(self) -> int:
        return 0


def record(
    key: bytes | None = None, value: bytes | None = None, headers: list[tuple[str, Any]] | None = None
) -> ConsumerRecord:
    return ConsumerRecord(Message(key, value, headers), RecordSource(2, "-2", Message.key, Message.value), value)  # type: ignore[arg-type]


def test_a_line_of_text_is_the_value_as_it_is() -> None:
    assert text_line(record(b"k", b"\xff")) == b"\xff\n"
    assert text_line(record(b"k", None)) == b"\n"


def test_a_line_of_json_is_the_whole_record() -> None:
    line = record_json(record(b"k", "ä\n".encode(), [("trace", b"1"), ("trace", None)]))
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "orders",
        "level": 2,
        "partition": 4,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "key": "k",
        "value": "ä\n",
        "headers": [{"name": "trace", "value": "1"}, {"name": "trace", "value": None}],
    }


def test_bytes_that_are_not_utf_8_are_in_base64_under_a_name_that_says_so() -> None:
    found = json.loads(record_json(record(b"\xff", b"\xfe", [("h", b"\xfd")])))
    assert (found["key_base64"], found["value_base64"], found["headers"]) == (
        "/w==",
        "/g==",
        [{"name": "h", "value_base64": "/Q=="}],
    )
    assert "key" not in found


def test_a_complaint_is_said_once_and_the_first_ten_only(capsys: pytest.CaptureFixture[str]) -> None:
    with complaints() as complaint:
        for number in [1, 1, *range(1, 14)]:
            complaint.say(f"Complaint {number}.")
    said = capsys.readouterr().err.splitlines()
    assert said == [*(f"headway: Complaint {number}." for number in range(1, 11)), "headway: … and 3 more."]


def test_what_headway_logs_is_said_while_a_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("headway.somewhere")
    with complaints():
        log.warning("A commit %s.", "failed")
        log.info("nothing of importance")
    assert capsys.readouterr().err == "headway: A commit failed.\n"
    assert logging.getLogger("headway").handlers == []


def test_no_rate_is_said_of_next_to_no_time() -> None:
    assert throughput_text("delivered", [1], 10, 0.001) == "1 record delivered\n  level 0  1"
    assert throughput_text("delivered", [0, 0], 0, 5.0).startswith("0 records delivered\n")


@pytest.fixture(autouse=True)
def _pythons_own_ctrl_c() -> Iterator[None]:
    """A Spark session of other tests leaves a handler of its own behind."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_input() -> Iterator[int]:
    yield 1
    signal.raise_signal(signal.SIGINT)
    yield 2


def test_ctrl_c_ends_the_wait_for_input() -> None:
    with Interrupt() as interrupt:
        assert list(interrupt.read(interrupted_input())) == [1]
        assert interrupt.requested


def test_ctrl_c_during_the_work_on_an_item_ends_after_it() -> None:
    done = []
    with Interrupt() as interrupt:
        for item in interrupt.read([1, 2, 3]):
            signal.raise_signal(signal.SIGINT)
            done.append(item)
    assert done == [1]


def test_the_second_ctrl_c_interrupts_as_ever() -> None:
    with Interrupt():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_job_that_ignores_ctrl_c_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert not interrupt.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

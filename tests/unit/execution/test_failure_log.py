"""Failed attempts of a flood are added up in the log, and none is lost without a word."""

import logging
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.errors import FatalError
from headway.execution.dispatch import Dispatch
from headway.execution.failure_log import FailureLog
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

log = logging.getLogger("test_failure_log")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    class Lines(list[str]):
        def __iter__(self) -> Iterator[str]:
            return iter([record.getMessage() for record in caplog.records])

    with caplog.at_level(logging.WARNING):
        yield Lines()


def told(lines: list[str]) -> int:
    """Return how many failures these lines are about."""
    counts = [re.match(r"(\d+) more failures", line) for line in lines]
    return sum(int(count[1]) if count else 1 for count in counts)


def test_a_few_failures_are_told_each_by_itself(lines: list[str]) -> None:
    failures = FailureLog(log, logging.WARNING)
    for number in range(30):
        failures.log("orders", float(number), OSError(number), "record %d failed: %s", number)
        failures.log_totals(float(number))
    assert list(lines) == [f"record {number} failed: OSError({number})" for number in range(30)]


def test_a_flood_is_a_line_a_second_with_the_number_and_the_last_error(lines: list[str]) -> None:
    failures = FailureLog(log, logging.WARNING)
    for number in range(5000):
        now = number / 1000
        failures.log("orders", now, OSError(number), "record %d failed: %s", number)
        failures.log_totals(now)
    failures.end(5.0)
    assert len(list(lines)) <= 10 + 6
    assert told(list(lines)) == 5000
    *_, last = lines
    assert re.fullmatch(
        r"\d+ more failures of records of orders in .* s\. The last of them: record 4999 failed: OSError\(4999\)", last
    )


def test_a_flood_of_one_topic_hides_no_failure_of_another(lines: list[str]) -> None:
    failures = FailureLog(log, logging.WARNING)
    for _ in range(1000):
        failures.log("orders", 0.0, OSError(), "%s")
    failures.log("mail", 0.5, KeyError("mail"), "%s")
    *_, last = lines
    assert last == "KeyError('mail')"
    failures.log_totals(1.0)
    *_, last = lines
    assert last.startswith("990 more failures of records of orders")


def test_after_the_end_every_line_is_told(lines: list[str]) -> None:
    failures = FailureLog(log, logging.WARNING)
    failures.end(0.0)
    for _ in range(50):
        failures.log("orders", 0.0, OSError(), "%s")
    assert len(list(lines)) == 50


class OddError(Exception):
    """Has no text, however it is asked."""

    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


def test_attempts_that_fail_in_a_dispatch_are_all_told_when_it_ends(lines: list[str]) -> None:
    place = TopicPartition("orders", partition=0)
    engine, started, wake = Engine[Any](Ordering.UNORDERED), list[Any](), Wakeup()
    engine.assign(place, OffsetMap(0))
    dispatch = Dispatch(engine, Retries(fixed_backoff(0.0)), 10, wake)
    dispatch.begin(ExecutorStub(started.extend))
    records = [SimpleNamespace(offset=offset, raw_key=None) for offset in range(100)]
    engine.receive(place, records, time.monotonic())
    dispatch.feed()
    for _ in range(200):
        [attempt] = started.pop(0)
        if job := dispatch.complete((attempt,), OddError()):
            started.append(job)
    dispatch.abandon()
    assert len(list(lines)) <= 12
    assert told(list(lines)) == dispatch.metrics().failed == 200
    wake.close()


class EndlessError(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise SystemExit(1)


def test_each_place_is_told_with_its_traceback_once_in_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: BaseException, *, elsewhere: bool = False) -> BaseException:
        try:
            if elsewhere:
                raise error
            raise error
        except BaseException as raised:
            return raised

    failures = FailureLog(log, logging.WARNING)
    errors = [
        (0.0, fail(KeyError("a"))),
        (1.0, fail(KeyError("b"))),
        (2.0, fail(KeyError("c"), elsewhere=True)),
        (3.0, fail(ValueError("another kind"))),
        (4.0, fail(FatalError("on purpose"))),
        (5.0, OSError("never raised")),
        (6.0, fail(EndlessError())),
        (7.0, fail(TypeError("x" * 100_000))),
        (601.0, fail(KeyError("d"))),
    ]
    for now, error in errors:
        failures.log("orders", now, error, "failed: %s")
    assert [bool(line.exc_info) for line in caplog.records] == [True, False, True, True, *[False] * 4, True]
    assert "in fail\n    raise error\nKeyError: 'a'" in caplog.text

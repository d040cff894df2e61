"""`headway produce` and `headway consume` against Apache Kafka: nothing is lost, nothing comes twice."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from headway import cli

if TYPE_CHECKING:
    from headway.broker import LocalBroker

pytestmark = pytest.mark.kafka

# Longer than a join or a rebalance takes on a busy machine; only tests of silence wait so long.
SILENCE = "5"


@pytest.fixture(autouse=True)
def servers(headway_broker: "LocalBroker", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", headway_broker.bootstrap_servers)


@pytest.fixture
def orders(headway_topic: str) -> str:
    """A topic with three levels of one partition each."""
    headway("topics", "create", headway_topic, "--levels", "3")
    return headway_topic


def headway(*arguments: str, lines: bytes = b"") -> Result:
    return CliRunner().invoke(cli.headway, arguments, input=lines)


def produce(topic: str, lines: bytes, *options: str) -> Result:
    return headway("produce", topic, *options, lines=lines)


def consume(topic: str, *options: str, group: str = "readers") -> Result:
    return headway("consume", topic, "--group", f"{topic}-{group}", *options)


def consumed(topic: str, count: int, group: str = "readers") -> list[dict[str, Any]]:
    """The next records of a topic, exactly so many."""
    lines = consume(topic, "--max", str(count), "--format", "json-lines", group=group).stdout.splitlines()
    assert len(lines) == count
    return list(map(json.loads, lines))


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`headway` as a process of its own, that can be interrupted."""
    command = [sys.executable, "-c", "from headway.cli import main; main()", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_lines_expire_as_long_after_their_sending_as_they_are_told(orders: str) -> None:
    before = time.time()
    assert produce(orders, b"at once\n", "--expires", "10m").exit_code == 0
    after = time.time()
    [record] = consumed(orders, 1)
    [at] = [header["value"] for header in record["headers"] if header["name"] == "headway.expires"]
    assert (before + 600) * 1000 <= int(at) <= (after + 600) * 1000 + 1


def test_lines_of_text_arrive_at_the_level_given(orders: str) -> None:
    result = produce(orders, b"at once\nnow\n", "--level", "2", "--header", "source=shop")
    assert result.exit_code == 0
    assert result.stderr.startswith("2 records delivered")
    assert result.stderr.endswith("level 2  2\n  level 1  0\n  level 0  0\n")
    assert [(each["level"], each["offset"], each["value"]) for each in consumed(orders, 2)] == [
        (2, 0, "at once"),
        (2, 1, "now"),
    ]
    assert consumed(orders, 1, "others")[0]["headers"] == [{"name": "source", "value": "shop"}]


def test_json_lines_take_key_and_level_from_their_fields(orders: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"who": "ann", "urgency": 1}\n{"who": "bob"}\n')
    options = ("--format", "json-lines", "--key-field", "who", "--level-field", "urgency")
    assert produce(orders, b"", str(file), *options).exit_code == 0
    records = consumed(orders, 2)
    assert {(each["level"], each["key"], each["value"]) for each in records} == {
        (1, "ann", '{"who": "ann", "urgency": 1}'),
        (0, "bob", '{"who": "bob"}'),
    }


def test_any_bytes_come_out_as_they_went_in(orders: str, tmp_path: Path) -> None:
    lines = b"\xff\x00\n\n  spaces \n\xe2\x82\xac\n"
    produce(orders, lines)
    output = tmp_path / "output"
    assert consume(orders, "--max", "4", "--output", str(output)).exit_code == 0
    assert output.read_bytes() == lines


def test_a_bad_line_stops_at_its_number_and_what_came_before_is_delivered(orders: str) -> None:
    result = produce(orders, b"1\n2\nthree\n4\n", "--format", "json-lines")
    assert result.exit_code == 1
    assert "headway: stdin, line 3: it is not JSON (Expecting value at column 1). No later line" in result.stderr
    assert "2 records delivered" in result.stderr
    assert [each["value"] for each in consumed(orders, 2)] == ["1", "2"]


def test_bad_lines_can_be_left_out(orders: str) -> None:
    result = produce(orders, b"1\ntwo\n3\n", "--format", "json-lines", "--on-error", "skip")
    assert result.exit_code == 0
    assert "1 line left out" in result.stderr
    assert [each["value"] for each in consumed(orders, 2)] == ["1", "3"]


def test_a_record_that_is_not_delivered_is_named_by_its_line_and_the_exit_code_is_1(orders: str) -> None:
    too_large = b"x" * 2_000_000
    result = produce(orders, b"first\n" + too_large + b"\nlast\n", "--on-error", "skip")
    assert result.exit_code == 1
    assert "headway: stdin, line 2: " in result.stderr
    assert "Message size too large" in result.stderr
    assert "1 record not delivered" in result.stderr
    assert [each["value"] for each in consumed(orders, 2)] == ["first", "last"]


def test_a_delivery_that_fails_later_stops_the_reading(orders: str) -> None:
    # The client lets it pass, the broker does not.
    lines = b"x" * 2_000_000 + b"\n" + b"small\n" * 200_000
    result = produce(orders, lines, "-X", "message.max.bytes=5000000", "-X", "linger.ms=0")
    assert result.exit_code == 1
    assert "headway: stdin, line 1: " in result.stderr
    assert "200,000 records delivered" not in result.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--level", "3"], "The level 3 does not exist: with levels=3 it must be from 0 to 2."),
        (["--levels", "4"], "has 3 levels in Kafka, but --levels is 4"),
    ],
)
def test_a_level_that_there_is_not_is_refused_before_anything_is_sent(
    orders: str, options: list[str], sentence: str
) -> None:
    result = produce(orders, b"record\n", *options)
    assert result.exit_code == 1
    assert sentence in result.stderr


def test_fields_of_text_are_a_usage_error(orders: str) -> None:
    result = produce(orders, b"record\n", "--key-field", "who")
    assert result.exit_code == 2
    assert "Add --format json-lines." in result.stderr


@pytest.mark.slow
def test_a_group_goes_on_behind_what_it_wrote(orders: str) -> None:
    produce(orders, b"".join(b"%d\n" % number for number in range(50)), "--level", "1")
    parts = [consumed(orders, count) for count in (7, 3, 40)]
    assert [int(each["value"]) for part in parts for each in part] == list(range(50))
    assert consume(orders, "--timeout", SILENCE).stdout == ""


def test_a_group_can_start_over_at_the_beginning(orders: str) -> None:
    produce(orders, b"a\nb\n")
    assert consume(orders, "--max", "2").stdout == "a\nb\n"
    assert consume(orders, "--max", "2", "--from", "beginning").stdout == "a\nb\n"


@pytest.mark.slow
def test_a_group_can_start_at_the_end(orders: str) -> None:
    produce(orders, b"old\n")
    assert consume(orders, "--from", "end", "--timeout", SILENCE).stdout == ""
    with running("consume", orders, "--group", f"{orders}-readers") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"old\n"  # nothing was written, so nothing was committed
        process.send_signal(signal.SIGINT)


def test_the_highest_level_comes_first(orders: str) -> None:
    for level in range(3):
        produce(orders, b"".join(b"%d\n" % level for _ in range(20)), "--level", str(level))
    strict = consume(orders, "--max", "60", "--policy", "strict", "--format", "json-lines")
    assert strict.exit_code == 0
    by_level = consume(orders, "--max", "60", "--from", "beginning", "--distributor", "weighted:1,1,1")
    assert sorted(by_level.stdout.split()) == ["0"] * 20 + ["1"] * 20 + ["2"] * 20


def test_output_is_appended_so_that_an_earlier_run_is_not_lost(orders: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    produce(orders, b"a\nb\n")
    for _ in range(2):
        consume(orders, "--max", "1", "--output", str(output))
    assert output.read_bytes() == b"a\nb\n"


def test_an_output_that_cannot_be_written_is_one_sentence_and_commits_nothing(orders: str) -> None:
    produce(orders, b"record\n")
    result = consume(orders, "--output", "/dev/full", "--max", "1")
    assert result.exit_code == 1
    assert result.stderr.startswith("headway: /dev/full cannot be written: No space left on device.")
    assert consume(orders, "--max", "1").stdout == "record\n"


def test_ctrl_c_ends_a_consumer_at_once_and_commits_what_was_written(orders: str) -> None:
    produce(orders, b"first\n")
    with running("consume", orders, "--group", f"{orders}-readers") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.startswith(b"1 record written and committed")
    produce(orders, b"second\n")
    assert consume(orders, "--max", "1").stdout == "second\n"


def test_a_reader_that_goes_away_ends_a_consumer_quietly(orders: str) -> None:
    # More than a pipe holds, so that the consumer still has to write when its reader is gone.
    produce(orders, b"".join(b"%0100d\n" % number for number in range(5000)))
    with running("consume", orders, "--group", f"{orders}-readers") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert int(process.stdout.readline()) == 0
        process.stdout.close()
        stderr = process.stderr.read()
        assert process.wait(timeout=20) == 0
    assert b"written and committed" in stderr
    assert stderr.count(b"\n") == 4


@pytest.mark.slow
def test_ctrl_c_delivers_what_a_producer_has_read(orders: str) -> None:
    # The records would wait for a minute if nobody flushed them.
    with running("produce", orders, "--level", "1", "-X", "linger.ms=60000") as process:
        assert process.stdin is not None
        # More than a pipe holds: when it is written, some of it is read.
        process.stdin.write(b"".join(b"%0100d\n" % number for number in range(5000)))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    read = re.search(r"Ended by Ctrl-C after ([\d,]+) lines", stderr.decode())
    assert read is not None
    count = int(read[1].replace(",", ""))
    assert count > 0
    assert f"{read[1]} records delivered" in stderr.decode()
    assert [int(each["value"]) for each in consumed(orders, count)] == list(range(count))


@pytest.mark.slow
def test_a_second_consumer_goes_on_where_the_first_had_written(headway_topic: str) -> None:
    headway("topics", "create", headway_topic, "--levels", "1", "--partitions", "4")
    produce(headway_topic, b"".join(b"%d\n" % number for number in range(400)))
    options = ("-X", "heartbeat.interval.ms=100")
    with running("consume", headway_topic, "--group", f"{headway_topic}-readers", *options) as first:
        assert first.stdout is not None
        before = [int(first.stdout.readline()) for _ in range(400)]
        # Joining takes partitions from the first, which commits them when it lets go.
        with running("consume", headway_topic, "--group", f"{headway_topic}-readers", *options) as second:
            assert second.stderr is not None
            produce(headway_topic, b"".join(b"%d\n" % number for number in range(400, 500)))
            first.send_signal(signal.SIGINT)
            first_out, first_err = first.communicate(timeout=20)
            assert second.stdout is not None
            rest = [int(line) for line in first_out.split()]
            rest += [int(second.stdout.readline()) for _ in range(100 - len(rest))]
            second.send_signal(signal.SIGINT)
            left_over, _ = second.communicate(timeout=20)
    assert sorted(before) == list(range(400))
    assert sorted(rest) == list(range(400, 500))
    assert left_over == b""
    assert b"Traceback" not in first_err


@pytest.fixture
def payments(headway_topic: str) -> tuple[str, str]:
    """Two topics without levels, of one partition each."""
    names = f"{headway_topic}-payments", f"{headway_topic}-clicks"
    for name in names:
        headway("topics", "create", name)
    return names


def test_topics_without_levels_are_read_by_the_level_behind_their_names(payments: tuple[str, str]) -> None:
    high, low = payments
    sent = produce(low, b"c1\nc2\n")
    assert sent.stderr.startswith("2 records delivered")
    assert "level" not in sent.stderr
    both = f"{high}=2,{low}=0"
    options = ("--format", "json-lines", "--level-field", "level", "--on-error", "skip")
    result = produce(both, b'{"level": 2}\n{"level": 1}\n{}\n', *options)
    assert result.exit_code == 0
    assert "\n2 records delivered" in result.stderr
    assert result.stderr.endswith("\n1 line left out\n")
    assert "stdin, line 2: it is for level 1, which no topic has." in result.stderr

    given = (f"{high}=2", f"{low}=0", "--group", f"{high}-readers", "--max", "4", "--format", "json-lines")
    records = [json.loads(line) for line in headway("consume", *given).stdout.splitlines()]
    assert sorted((each["topic"], each["level"], each["value"]) for each in records) == [
        (low, 0, "c1"),
        (low, 0, "c2"),
        (low, 0, "{}"),
        (high, 2, '{"level": 2}'),
    ]


def test_several_topics_to_send_to_need_a_level_each(orders: str, headway_topic: str) -> None:
    headway("topics", "create", f"{headway_topic}-more", "--levels", "3")
    result = produce(f"{orders},{headway_topic}-more", b"x\n")
    assert (result.exit_code, "A line goes to one topic" in result.stderr) == (2, True)


def test_one_partition_is_read_from_an_offset_or_a_time_and_nothing_is_committed(
    orders: str, payments: tuple[str, str]
) -> None:
    produce(orders, b"".join(b"%d\n" % number for number in range(10)), "--level", "2")
    part = ("consume", orders, "--level", "2", "--partition", "0")
    result = headway(*part, "--offset", "7")
    assert (result.stdout, result.exit_code) == ("7\n8\n9\n", 0)
    assert result.stderr == (
        "3 records written, from offset 7 on; the partition holds offsets from 0 to before 10; nothing was committed\n"
    )
    assert headway(*part, "--offset", "1h", "--max", "1").stdout == "0\n"
    assert headway(*part, "--max", "2").stdout == "0\n1\n"
    assert headway(*part, "--offset", "2001-01-01T00:00:00Z", "--max", "1").stdout == "0\n"
    assert headway(*part, "--offset", "2101-01-01T00:00:00Z").stdout == ""
    [record] = headway(*part, "--offset", "9", "--format", "json-lines").stdout.splitlines()
    assert {"topic": orders, "level": 2, "offset": 9}.items() <= json.loads(record).items()
    produce(payments[0], b"paid\n")
    assert headway("consume", payments[0], "--partition", "0").stdout == "paid\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--partition", "0"), "has 3 levels. Choose one with --level"),
        (("--partition", "0", "--level", "3"), "has no level 3, only 0 to 2"),
        (("--partition", "1", "--level", "0"), "-0: the topic has 1 partition, counted from 0"),
        (("--partition", "0", "--level", "0", "--offset", "5"), "The offset 5 is not in partition 0 of"),
        (("--partition", "0", "--level", "0", "--offset", "soon"), "'soon' is not a time such as 2026-05-01"),
        (("--partition", "0", "--level", "0", "--group", "g"), "--group applies to reading as a group"),
        (("--partition", "0", "--level", "0", "--from", "end"), "--from applies to reading as a group"),
        (("--level", "0"), "--level and --offset apply to a single partition"),
        ((), "Missing option '--group'"),
    ],
)
def test_a_partition_that_is_not_there_is_a_sentence(orders: str, options: tuple[str, ...], sentence: str) -> None:
    result = headway("consume", orders, *options)
    assert result.exit_code != 0
    assert sentence in " ".join((result.stderr or str(result.exception)).split())

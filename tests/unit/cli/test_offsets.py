"""`headway offsets decode`, and what needs no Kafka of `headway offsets show`."""

import base64
import json
import struct

import pytest
from click.testing import CliRunner, Result

from headway import cli
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.core.offsets.trailer import Trailer, Tried

STREAMS = base64.b64encode(struct.pack(">bq", 2, 1_764_967_403_520)).decode()


def decode(text: str, *options: str, offset: int = 100, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(
        cli.headway, ["offsets", "decode", text, "--offset", str(offset), *options], input=stdin, env={"TZ": "UTC"}
    )


@pytest.mark.parametrize("arguments", [["offsets"], ["offsets", "show"], ["offsets", "decode"]])
def test_every_help_teaches_with_an_example(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.headway, [*arguments, "--help"])
    assert result.exit_code == 0
    assert f"headway {' '.join(arguments)} " in result.output.partition("Usage")[2].partition("\n")[2]


def test_a_map_is_drawn_with_what_is_done_and_what_is_not() -> None:
    assert decode("bAAFGgA=").stdout.splitlines() == [
        "bitset v1: offsets 100 to 104",
        "  ·█·██",
        "  █ done  ▓▒░ partly  · not done",
        "3 offsets done, the highest is 104.",
        "2 offsets not done: 100; 102.",
    ]


def test_failed_attempts_and_the_topic_s_id_are_told_with_the_map() -> None:
    trailer = Trailer(100, b"abcdef", {100: Tried(3, 1), 1_000: Tried(1)})
    text = encode(OffsetMap(100, (1, 1, 1, 2)), trailer)
    assert decode(text).stdout.splitlines()[-2:] == [
        "2 offsets failed before: 100 (3 attempts); 1,000 (1 attempt).",
        "Written for a topic whose id begins with YWJjZGVm.",
    ]
    described = json.loads(decode(text, "--json").stdout)
    assert described["topic_id_begins"] == "YWJjZGVm"
    assert described["failed"] == [
        {"offset": 100, "attempts": 3, "untried": 1},
        {"offset": 1_000, "attempts": 1, "untried": 0},
    ]


def test_attempts_are_told_without_a_map() -> None:
    text = encode(OffsetMap(100), Trailer(100, tried={100: Tried(3)}))
    assert decode(text).stdout.splitlines() == [
        "bitset v1: nothing is done above the committed offset.",
        "1 offset failed before: 100 (3 attempts).",
    ]


def test_a_text_beside_another_offset_is_refused_with_the_one_that_it_was_written_for() -> None:
    result = decode(encode(OffsetMap(100, (1, 1)), Trailer(100)), offset=97)
    assert result.exit_code == 1
    assert "written for offset 100, but the committed offset is 97" in result.stderr


def test_one_offset_that_is_not_done_of_many_can_be_seen() -> None:
    drawing = decode(encode(OffsetMap(100, (1, 59_999)))).stdout.splitlines()[1]
    assert drawing == "  ▓" + "█" * 59


def test_many_ranges_are_not_all_listed_but_for_programs() -> None:
    text = encode(OffsetMap(100, (2, 1) * 30))
    assert decode(text).stdout.splitlines()[-1].endswith("157 to 158; … and 10 ranges more.")
    ranges = json.loads(decode(text, "--json").stdout)["incomplete"]
    assert ranges == [{"start": start, "end": start + 2} for start in range(100, 190, 3)]


def test_json_says_what_the_text_says() -> None:
    assert json.loads(decode("bAAFGgA=", "--json").stdout) == {
        "offset": 100,
        "metadata": "bAAFGgA=",
        "encoding": "bitset v1",
        "done": 3,
        "not_done": 2,
        "highest_done": 104,
        "incomplete": [{"start": 100, "end": 101}, {"start": 102, "end": 103}],
    }


def test_text_can_come_from_stdin_with_the_space_around_it() -> None:
    assert decode("-", stdin=b" bAAFGgA=\n\n").stdout == decode("bAAFGgA=").stdout


def test_no_text_says_that_nothing_is_done() -> None:
    assert decode("").stdout == "none: nothing is done above the committed offset.\n"


def test_kafka_streams_metadata_is_recognised_and_its_time_shown() -> None:
    assert decode(STREAMS).stdout.startswith("Kafka Streams v2: 2025-12-05 ")
    assert json.loads(decode(STREAMS, "--json").stdout) == {
        "offset": 100,
        "metadata": STREAMS,
        "encoding": "Kafka Streams v2",
        "stream_time": 1_764_967_403_520,
    }


@pytest.mark.parametrize(("time", "shown"), [(-1, "no time yet"), (2**63 - 1, "9,223,372,036,854,775,807 ms")])
def test_a_time_that_is_none_is_no_error(time: int, shown: str) -> None:
    result = decode(base64.b64encode(struct.pack(">bq", 1, time)).decode())
    assert result.exit_code == 0
    assert f"Kafka Streams v1: {shown}." in result.stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bAAFGgA", "not Base64"),
        ("checkpoint 7", "not Base64"),
        ("aGFsbG8=", "starts with 0x68, which is not a known encoding"),
        ("bH//AA==", "claims 32767 offsets in 3 bytes"),
        ("\N{SNOWMAN}", "not Base64"),
        ("\udcff", "not Base64"),
    ],
)
def test_damaged_text_is_one_sentence_and_exit_code_1(text: str, reason: str) -> None:
    result = decode(text)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("headway: ")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_offset_is_required() -> None:
    result = CliRunner().invoke(cli.headway, ["offsets", "decode", "bAAFGgA="])
    assert result.exit_code == 2
    assert "--offset" in result.stderr

"""Lines of input, and the records that they are."""

import tracemalloc
from pathlib import Path

import pytest

from headway.cli.records.lines import Draft, JsonLines, LinePosition, LongLine, read_lines, size_of_files, text_lines


def parse(line: bytes, level_field: str | None = None, key_field: str | None = None) -> Draft | None:
    return JsonLines(0, 3, level_field, key_field)(line)


def test_a_line_of_text_is_the_value_without_its_end_whatever_its_bytes() -> None:
    parse_text = text_lines(1)
    assert parse_text(b" \xff\x00 \r\n") == Draft(b" \xff\x00 ", None, 1)
    assert parse_text(b"\n") == Draft(b"", None, 1)
    assert parse_text(b"the last one") == Draft(b"the last one", None, 1)


def test_json_is_sent_as_it_is_written() -> None:
    assert parse(b'{"b": 1,  "a": 2}\n') == Draft(b'{"b": 1,  "a": 2}', None, 0)
    assert parse(b"[1, 2]\n") == Draft(b"[1, 2]", None, 0)


def test_an_empty_line_between_json_is_no_record() -> None:
    assert parse(b"  \n") is None


@pytest.mark.parametrize(
    ("line", "key"),
    [(b'{"k": "\xc3\xa4"}', "ä".encode()), (b'{"k": 7}', b"7"), (b'{"k": [1, 2]}', b"[1,2]"), (b'{"k": null}', None)],
)
def test_the_key_is_the_text_of_its_field(line: bytes, key: bytes | None) -> None:
    assert parse(line, key_field="k") == Draft(line, key, 0)


def test_the_level_is_the_fields_and_the_default_without_one() -> None:
    by_urgency = JsonLines(1, 3, "urgency", None)
    drafts = [by_urgency(line) for line in (b'{"urgency": 2}', b'{"urgency": null}', b"{}")]
    assert [draft.level for draft in drafts if draft] == [2, 1, 1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "it is not JSON"),
        (b'{"k": "\xff"}', "it is not UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"[]", "it is an array, not a JSON object with fields"),
        (b'"text"', "it is a string"),
        (b"7", "it is a number"),
        (b"{}", "no field 'k' for the key"),
        (b'{"k": 1, "p": 3}', "its field 'p' is 3, but the levels are 0 to 2"),
        (b'{"k": 1, "p": -1}', "its field 'p' is -1"),
        (b'{"k": 1, "p": "high"}', "its field 'p' is \"high\""),
        (b'{"k": 1, "p": true}', "its field 'p' is true"),
        (b'{"k": 1, "p": 1.0}', "its field 'p' is 1.0"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_what_is_wrong(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("[", r"\[")):
        parse(line, "p", "k")


def test_lines_know_their_file_and_number(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a\nb\n")
    second.write_bytes(b"c")
    files = [str(first), str(second)]
    assert list(read_lines(files, 100)) == [
        (LinePosition(files[0], 1), b"a\n"),
        (LinePosition(files[0], 2), b"b\n"),
        (LinePosition(files[1], 1), b"c"),
    ]
    assert size_of_files(files) == 5
    assert str(LinePosition("-", 7)) == "stdin, line 7"


def test_the_size_of_what_is_no_file_is_not_known() -> None:
    assert size_of_files(["/dev/null"]) is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_line_that_is_too_long_is_passed_over_and_not_kept(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"12345" + (end or b"\n") + b"x" * 3_000_000 + b"\n123456" + end)
    lines = [line for _, line in read_lines([str(file)], 5)]
    assert lines == [b"12345" + (end or b"\n"), LongLine(3_000_001), LongLine(6 + len(end))]


def test_no_more_of_an_endless_line_is_in_memory_than_a_record(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with file.open("wb") as endless:
        endless.truncate(100_000_000)
    tracemalloc.start()
    try:
        [(_, line)] = read_lines([str(file)], 1_000_000)
        assert line == LongLine(100_000_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()

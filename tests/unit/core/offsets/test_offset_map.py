"""Offset maps against golden vectors, byte for byte, and against texts that are damaged or not ours."""

import base64
import json
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from headway.core.offsets.offset_map import (
    MAX_CHARACTERS,
    Commit,
    OffsetMap,
    canonical,
    commit_of,
    decode_map,
    encode,
    encoding_name,
    pressure,
)
from headway.errors import OffsetMapError

VECTORS = json.loads((Path(__file__).parents[3] / "conformance" / "offset_maps.json").read_text())
NAMES = {
    "bitset_v1": "bitset v1",
    "bitset_v2": "bitset v2",
    "run_length_v1": "run length v1",
    "run_length_v2": "run length v2",
    "bitset_v1_zstd": "bitset v1, zstd",
    "run_length_v1_zstd": "run length v1, zstd",
}
GOLDEN = [
    pytest.param(case, name, text, id=f"{case['name']}: {name}")
    for case in VECTORS["cases"]
    for name, text in case["encodings"].items()
]


def text_of(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def random_map(offset: int, runs: int) -> OffsetMap:
    """Runs of random lengths, which no encoding can make much smaller."""
    lengths = random.Random(runs)
    return OffsetMap(offset, tuple(lengths.randint(1, 200) for _ in range(2 * runs)))


@pytest.mark.parametrize(("case", "name", "text"), GOLDEN)
def test_what_java_wrote_is_read(case: dict[str, Any], name: str, text: str) -> None:
    offset_map = decode_map(text, case["base"])
    assert offset_map.end - 1 == case["highest"]
    assert [offset for run in offset_map.incomplete for offset in run] == case["incomplete"]
    assert encoding_name(text) == NAMES[name]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_we_write_one_of_the_smallest_that_java_could_write(case: dict[str, Any]) -> None:
    text = encode(decode_map(next(iter(case["encodings"].values())), case["base"]))
    assert text in case["encodings"].values()
    assert len(text) == min(map(len, case["encodings"].values()))


@pytest.mark.parametrize("text", ["", b"", "bgAA"])
def test_no_map_and_the_empty_map_say_that_nothing_above_is_complete(text: str | bytes) -> None:
    assert decode_map(text, 7) == OffsetMap(7)


def test_nothing_complete_above_the_offset_needs_no_text() -> None:
    assert commit_of(OffsetMap(7)) == Commit(7, "", pressed=False)


def test_metadata_may_come_as_the_bytes_that_the_broker_stores() -> None:
    assert decode_map(b"bAAFGgA=", 0) == decode_map("bAAFGgA=", 0)


def test_a_frame_is_written_without_the_size_of_its_content() -> None:
    payload = base64.b64decode(encode(OffsetMap(0, (1, 9) * 2000)))
    assert payload[:1] in (b"a", b"s", b"J", b"p")
    assert zstandard.frame_content_size(payload[1:]) == -1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bAAFGgA=\0", "not Base64"),
        (b"bAAFGgA=\0", "not Base64"),
        ("ü", "not Base64"),
        ("bAAF", "claims 5 offsets in 2 bytes"),
        ("bA==", "claims"),
        (text_of(b"o" + struct.pack(">i", 2**31 - 1) + bytes(9)), "claims 2147483647 offsets"),
        (text_of(b"l" + struct.pack(">h", -1) + bytes(9)), "claims -1 offsets"),
        (text_of(b"n" + struct.pack(">hh", 5, -3)), "negative run"),
        (text_of(b"n\x00\x01\x00"), "cut off"),
        (text_of(b"azzzz"), "zstd frame of the offset map is damaged"),
        (text_of(b"Lx"), "starts with 0x4c"),
        (text_of(b"H" + bytes(20)), "starts with 0x48"),
        (text_of(b"\x01" + struct.pack(">q", 1_700_000_000_000)), "Kafka Streams v1"),
        (text_of(b"\x02" + struct.pack(">q", -1) + b"\0\0\0\0"), "Kafka Streams v2"),
        (text_of(b"\x01\x00"), "starts with 0x01"),
    ],
)
def test_damaged_and_foreign_metadata_is_refused_in_a_sentence(text: str | bytes, sentence: str) -> None:
    with pytest.raises(OffsetMapError, match=sentence):
        decode_map(text, 0)


def test_a_map_that_reaches_beyond_the_log_end_is_of_another_log() -> None:
    assert decode_map("ZQAAAAEAAMNL", 5, log_end=50001).end == 50001
    with pytest.raises(OffsetMapError, match="reaches offset 50001, but the log ends at offset 50000"):
        decode_map("ZQAAAAEAAMNL", 5, log_end=50000)


def test_a_frame_that_unpacks_to_gigabytes_is_refused() -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**24))
    with pytest.raises(OffsetMapError, match="unpacks to more than 1048576 bytes"):
        decode_map(text_of(b"s" + bomb), 0)


def test_a_frame_that_claims_gigabytes_is_refused_before_it_is_unpacked() -> None:
    claim = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + b"\x01\x00\x00"
    with pytest.raises(OffsetMapError, match="unpacks to 1099511627776 bytes"):
        decode_map(text_of(b"s" + claim), 0)


def test_run_lengths_that_claim_the_whole_of_a_huge_log_are_two_numbers() -> None:
    text = text_of(b"e" + struct.pack(">ii", 2**31 - 1, 2**31 - 1))
    assert decode_map(text, 0).complete == [range(2**31 - 1, 2**32 - 2)]


def test_above_three_quarters_of_the_limit_a_commit_is_pressed_and_keeps_its_map() -> None:
    commits = [commit_of(random_map(5, runs)) for runs in range(800, 1400, 20)]
    kept = [commit for commit in commits if commit.metadata]
    assert any(commit.pressed for commit in kept)
    assert any(not commit.pressed for commit in kept)
    assert all(commit.pressed == (len(commit.metadata) > pressure(MAX_CHARACTERS)) for commit in kept)
    assert all(len(commit.metadata) <= MAX_CHARACTERS for commit in kept)


def test_above_the_limit_the_offset_is_committed_with_what_has_room_of_its_map() -> None:
    whole = random_map(5, 4000)
    commit = commit_of(whole)
    assert commit.pressed
    assert MAX_CHARACTERS / 2 < len(commit.metadata) <= MAX_CHARACTERS
    kept = decode_map(commit.metadata, 5)
    assert kept == commit.kept
    assert kept.runs == whole.runs[: len(kept.runs)]


def test_what_was_remembered_once_stays_remembered_whatever_else_has_no_room() -> None:
    whole = OffsetMap(5, (*random_map(5, 4000).runs, 1, 500))
    remembered = OffsetMap(0, (whole.end - 500, 500))
    assert whole.complete[-1] == remembered.complete[0]
    kept = commit_of(whole, 400, remembered).kept
    assert kept is not None
    assert kept.complete[-1] == remembered.complete[0]
    assert whole.complete[: len(kept.complete) - 1] == kept.complete[:-1]
    assert len(kept.complete) > 20


def test_without_room_for_a_map_the_offset_is_committed_alone() -> None:
    assert commit_of(random_map(5, 4000), 0) == Commit(5, "", pressed=True, kept=OffsetMap(5))
    assert commit_of(OffsetMap(5, (1, 20, 3, 9)), 0) == Commit(5, "", pressed=False, kept=OffsetMap(5))


def test_a_run_that_no_encoding_reaches_is_committed_without_a_map() -> None:
    assert commit_of(OffsetMap(5, (1, 2**31))) == Commit(5, "", pressed=True, kept=OffsetMap(5))


def test_a_large_sparse_map_fits_because_a_bitset_was_compressed() -> None:
    runs = tuple(run for i in range(700) for run in (1, 60 + i * 37 % 90))
    text = encode(OffsetMap(0, runs))
    assert len(text) < MAX_CHARACTERS
    assert decode_map(text, 0).runs == runs


def test_a_range_of_two_billion_with_few_runs_costs_as_little_as_a_short_one() -> None:
    started = time.thread_time()
    assert encode(OffsetMap(0, (1, 2**31 - 2))) == text_of(b"e" + struct.pack(">ii", 1, 2**31 - 2))
    assert time.thread_time() - started < 1  # building the bitset takes seconds


def test_runs_of_zero_merge_their_neighbours() -> None:
    assert canonical(0, [3, 0, 2, 5, 0, 0, 4]) == OffsetMap(0, (5, 5))
    assert canonical(0, [0, 5]) == OffsetMap(0, (0, 5))
    assert canonical(0, []) == OffsetMap(0)

"""Offset maps against an encoder that goes offset by offset, and against arbitrary bytes."""

import base64
import contextlib
import struct

import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.offsets.offset_map import OffsetMap, canonical, commit_of, decode_map, encode, encoding_name
from headway.errors import OffsetMapError

MAGIC = {"bitset v1": b"l", "bitset v2": b"o", "run length v1": b"n", "run length v2": b"e"}
TWIN = {b"l": b"a", b"o": b"s", b"n": b"J", b"e": b"p"}


def maps(max_run: int, max_runs: int) -> st.SearchStrategy[OffsetMap]:
    runs = st.lists(st.integers(1, max_run), max_size=max_runs)
    return st.builds(canonical, st.integers(0, 2**40), runs)


MAPS = st.one_of(maps(3, 20), maps(40, 600), maps(40_000, 8), maps(2**31 - 1, 4))
SMALL_MAPS = st.one_of(maps(3, 20), maps(40, 300), maps(40_000, 3))


def states(offset_map: OffsetMap) -> list[bool]:
    complete = {offset for run in offset_map.complete for offset in run}
    return [offset in complete for offset in range(offset_map.offset, offset_map.end)]


def bitset(states: list[bool], integer: str) -> bytes:
    bits = bytearray((len(states) + 7) // 8 + 1)
    for index, complete in enumerate(states):
        bits[index // 8] |= complete << index % 8
    return struct.pack(f">{integer}", len(states)) + bits


def run_lengths(states: list[bool], integer: str) -> bytes:
    runs, current = [0], False
    for complete in states:
        if complete != current:
            runs.append(0)
            current = complete
        runs[-1] += 1
    return b"".join(struct.pack(f">{integer}", run) for run in runs)


def naive_encodings(offset_map: OffsetMap) -> dict[str, bytes]:
    """All plain encodings that can hold the map, as payloads."""
    each, found = states(offset_map), {}
    for name, magic in MAGIC.items():
        encoder, integer = (bitset if "bitset" in name else run_lengths), ("h" if "v1" in name else "i")
        with contextlib.suppress(struct.error):
            found[name] = magic + encoder(each, integer)
    return found


def compressed(payload: bytes) -> bytes:
    frame = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return TWIN[payload[:1]] + frame.compress(payload[1:]) + frame.flush()


@given(MAPS)
def test_what_is_written_is_read(offset_map: OffsetMap) -> None:
    assert decode_map(encode(offset_map), offset_map.offset, offset_map.end) == offset_map


@given(SMALL_MAPS)
def test_every_encoding_is_read(offset_map: OffsetMap) -> None:
    for name, payload in naive_encodings(offset_map).items():
        for encoded, expected in ((payload, name), (compressed(payload), f"{name}, zstd")):
            text = base64.b64encode(encoded)
            assert decode_map(text, offset_map.offset) == offset_map
            assert encoding_name(text) == expected


@given(SMALL_MAPS)
@example(OffsetMap(0, (1, 1) * 400))
@example(OffsetMap(3, tuple(1 + 7919 * i * i % 89 for i in range(600))))
def test_the_smallest_encoding_is_written(offset_map: OffsetMap) -> None:
    if not offset_map.runs:
        assert encode(offset_map) == ""
        return
    payloads = list(naive_encodings(offset_map).values())
    if min(map(len, payloads)) > 200:
        payloads += [compressed(payload) for payload in payloads]
    written = base64.b64decode(encode(offset_map))
    assert written in payloads
    assert len(written) == min(map(len, payloads))


@given(SMALL_MAPS)
def test_complete_and_incomplete_are_the_whole_range(offset_map: OffsetMap) -> None:
    both = [offset for run in offset_map.complete + offset_map.incomplete for offset in run]
    assert sorted(both) == list(range(offset_map.offset, offset_map.end))


@given(MAPS)
def test_the_offset_is_committed_with_or_without_its_map(offset_map: OffsetMap) -> None:
    commit = commit_of(offset_map)
    assert commit.offset == offset_map.offset
    assert decode_map(commit.metadata, commit.offset) in (offset_map, OffsetMap(offset_map.offset))


def check_only_our_error(text: str | bytes) -> None:
    for log_end in (None, 1_000_000):
        with contextlib.suppress(OffsetMapError):
            offset_map = decode_map(text, 1000, log_end)
            assert offset_map == canonical(1000, offset_map.runs)
            assert log_end is None or offset_map.end <= log_end
    with contextlib.suppress(OffsetMapError):
        assert encoding_name(text)


@given(st.one_of(st.binary(), st.text()))
def test_arbitrary_text_raises_only_our_error(text: str | bytes) -> None:
    check_only_our_error(text)


@given(st.sampled_from(sorted(b"lonasJpeLH\x01\x02")), st.binary())
def test_arbitrary_bodies_raise_only_our_error(magic: int, body: bytes) -> None:
    check_only_our_error(base64.b64encode(bytes([magic]) + body))


@given(st.sampled_from(sorted(TWIN.values())), st.binary(), st.booleans())
def test_arbitrary_content_of_a_frame_raises_only_our_error(magic: bytes, body: bytes, size: bool) -> None:
    frame = zstandard.ZstdCompressor(write_content_size=size).compress(body)
    check_only_our_error(base64.b64encode(magic + frame))


@given(SMALL_MAPS, st.data())
def test_a_damaged_map_raises_only_our_error(offset_map: OffsetMap, data: st.DataObject) -> None:
    payload = data.draw(st.sampled_from(list(naive_encodings(offset_map).values())))
    damaged = bytearray(data.draw(st.sampled_from([payload, compressed(payload)])))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check_only_our_error(base64.b64encode(damaged[: data.draw(st.integers(1, len(damaged)))]))

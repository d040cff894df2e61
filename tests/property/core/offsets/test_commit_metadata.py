"""Commit metadata, what is done by it, and its drawing, against models that go offset by offset."""

import base64
import struct

from hypothesis import given
from hypothesis import strategies as st

from headway.cli.display.map_drawing import draw
from headway.core.offsets.commit_metadata import UNKNOWN, Done, read_metadata, with_done
from headway.core.offsets.offset_map import OffsetMap, canonical, encode

MAPS = st.builds(canonical, st.integers(0, 50), st.lists(st.integers(0, 12), max_size=12))


def done_by(offset_map: OffsetMap, below: int) -> set[int]:
    complete = {offset for run in offset_map.complete for offset in run}
    return {offset for offset in range(below) if offset < offset_map.offset or offset in complete}


@given(MAPS)
def test_what_is_done_is_what_is_below_the_offset_or_complete_in_the_map(offset_map: OffsetMap) -> None:
    done = Done(offset_map)
    below = offset_map.end + 5
    assert {offset for offset in range(below) if offset in done} == done_by(offset_map, below)


@given(MAPS, st.sets(st.integers(0, 220)), st.data())
def test_more_offsets_done_are_added_and_what_does_not_exist_holds_up_nothing(
    before: OffsetMap, existing: set[int], data: st.DataObject
) -> None:
    sent = data.draw(st.sets(st.sampled_from(sorted(existing)))) if existing else set()
    after = with_done(before, sorted(existing), sent)
    below = max([before.end, after.end, *existing]) + 1
    still_open = existing - done_by(before, below) - sent
    assert existing - done_by(after, below) == still_open
    # Nobody knows what comes behind what was read, but for what was done there already.
    read = max(existing, default=-1) + 1
    assert done_by(after, below + 50) - set(range(max(read, before.offset))) <= done_by(before, below + 50)
    assert after.offset == min(still_open, default=after.offset)


@given(st.binary(max_size=60), st.booleans(), st.integers(0, 2**40))
def test_no_metadata_is_an_error(content: bytes, as_base64: bool, offset: int) -> None:
    text = base64.b64encode(content) if as_base64 else content
    metadata = read_metadata(text, offset, offset + 1000)
    assert (metadata.encoding == UNKNOWN) == (metadata.reason is not None)
    assert (metadata.offset_map is None) == (metadata.reason is not None or metadata.stream_time is not None)


@given(MAPS)
def test_a_map_is_read_unless_it_reaches_beyond_the_log(offset_map: OffsetMap) -> None:
    text = encode(offset_map)
    assert read_metadata(text, offset_map.offset, offset_map.end).offset_map == offset_map
    if offset_map.runs:
        beyond = read_metadata(text, offset_map.offset, offset_map.end - 1)
        assert beyond.encoding == UNKNOWN
        assert f"the log ends at offset {offset_map.end - 1}" in str(beyond.reason)


@given(st.sampled_from([1, 2]), st.integers(-1, 2**62), st.binary(max_size=20))
def test_the_time_of_kafka_streams_is_read_whatever_follows_it(version: int, time: int, more: bytes) -> None:
    text = base64.b64encode(struct.pack(">bq", version, time) + more)
    metadata = read_metadata(text, 7)
    assert (metadata.encoding, metadata.stream_time) == (f"Kafka Streams v{version}", time)


@given(MAPS, st.integers(1, 30))
def test_a_drawing_has_a_character_for_each_part_and_never_says_more_than_is_so(
    offset_map: OffsetMap, width: int
) -> None:
    states = [offset in Done(offset_map) for offset in range(offset_map.offset, offset_map.end)]
    drawing = draw(offset_map, width)
    assert len(drawing) == min(width, len(states))
    for cell, character in enumerate(drawing):
        part = states[len(states) * cell // len(drawing) : len(states) * (cell + 1) // len(drawing)]
        assert (character == "█") == all(part)
        assert (character == "·") == (not any(part))
        assert character in "█·" or character == "░▒▓"[3 * sum(part) // len(part)]


def test_a_drawing_of_two_thousand_million_offsets_takes_no_time() -> None:
    assert draw(OffsetMap(0, (1, 2**31 - 2)), 5) == "▓████"

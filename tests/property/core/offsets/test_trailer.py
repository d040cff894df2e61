"""Trailers of commits: what is written is read, whatever is read raises only our error, and all of it fits."""

import base64
import contextlib
from collections.abc import Mapping

from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.offsets.offset_map import MAX_CHARACTERS, OffsetMap, canonical, commit_of, decode_with_trailer, encode
from headway.core.offsets.trailer import MOST_ATTEMPTS, Trailer, Tried, encode_trailer, pack_within, unpack
from headway.errors import OffsetMapError


@st.composite
def tries(draw: st.DrawFn) -> Tried:
    attempts = draw(st.integers(1, MOST_ATTEMPTS) | st.integers(1, 9))
    return Tried(attempts, draw(st.just(0) | st.integers(0, attempts)))


@st.composite
def trailers(draw: st.DrawFn, offset: int | None = None) -> Trailer:
    committed = draw(st.integers(0, 2**40)) if offset is None else offset
    distances = draw(st.lists(st.integers(0, 3000), max_size=40, unique=True))
    log = draw(st.just(b"") | st.binary(min_size=6, max_size=6))
    return Trailer(committed, log, {committed + distance: draw(tries()) for distance in distances})


def maps(max_run: int, max_runs: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, max_run), max_size=max_runs).map(lambda runs: canonical(0, runs).runs)


RUNS = st.one_of(maps(3, 20), maps(40, 600), maps(40_000, 8), maps(2**31 - 1, 4))


def most_important(tried: Mapping[int, Tried], count: int) -> dict[int, Tried]:
    return dict(sorted(tried.items(), key=lambda entry: (entry[1].untried - entry[1].attempts, entry[0]))[:count])


@given(trailers())
def test_what_is_packed_is_unpacked(trailer: Trailer) -> None:
    assert unpack(encode_trailer(trailer)) == trailer


@given(RUNS, trailers())
def test_a_map_and_its_trailer_are_read_back_from_one_text(runs: tuple[int, ...], trailer: Trailer) -> None:
    offset_map = OffsetMap(trailer.offset, runs)
    expected = trailer if runs or trailer.tried else None
    assert decode_with_trailer(encode(offset_map, trailer), trailer.offset) == (offset_map, expected)


@given(RUNS, trailers(), st.integers(0, 600) | st.just(MAX_CHARACTERS))
@example((1, 1), Trailer(0, tried={0: Tried(3)}), 12)
@example((), Trailer(0, tried={0: Tried(3)}), 8)
@example((), Trailer(0, tried={0: Tried(3)}), 4)
def test_a_commit_fits_and_loses_the_lowest_counts_first(runs: tuple[int, ...], trailer: Trailer, limit: int) -> None:
    commit = commit_of(OffsetMap(trailer.offset, runs), limit, trailer=trailer)
    assert len(commit.metadata) <= limit
    offset_map, read = decode_with_trailer(commit.metadata, trailer.offset, log=trailer.log)
    assert offset_map == (commit.kept or OffsetMap(trailer.offset, runs))
    kept = read.tried if read else {}
    assert kept == most_important(trailer.tried, len(kept))


@given(RUNS, trailers(), st.integers(0, 600) | st.just(MAX_CHARACTERS))
def test_attempts_cost_no_part_of_a_map(runs: tuple[int, ...], trailer: Trailer, limit: int) -> None:
    offset_map = OffsetMap(trailer.offset, runs)
    alone = commit_of(offset_map, limit, trailer=trailer._replace(tried={}))
    beside = commit_of(offset_map, limit, trailer=trailer)
    assert (beside.kept, beside.pressed) == (alone.kept, alone.pressed)


@given(trailers(), st.integers(0, 300))
def test_as_many_attempts_are_packed_as_fit(trailer: Trailer, size: int) -> None:
    packed = pack_within(trailer, size)
    kept = unpack(packed).tried
    assert not kept or len(packed) <= size
    more = most_important(trailer.tried, len(kept) + 1)
    assert kept == trailer.tried or len(encode_trailer(trailer._replace(tried=more))) > size


@given(RUNS.filter(bool), trailers(), st.integers(-3, 3).filter(bool))
def test_a_text_is_refused_beside_another_offset(runs: tuple[int, ...], trailer: Trailer, by: int) -> None:
    text = encode(OffsetMap(trailer.offset, runs), trailer)
    with contextlib.suppress(OffsetMapError):
        decode_with_trailer(text, trailer.offset + by)
        raise AssertionError("It was taken.")


@given(st.binary())
@example(b"h" + b"\xff" * 8 + b"\x7f" + b"\xff" * 8 + b"\x7f\x02")
@example(b"h\0\1\3\5")
def test_arbitrary_trailers_raise_only_our_error(packed: bytes) -> None:
    for start in (b"", b"h", b"Habcdef"):
        with contextlib.suppress(OffsetMapError):
            trailer = unpack(start + packed)
            assert len(trailer.tried) <= len(packed)
            assert all(0 <= each.untried <= each.attempts <= MOST_ATTEMPTS for each in trailer.tried.values())
            assert all(0 <= offset < 2**63 for offset in trailer.tried)


@given(RUNS, trailers(), st.data())
def test_a_damaged_or_cut_text_raises_only_our_error(
    runs: tuple[int, ...], trailer: Trailer, data: st.DataObject
) -> None:
    damaged = bytearray(base64.b64decode(encode(OffsetMap(trailer.offset, runs), trailer)) or b"l")
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    text = base64.b64encode(damaged[: data.draw(st.integers(1, len(damaged)))])
    for log_end in (None, trailer.offset + 100):
        with contextlib.suppress(OffsetMapError):
            offset_map, read = decode_with_trailer(text, trailer.offset, log_end, trailer.log)
            assert log_end is None or offset_map.end <= log_end
            assert log_end is None or all(offset < log_end for offset in (read.tried if read else ()))

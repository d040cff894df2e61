"""Brokers that take little beside an offset: what is published is what is remembered as done, and nothing else."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import (
    LEAST_WINDOW,
    MAX_CHARACTERS,
    Commit,
    OffsetMap,
    canonical,
    commit_of,
    decode_map,
    encode,
    pressure,
)
from headway.records.record_types import TopicPartition

ORDERS = TopicPartition("orders", partition=0)
RECORDS = 40


@dataclass(frozen=True)
class Record:
    """As the engine wants it."""

    offset: int
    raw_key: bytes | None = None


def is_done(commit: Commit, offset: int) -> bool:
    committed = decode_map(commit.metadata, commit.offset)
    return offset < committed.offset or any(offset in done for done in committed.complete)


steps = st.one_of(st.tuples(st.just("finish"), st.integers(0, RECORDS)), st.tuples(st.just("commit"), st.booleans()))


@given(st.lists(steps, max_size=120), st.integers(0, 24))
def test_outputs_wait_for_a_commit_that_remembers_their_record_and_none_is_forgotten(
    steps: list[tuple[str, int]], limit: int
) -> None:
    engine: Engine[Record] = Engine(Ordering.UNORDERED, most_bytes=40_000)
    engine.assign(ORDERS, OffsetMap(0))
    engine.receive(ORDERS, [Record(offset) for offset in range(RECORDS)], 0.0)
    running = engine.take(RECORDS, 0.0)
    stored, published, refused = Commit(0, "", pressed=False), list[int](), 0

    def commit(succeeds: bool) -> None:
        nonlocal stored, refused
        tick = engine.tick()
        if not tick.commits or not succeeds:
            return
        if (characters := len(tick.commits[ORDERS].metadata)) > limit:
            refused += 1
            engine.refuse_maps(characters)
            commit(succeeds)
            return
        stored = tick.commits[ORDERS]
        published.extend(tick.outputs)
        for _ in range(2):  # it may be said again
            engine.committed(tick)

    for step, number in [*steps, *[("finish", 0)] * RECORDS, ("commit", True)]:
        if step == "finish" and running:
            attempt = running.pop(number % len(running))
            engine.finish(attempt, 0.0, [attempt.offset])
        elif step == "commit":
            commit(bool(number))
        assert sorted(published) == [offset for offset in range(RECORDS) if is_done(stored, offset)]
    assert len(published) == RECORDS
    assert refused <= 12
    assert engine.bytes_held == [0]
    assert not engine.wants_commit()


batch_steps = st.one_of(
    st.tuples(st.just("finish"), st.integers(0, RECORDS)),
    st.tuples(st.just("commit"), st.integers(0, 1)),
    st.tuples(st.just("restart"), st.just(0)),
)
KEYS = [b"a", b"b", b"c", b"d", b"e"]


@given(
    st.lists(batch_steps, max_size=80),
    st.lists(st.sampled_from(KEYS), min_size=RECORDS, max_size=RECORDS),
    st.sampled_from(Ordering),
    st.integers(0, 24),
    st.integers(1, 5),
)
def test_a_batch_with_outputs_is_remembered_as_a_whole_or_not_at_all_whatever_room_a_map_has(
    steps: list[tuple[str, int]], keys: list[bytes], ordering: Ordering, limit: int, max_size: int
) -> None:
    records = [Record(offset, key) for offset, key in enumerate(keys)]
    stored, published = Commit(0, "", pressed=False), list[int]()

    def begin() -> Engine[Record]:
        engine: Engine[Record] = Engine(ordering, most_bytes=40_000)
        start = decode_map(stored.metadata, stored.offset)
        engine.assign(ORDERS, start)
        engine.receive(ORDERS, records[start.offset :], 0.0)
        return engine

    engine, running = begin(), []
    for step, number in [*steps, *[("finish", 0), ("commit", 1)] * RECORDS]:
        while batch := engine.take_batch(max_size, 0.0, of_one_partition=True):
            running.append(batch)
        if step == "finish" and running:
            batch = running.pop(number % len(running))
            assert engine.finish_together(batch, 0.0, [[attempt.offset for attempt in batch]])
        elif step == "restart":  # what is not committed is forgotten
            engine, running = begin(), []
        elif step == "commit":
            tick = engine.tick()
            while tick.commits and (characters := len(tick.commits[ORDERS].metadata)) > limit:
                engine.refuse_maps(characters)
                tick = engine.tick()
            if tick.commits and number:
                stored = tick.commits[ORDERS]
                published += [offset for output in tick.outputs for offset in output]
                engine.committed(tick)
        assert sorted(published) == [offset for offset in range(RECORDS) if is_done(stored, offset)]
    assert len(published) == RECORDS
    assert engine.bytes_held == [0]


def test_a_batch_of_a_lost_partition_is_not_done_and_frees_its_slot() -> None:
    engine: Engine[Record] = Engine(Ordering.UNORDERED)
    engine.assign(ORDERS, OffsetMap(0))
    engine.receive(ORDERS, [Record(offset) for offset in range(3)], 0.0)
    batch = engine.take_batch(3, 0.0, of_one_partition=True)
    engine.revoke([ORDERS])
    assert not engine.finish_together(batch, 0.0, ["an output"])
    assert engine.slots_taken == [0]
    assert engine.bytes_held == [0]
    assert engine.tick().outputs == []


runs = st.lists(st.integers(1, 90), min_size=2, max_size=600)


@given(runs, st.integers(0, MAX_CHARACTERS))
def test_a_map_that_is_shortened_fits_and_says_of_the_offsets_that_it_keeps_what_the_whole_one_does(
    runs: list[int], limit: int
) -> None:
    whole = canonical(7, runs)
    commit = commit_of(whole, limit)
    assert len(commit.metadata) <= limit
    kept = decode_map(commit.metadata, commit.offset)
    assert commit.kept in (None, kept)
    assert kept.complete == whole.complete[: len(kept.complete)]
    assert (commit.kept is None) == (kept == whole)
    assert commit.pressed == (len(encode(whole)) > pressure(limit) and whole.end - whole.offset >= LEAST_WINDOW)

"""Failed attempts belong to the record: commits carry their number from one owner of a partition to the next."""

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.engine.attempt import Attempt, Brought, FailedAttempts
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import Commit, OffsetMap, decode_with_trailer, encode
from headway.core.offsets.trailer import Trailer, Tried
from headway.errors import EarlierAttemptError
from headway.records.record_types import TopicPartition

ORDERS = TopicPartition("orders", partition=0)
LOG = b"abcdef"
NOW = 100.0


@dataclass(eq=False)
class Record:
    offset: int
    raw_key: bytes | None = None


def engine_of(offsets: Iterable[int], commit: Commit | None = None) -> Engine[Record]:
    """An engine that begins at a commit, and has received these records."""
    engine: Engine[Record] = Engine(Ordering.UNORDERED)
    offset_map, tried = read(commit) if commit else (OffsetMap(0), {})
    engine.assign(ORDERS, offset_map, log=LOG, tried=tried)
    engine.receive(ORDERS, [Record(offset) for offset in offsets], NOW)
    return engine


def read(commit: Commit) -> tuple[OffsetMap, dict[int, Tried]]:
    offset_map, trailer = decode_with_trailer(commit.metadata, commit.offset, log=LOG)
    return offset_map, dict(trailer.tried) if trailer else {}


def attempts_of(engine: Engine[Record]) -> dict[int, Attempt[Record]]:
    return {attempt.offset: attempt for attempt in engine.take(99, NOW)}


def fail(engine: Engine[Record], *attempts: Attempt[Record], untried: bool = False) -> None:
    for attempt in attempts:
        engine.retry(attempt, NOW, ValueError("no"), NOW, untried)


def finish(engine: Engine[Record], attempts: Iterable[Attempt[Record]]) -> None:
    for attempt in attempts:
        engine.finish(attempt, NOW)


def committed(engine: Engine[Record]) -> Commit:
    tick = engine.tick()
    engine.committed(tick)
    return tick.commits[ORDERS]


def test_a_successor_goes_on_with_the_attempt_after_the_last_that_failed() -> None:
    engine = engine_of(range(4))
    for attempt in range(3):
        attempts = attempts_of(engine)
        fail(engine, attempts.pop(0))
        if attempt == 0:
            finish(engine, attempts.values())
    successor = engine_of(range(4), committed(engine))
    attempts = attempts_of(successor)
    assert {offset: attempt.number for offset, attempt in attempts.items()} == {0: 4}
    failure = attempts[0].failure
    assert failure
    assert isinstance(failure.error, EarlierAttemptError)
    assert "only their number was kept" in str(failure.error)


def test_a_record_that_failed_is_committed_though_nothing_is_done_above_it() -> None:
    engine = engine_of([0])
    fail(engine, attempts_of(engine)[0])
    commit = committed(engine)
    assert read(commit) == (OffsetMap(0), {0: Tried(1)})
    assert not engine.is_uncommitted()


def test_attempts_that_do_not_count_are_committed_as_such() -> None:
    engine = engine_of([0])
    fail(engine, attempts_of(engine)[0])
    fail(engine, attempts_of(engine)[0], untried=True)
    assert read(committed(engine))[1] == {0: Tried(2, 1)}


def test_a_record_that_is_done_leaves_no_attempts_behind() -> None:
    engine = engine_of(range(3))
    attempts = attempts_of(engine)
    fail(engine, attempts[0], attempts[2])
    again = attempts_of(engine)
    finish(engine, [again[2]])
    assert read(committed(engine)) == (OffsetMap(0, (2, 1)), {0: Tried(1)})
    finish(engine, [again[0], attempts[1]])
    assert committed(engine) == Commit(3, "", pressed=False)


def test_without_a_failure_the_text_has_the_map_and_its_log_alone() -> None:
    engine = engine_of(range(3))
    engine.finish(attempts_of(engine)[1], NOW)
    assert committed(engine).metadata == encode(OffsetMap(0, (1, 1)), Trailer(0, LOG))
    engine = engine_of(range(3))
    finish(engine, attempts_of(engine).values())
    assert committed(engine).metadata == ""


def test_attempts_of_records_that_did_not_come_yet_stay_in_each_commit() -> None:
    engine = engine_of(range(4))
    attempts = attempts_of(engine)
    fail(engine, attempts[0], attempts[3])
    successor = engine_of(range(2), committed(engine))
    fail(successor, attempts_of(successor)[0])
    assert read(committed(successor))[1] == {0: Tried(2), 3: Tried(1)}
    successor.receive(ORDERS, [Record(2), Record(3)], NOW)
    assert attempts_of(successor)[3].number == 2


def test_attempts_of_records_that_are_gone_are_forgotten() -> None:
    engine = engine_of(range(4))
    attempts = attempts_of(engine)
    fail(engine, attempts[0], attempts[1], attempts[3])
    successor = engine_of([0, 3], committed(engine))
    fail(successor, attempts_of(successor)[0])
    assert read(committed(successor))[1] == {0: Tried(2), 3: Tried(1)}


def test_where_the_log_was_truncated_other_records_begin_with_attempt_1() -> None:
    engine = engine_of(range(4))
    fail(engine, attempts_of(engine)[2])
    engine.receive(ORDERS, [Record(2), Record(3)], NOW)
    assert attempts_of(engine)[2].number == 1


def test_of_a_record_that_brings_attempts_along_the_higher_number_counts() -> None:
    engine = engine_of([0])
    for _ in range(3):
        fail(engine, attempts_of(engine)[0])
    commit = committed(engine)
    error = ValueError("told by the header")
    for brought, number in ((2, 4), (7, 8)):
        successor = engine_of([], commit)
        record = Record(0)
        along = {record: Brought(FailedAttempts(error, NOW, NOW, brought, 0, error))}
        successor.receive(ORDERS, [record], NOW, brought=along)
        attempt = attempts_of(successor)[0]
        assert attempt.number == number
        assert attempt.failure
        assert attempt.failure.error is error


def test_an_engine_that_commits_nothing_keeps_no_attempts() -> None:
    engine: Engine[Record] = Engine(Ordering.UNORDERED, commits=False)
    engine.assign(ORDERS, OffsetMap(0), tried={0: Tried(3)})
    engine.receive(ORDERS, [Record(0)], NOW)
    fail(engine, attempts_of(engine)[0])
    assert engine.tried(ORDERS) == {}
    assert attempts_of(engine)[0].number == 2

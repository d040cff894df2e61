"""The engine, one promise at a time."""

import gc
import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.slot_policies import BurstSlots, StrictSlots
from headway.core.offsets.offset_map import MAX_CHARACTERS, Commit, OffsetMap, decode_map
from headway.core.retry import Again, GiveUp
from headway.records.record_types import TopicPartition
from tests.plain_python import plain_python

ORDERS = TopicPartition("orders", partition=0)
NOW = 100.0


@dataclass(eq=False)
class Record:
    offset: int
    raw_key: bytes | None = None


def records(offsets: Iterable[int], key: Callable[[int], bytes | None] = lambda offset: None) -> list[Record]:
    return [Record(offset, key(offset)) for offset in offsets]


def key_of(keys: int) -> Callable[[int], bytes]:
    return lambda offset: f"key {offset % keys}".encode()


def engine_of(*partitions: TopicPartition, **options: Any) -> Engine[Record]:
    options.setdefault("ordering", Ordering.UNORDERED)
    engine: Engine[Record] = Engine(levels=1 + max((each.level for each in partitions), default=0), **options)
    for partition in partitions:
        engine.assign(partition, OffsetMap(0))
    return engine


def finish_all(engine: Engine[Record], attempts: Iterable[Attempt[Record]]) -> None:
    for attempt in attempts:
        engine.finish(attempt, NOW)


def offsets(attempts: Iterable[Attempt[Record]]) -> list[int]:
    return [attempt.offset for attempt in attempts]


# Order


def test_a_lane_runs_one_at_a_time_and_goes_on_the_moment_its_work_is_done() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.KEY)
    engine.receive(ORDERS, records(range(4), key_of(2)), NOW)
    first, second = engine.take(9, NOW)
    assert offsets([first, second]) == [0, 1]
    assert engine.take(9, NOW) == []
    engine.finish(second, NOW)
    assert offsets(engine.take(9, NOW)) == [3]


def test_what_becomes_ready_runs_in_the_order_of_arrival_not_after_what_came_later() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.KEY)
    keys = [b"a", b"a", b"b", b"c"]
    engine.receive(ORDERS, records(range(4), keys.__getitem__), NOW)
    finish_all(engine, engine.take(1, NOW))
    assert offsets(engine.take(3, NOW)) == [1, 2, 3]


def test_a_retry_comes_first_in_its_lane_when_its_time_has_come() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.PARTITION)
    engine.receive(ORDERS, records(range(3)), NOW)
    (attempt,) = engine.take(9, NOW)
    engine.retry(attempt, NOW + 5, OSError(), NOW)
    assert engine.take(9, NOW + 4.9) == []
    assert engine.next_wake() == NOW + 5
    (again,) = engine.take(9, NOW + 5)
    assert again.failure is not None
    assert (again.offset, again.number, again.failure.first_at) == (0, 2, NOW)


def test_a_parked_record_of_a_batch_that_is_let_go_still_waits_for_the_record_before_it() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.KEY)
    engine.receive(ORDERS, records([0, 1], lambda offset: b"a"), 0.0)
    first, second = [engine.park(attempt, 0.0) for attempt in engine.take_batch(2, 0.0)]
    assert first
    assert second
    engine.unpark(second, 0.0)
    assert engine.take_batch(2, 0.0) == []
    engine.unpark(first, 0.0)
    assert offsets(engine.take_batch(2, 0.0)) == [0, 1]


def test_a_retry_drops_nothing_that_is_received_while_it_waits() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.KEY)
    engine.receive(ORDERS, records([0], key_of(1)), NOW)
    engine.retry(engine.take(1, NOW)[0], NOW + 5, OSError(), NOW)
    engine.receive(ORDERS, records([1, 2], key_of(1)), NOW)
    done = []
    while attempts := engine.take(1, NOW + 5):
        done += offsets(attempts)
        finish_all(engine, attempts)
    assert done == [0, 1, 2]


@pytest.mark.parametrize("other", [TopicPartition("refunds", partition=0), TopicPartition("orders", partition=1)])
def test_the_same_key_of_another_topic_or_partition_has_a_lane_of_its_own(other: TopicPartition) -> None:
    engine = engine_of(ORDERS, other, ordering=Ordering.KEY)
    for partition in (ORDERS, other):
        engine.receive(partition, records(range(2), key_of(1)), NOW)
    assert [(attempt.partition, attempt.offset) for attempt in engine.take(9, NOW)] == [(ORDERS, 0), (other, 0)]


def test_keys_are_compared_by_value() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.KEY)
    engine.receive(ORDERS, [Record(0, bytes([65, 66])), Record(1, bytes([65, 66]))], NOW)
    assert offsets(engine.take(9, NOW)) == [0]


def test_records_without_a_key_keep_their_order_unless_they_are_to_be_free() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.KEY)
    engine.receive(ORDERS, records(range(3)), NOW)
    assert offsets(engine.take(9, NOW)) == [0]


# Levels


HIGH, LOW = TopicPartition("orders", partition=0, level=1), ORDERS


def test_a_high_record_takes_the_next_free_slot_however_many_low_ones_wait() -> None:
    for slots in (None, StrictSlots(60.0)):
        engine = engine_of(LOW, HIGH, slots=slots)
        engine.receive(LOW, records(range(500)), NOW)
        finish_all(engine, engine.take(10, NOW))
        engine.receive(HIGH, records([0]), NOW)
        assert [attempt.level for attempt in engine.take(1, NOW)] == [1]


def test_fair_shares_slots_two_to_one_while_both_levels_have_work_and_lends_all_when_not() -> None:
    engine = engine_of(LOW, HIGH)
    engine.receive(LOW, records(range(500)), NOW)
    engine.receive(HIGH, records(range(100)), NOW)
    assert [sum(attempt.level == level for attempt in engine.take(30, NOW)) for level in (0,)] == [10]
    assert len(engine.take(500, NOW)) == 500


def test_strict_lets_a_low_record_through_that_has_waited_too_long() -> None:
    engine = engine_of(LOW, HIGH, slots=StrictSlots(5.0))
    engine.receive(LOW, records([0]), NOW)
    engine.receive(HIGH, records(range(9)), NOW + 4)
    assert [attempt.level for attempt in engine.take(2, NOW + 5)] == [1, 1]
    assert [attempt.level for attempt in engine.take(2, NOW + 5.1)] == [0, 1]


def test_capacity_burst_keeps_slots_free_for_the_high_level_until_it_was_idle_for_a_while() -> None:
    engine = engine_of(LOW, HIGH, slots=BurstSlots([3, 7], interval=0.1))
    engine.receive(LOW, records(range(100)), NOW)
    assert len(engine.take(10, NOW)) == 3
    wake = engine.next_wake()
    assert wake == NOW + 0.1
    for look in range(1, 4):
        attempts = engine.take(10, NOW + look / 10 + 0.001)
    assert len(attempts) == 7
    assert engine.slots_taken == [10, 0]
    assert len(engine.take(1, NOW + 1)) == 0
    assert engine.next_wake() is not None
    engine.revoke([LOW])
    assert engine.take(1, NOW + 1) == []
    assert engine.next_wake() is None


def test_a_low_flood_takes_no_room_of_the_high_level() -> None:
    engine = engine_of(LOW, HIGH, buffer=10, most_bytes=50, size_of=lambda record: 1)
    engine.receive(LOW, records(range(500)), NOW)
    assert engine.demand() == [0, 10]
    assert engine.paused() == {LOW}


# Flow


def test_records_behind_forty_stuck_lanes_do_not_stop_the_other_keys() -> None:
    """4,000 records with 160 keys, of which 40 never finish: the other 3,000 all do."""
    engine = engine_of(ORDERS, ordering=Ordering.KEY, buffer=100)
    stuck = {f"key {key}".encode() for key in range(40)}
    log, done = records(range(4000), key_of(160)), 0
    while True:
        if ORDERS not in engine.paused() and (wanted := engine.demand()[0]):
            engine.receive(ORDERS, log[:wanted], NOW)
            del log[:wanted]
        attempts = engine.take(100 - engine.slots_taken[0], NOW)
        if not attempts:
            break
        for attempt in attempts:
            if attempt.record.raw_key not in stuck:
                done += engine.finish(attempt, NOW)
    assert done == 3000
    assert engine.slots_taken == [40]


def test_stuck_lanes_hold_only_their_own_partition_and_memory_stays_within_the_room() -> None:
    parts = [TopicPartition("orders", partition=number) for number in range(8)]
    engine = engine_of(*parts, ordering=Ordering.KEY, buffer=20, most_bytes=400, size_of=lambda record: 1)
    ends, done = dict.fromkeys(parts, 0), dict.fromkeys(parts, 0)
    for _ in range(500):
        for partition in parts:
            wanted = min(10, engine.demand()[0])
            if partition not in engine.paused() and wanted:
                engine.receive(partition, records(range(ends[partition], ends[partition] + wanted), key_of(3)), NOW)
                ends[partition] += wanted
            assert engine.bytes_held[0] <= 400 + 20
        while attempts := engine.take(100, NOW):
            for attempt in attempts:
                # Of the first four partitions one key of three hangs.
                if attempt.partition.partition >= 4 or attempt.record.raw_key != b"key 0":
                    done[attempt.partition] += engine.finish(attempt, NOW)
    assert engine.paused() == set(parts[:4])
    assert all(done[partition] > 1000 for partition in parts[4:])


def test_a_flood_of_all_partitions_fills_the_room_and_one_of_some_leaves_the_others_their_parts() -> None:
    parts = [TopicPartition("orders", partition=number) for number in range(4)]
    for flooded, held in ((4, 400), (1, 250), (2, 300)):
        engine = engine_of(*parts, buffer=1000, most_bytes=400, size_of=lambda record: 1)
        ends = dict.fromkeys(parts[:flooded], 0)
        while not engine.paused().issuperset(ends):
            for partition in ends.keys() - engine.paused():
                engine.receive(partition, records(range(ends[partition], ends[partition] + 1)), NOW)
                ends[partition] += 1
        assert held <= engine.bytes_held[0] <= held + flooded


def test_a_held_partition_starts_again_by_itself() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.PARTITION, buffer=10, most_bytes=100, size_of=lambda record: 1)
    engine.receive(ORDERS, records(range(120)), NOW)
    assert engine.paused() == {ORDERS}
    assert engine.demand() == [0]
    for _ in range(60):
        finish_all(engine, engine.take(1, NOW))
    assert engine.paused() == set()
    assert engine.demand() == [10 - 1]


def test_failing_records_fill_the_room_and_no_more() -> None:
    engine = engine_of(ORDERS, buffer=10, most_bytes=100, size_of=lambda record: 1)
    end = 0
    for _ in range(100):
        if ORDERS not in engine.paused():
            engine.receive(ORDERS, records(range(end, end + engine.demand()[0])), NOW)
            end += 10
        for attempt in engine.take(10, NOW):
            engine.retry(attempt, NOW + 60, OSError(), NOW)
    assert engine.bytes_held[0] <= 110
    assert len(engine.take(500, NOW + 60)) == engine.work_remaining > 100


def test_large_records_are_asked_for_a_few_at_a_time() -> None:
    engine = engine_of(ORDERS, buffer=500, most_bytes=10_000_000, size_of=lambda record: 1_000_000)
    engine.receive(ORDERS, records([0]), NOW)
    assert engine.demand() == [9]


def test_few_records_are_asked_for_while_their_size_is_unknown() -> None:
    engine = engine_of(ORDERS, buffer=500, most_bytes=10_000_000)
    assert engine.demand() == [16]
    engine.receive(ORDERS, records(range(16)), NOW)
    assert engine.demand() == [500 - 16]


def test_nothing_is_asked_for_without_a_partition() -> None:
    assert engine_of().demand() == [0]


# Pressure


def pressed_engine(*others: TopicPartition) -> tuple[Engine[Record], list[Attempt[Record]]]:
    """One of 20 records hangs, at random, until the partition takes no more."""
    draw = random.Random(1)
    engine = engine_of(ORDERS, *others)
    hanging, end = [], 0
    while ORDERS not in engine.paused():
        engine.receive(ORDERS, records(range(end, end + 500)), NOW)
        end += 500
        assert end < 1_000_000
        for attempt in engine.take(500, NOW):
            if draw.random() < 0.05:
                hanging.append(attempt)
            else:
                engine.finish(attempt, NOW)
    return engine, hanging


def test_a_partition_with_too_large_a_map_takes_no_new_records_alone_and_starts_again_by_itself() -> None:
    other = TopicPartition("orders", partition=1)
    engine, hanging = pressed_engine(other)
    metadata = engine.tick().commits[ORDERS].metadata
    assert MAX_CHARACTERS * 0.7 < len(metadata) <= MAX_CHARACTERS
    assert engine.paused() == {ORDERS}
    assert engine.demand() == [1000]
    finish_all(engine, hanging[: len(hanging) // 2])
    assert engine.paused() == set()


def test_above_the_limit_the_offset_is_committed_with_what_has_room_of_its_map() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(100_000)), NOW)
    finish_all(engine, random.Random(1).sample(engine.take(100_000, NOW), 50_000))
    commit = engine.tick().commits[ORDERS]
    assert MAX_CHARACTERS * 0.5 < len(commit.metadata) <= MAX_CHARACTERS
    assert commit.offset == engine.committable(ORDERS)
    assert engine.paused() == {ORDERS}


def test_a_broker_that_takes_no_maps_holds_a_partition_until_its_gap_is_closed() -> None:
    engine = engine_of(ORDERS)
    engine.refuse_maps(1)
    engine.receive(ORDERS, records(range(3000)), NOW)
    first, *attempts = engine.take(3000, NOW)
    finish_all(engine, attempts[:900])
    assert engine.tick().commits[ORDERS][:2] == (0, "")
    assert not engine.paused()  # it may go on within the least window
    finish_all(engine, attempts[900:])
    assert engine.tick().commits[ORDERS][:2] == (0, "")
    assert engine.paused() == {ORDERS}
    engine.finish(first, NOW)
    assert engine.tick().commits[ORDERS][:2] == (3000, "")
    assert not engine.paused()


def test_outputs_that_wait_for_a_gap_to_be_closed_do_not_keep_what_closes_it_from_its_start() -> None:
    engine = engine_of(ORDERS, most_bytes=100_000, size_of_output=lambda output: 100_000)
    engine.refuse_maps(1)
    engine.receive(ORDERS, records(range(3)), NOW)
    first, second, third = engine.take(3, NOW)
    engine.retry(first, NOW, OSError(), NOW)
    engine.finish(second, NOW, ["2"])
    engine.finish(third, NOW, ["3"])
    assert engine.take(1, NOW) == []  # there is no space for more until these are committed
    tick = engine.tick()
    assert (tick.commits[ORDERS].offset, tick.outputs) == (0, [])
    engine.committed(tick)
    assert not engine.wants_commit()
    (first,) = engine.take(1, NOW)
    engine.finish(first, NOW, ["1"])
    assert engine.wants_commit()
    tick = engine.tick()
    assert (tick.commits[ORDERS].offset, tick.outputs) == (3, ["2", "3", "1"])
    engine.committed(tick)
    assert engine.bytes_held == [0]


def test_a_restart_with_a_full_map_reads_again_what_it_has_as_incomplete() -> None:
    engine, hanging = pressed_engine()
    commit = engine.tick().commits[ORDERS]
    restarted = engine_of()
    restarted.assign(ORDERS, decode_map(commit.metadata, commit.offset))
    end = commit.offset
    while end < hanging[-1].offset:
        assert restarted.paused() == set()
        restarted.receive(ORDERS, records(range(end, end + 500)), NOW)
        end += 500
    assert offsets(restarted.take(99_999, NOW))[: len(hanging)] == offsets(hanging)


# Epochs


def test_what_comes_from_before_a_rebalance_is_ignored_and_frees_its_slot() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(3)), NOW)
    old, other, _ = engine.take(3, NOW)
    engine.revoke([ORDERS])
    engine.assign(ORDERS, OffsetMap(0))
    engine.receive(ORDERS, records(range(3)), NOW)
    assert not engine.finish(old, NOW, ["an output"])
    assert not engine.fail(other, OSError(), GiveUp("no"), NOW)
    assert engine.slots_taken == [1]
    assert engine.committable(ORDERS) == 0
    assert engine.tick().outputs == []
    assert offsets(engine.take(9, NOW)) == [0, 1, 2]


def test_what_comes_late_from_an_earlier_attempt_is_ignored() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records([0]), NOW)
    (timed_out,) = engine.take(1, NOW)
    engine.retry(timed_out, NOW, TimeoutError(), NOW)
    (again,) = engine.take(1, NOW)
    assert not engine.finish(timed_out, NOW)
    assert engine.slots_taken == [1]
    assert engine.finish(again, NOW)
    assert not engine.finish(again, NOW)
    assert engine.slots_taken == [0]


def test_a_lost_partition_commits_nothing() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records([0]), NOW)
    finish_all(engine, engine.take(1, NOW))
    engine.revoke([ORDERS])
    assert engine.tick().commits == {}


def test_records_of_a_partition_that_is_not_ours_are_left_alone() -> None:
    engine = engine_of()
    engine.receive(ORDERS, records([0]), NOW)
    assert engine.take(1, NOW) == []


@pytest.mark.parametrize("batches", [[range(5), range(2, 5)], [[0, 1, 2, 3, 4, 2, 3, 4]]])
def test_offsets_that_go_back_begin_a_new_epoch_there(batches: Sequence[Sequence[int]]) -> None:
    engine = engine_of(ORDERS)
    for batch in batches:
        engine.receive(ORDERS, records(batch), NOW)
    attempts = engine.take(9, NOW)
    assert offsets(attempts) == [2, 3, 4]
    assert {attempt.epoch for attempt in attempts} == {2}
    assert engine.committable(ORDERS) == 2


def test_a_held_partition_is_still_held_where_its_offsets_go_back() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(4)), NOW)
    engine.hold([ORDERS])
    engine.receive(ORDERS, records(range(2)), NOW)
    assert engine.take(9, NOW) == []
    engine.release([ORDERS], NOW)
    assert offsets(engine.take(9, NOW)) == [0, 1]


def test_ten_thousand_records_of_one_lane_are_forgotten_at_once() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.PARTITION)
    engine.receive(ORDERS, records(range(10_000)), NOW)
    engine.revoke([ORDERS])
    assert (engine.ready, engine.bytes_held, engine.work_remaining) == ([0], [0], 0)


# Commits


def test_a_commit_is_due_until_kafka_has_acknowledged_it() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(3)), NOW)
    attempts = engine.take(3, NOW)
    engine.finish(attempts[1], NOW)
    sent = engine.tick()
    assert engine.tick().commits == sent.commits
    engine.finish(attempts[0], NOW)
    engine.committed(sent)
    assert engine.tick().commits[ORDERS].offset == 2
    engine.committed(engine.tick())
    assert engine.tick().commits == {}


def test_the_offset_and_the_map_are_of_one_moment_and_end_at_the_highest_success() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(10)), NOW)
    attempts = engine.take(10, NOW)
    finish_all(engine, [attempts[0], attempts[3]])
    commit = engine.tick().commits[ORDERS]
    assert decode_map(commit.metadata, commit.offset) == OffsetMap(1, (2, 1))


def test_missing_offsets_never_block() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records([3, 900, 2**40]), NOW)
    finish_all(engine, engine.take(9, NOW))
    assert engine.tick().commits[ORDERS].offset == 2**40 + 1
    engine.advance(ORDERS, 2**40 + 5)
    assert engine.tick().commits[ORDERS].offset == 2**40 + 5


def test_a_result_set_rides_whole_with_its_offset_and_again_until_it_is_committed() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(2)), NOW)
    first, second = engine.take(2, NOW)
    engine.finish(first, NOW, ["a", "b", "c"])
    tick = engine.tick()
    assert (tick.commits[ORDERS].offset, tick.outputs) == (1, ["a", "b", "c"])
    engine.finish(second, NOW, ["d"])
    tick = engine.tick()
    assert (tick.commits[ORDERS].offset, tick.outputs) == (2, ["a", "b", "c", "d"])
    engine.committed(tick)
    assert engine.tick().outputs == []


def test_what_is_done_while_a_tick_is_committed_rides_in_the_next_however_often_the_commit_is_told() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(2)), NOW)
    first, second = engine.take(2, NOW)
    engine.finish(first, NOW, ["a"])
    tick = engine.tick()
    engine.finish(second, NOW, ["b"])
    engine.committed(tick)
    engine.committed(tick)
    assert engine.tick().outputs == ["b"]


@plain_python
def test_an_interrupt_while_a_tick_is_taken_parts_no_offset_from_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    other = TopicPartition("orders", partition=1)
    engine = engine_of(ORDERS, other)
    for partition in (ORDERS, other):
        engine.receive(partition, records([0]), NOW)
    for attempt in engine.take(2, NOW):
        engine.finish(attempt, NOW, [attempt.partition])
    real = Assignment.commit_of

    def interrupt_the_second(assignment: Assignment[Any], snapshot: OffsetMap) -> Commit:
        if assignment.partition == other:
            raise KeyboardInterrupt
        return real(assignment, snapshot)

    monkeypatch.setattr(Assignment, "commit_of", interrupt_the_second)
    with pytest.raises(KeyboardInterrupt):
        engine.tick()
    monkeypatch.undo()
    tick = engine.tick()
    assert set(tick.commits) == set(tick.outputs) == {ORDERS, other}


def test_a_revoked_partition_can_be_committed_alone() -> None:
    other = TopicPartition("orders", partition=1)
    engine = engine_of(ORDERS, other)
    for partition in (ORDERS, other):
        engine.receive(partition, records([0]), NOW)
    for attempt in engine.take(2, NOW):
        engine.finish(attempt, NOW, [attempt.partition])
    assert engine.tick({other}).outputs == [other]


# Failures


def test_attempts_that_tried_nothing_are_counted_whatever_came_between() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records([0]), NOW)
    untried = []
    for is_untried in (True, False, True, False):
        (attempt,) = engine.take(1, NOW)
        untried.append((attempt.number, attempt.untried))
        engine.fail(attempt, OSError(), Again(NOW, untried=is_untried), NOW)
    (attempt,) = engine.take(1, NOW)
    untried.append((attempt.number, attempt.untried))
    assert untried == [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_a_dead_letter_keeps_its_lane_waiting_until_it_is_stored() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.PARTITION)
    engine.receive(ORDERS, records(range(2)), NOW)
    (attempt,) = engine.take(1, NOW)
    assert engine.fail(attempt, OSError(), Again(NOW + 1), NOW)
    (attempt,) = engine.take(1, NOW + 1)
    assert engine.fail(attempt, OSError(), GiveUp("attempt 2 of 2 failed"), NOW + 1)
    assert engine.take(1, NOW + 9) == []
    assert engine.committable(ORDERS) == 0
    engine.finish(attempt, NOW + 9, ["the letter"])
    assert engine.tick().outputs == ["the letter"]
    assert offsets(engine.take(1, NOW + 9)) == [1]


# Times of retries, batches


def test_a_record_does_not_run_before_the_time_of_its_retry() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.UNORDERED, retry_share=1.0)
    engine.receive(ORDERS, records(range(6)), NOW)
    for attempt in engine.take(9, NOW):
        engine.retry(attempt, NOW + attempt.offset % 3, OSError(), NOW)
    assert offsets(engine.take(9, NOW)) == [0, 3]
    assert engine.next_wake() == NOW + 1
    assert offsets(engine.take(9, NOW + 2)) == [1, 2, 4, 5]
    assert engine.next_wake() is None


def test_a_lane_that_is_free_keeps_to_the_time_of_its_next_record() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.PARTITION)
    engine.receive(ORDERS, records(range(2)), NOW)
    first, second = engine.take_batch(2, NOW)
    engine.retry(first, NOW, OSError(), NOW)
    engine.retry(second, NOW + 1, OSError(), NOW)
    finish_all(engine, engine.take(9, NOW))
    assert engine.take(9, NOW + 0.9) == []
    assert offsets(engine.take(9, NOW + 1)) == [1]


def test_of_a_batch_of_a_lane_only_what_failed_comes_back_and_before_the_rest() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.KEY)
    engine.receive(ORDERS, records(range(5), key_of(1)), NOW)
    batch = engine.take_batch(4, NOW)
    assert offsets(batch) == [0, 1, 2, 3]
    engine.retry(batch[3], NOW, OSError(), NOW)
    engine.finish(batch[0], NOW)
    engine.retry(batch[1], NOW, OSError(), NOW)
    assert engine.take(1, NOW) == []
    engine.finish(batch[2], NOW)
    batch = engine.take_batch(4, NOW)
    assert [(attempt.offset, attempt.number) for attempt in batch] == [(1, 2), (3, 2), (4, 1)]


def test_a_batch_without_order_takes_whatever_is_ready() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(7)), NOW)
    assert [offsets(engine.take_batch(5, NOW)) for _ in range(3)] == [[0, 1, 2, 3, 4], [5, 6], []]


@pytest.mark.parametrize("ordering", [Ordering.UNORDERED, Ordering.KEY])
def test_under_capacity_burst_a_share_is_of_batches_whatever_their_size(ordering: Ordering) -> None:
    engine = engine_of(LOW, HIGH, ordering=ordering, slots=BurstSlots([2, 3]))
    for level in (LOW, HIGH):
        engine.receive(level, records(range(100), key_of(4)), NOW)
    batches = [engine.take_batch(5, NOW) for _ in range(6)]
    assert [batch[0].level for batch in batches if batch] == [1, 1, 1, 0, 0]
    assert engine.slots_taken == [2, 3]
    first, *others = batches[0]
    finish_all(engine, others)
    assert engine.take_batch(5, NOW) == []
    engine.retry(first, NOW + 9, OSError(), NOW)
    assert [attempt.level for attempt in engine.take_batch(5, NOW)] == [1] * 5


def test_records_without_a_key_can_run_at_the_same_time_beside_lanes_of_keys() -> None:
    engine = engine_of(ORDERS, ordering=Ordering.KEY_IF_ANY)
    engine.receive(ORDERS, records(range(6), lambda offset: None if offset % 2 else b"even"), NOW)
    assert offsets(engine.take(9, NOW)) == [0, 1, 3, 5]


# Memory


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is freed is freed because nobody has it any more."""
    gc.disable()
    yield
    gc.enable()


class Failed(Exception):  # noqa: N818
    """An error that can be watched."""


@pytest.mark.usefixtures("without_collector")
def test_a_record_that_fails_again_and_again_keeps_its_first_and_its_last_error_and_no_other() -> None:
    engine, errors = engine_of(ORDERS, ordering=Ordering.KEY), weakref.WeakSet[Failed]()
    engine.receive(ORDERS, records([0]), NOW)

    def fail() -> None:
        [attempt] = engine.take(1, NOW)  # which the error's frame keeps
        try:
            try:
                raise Failed
            except Failed as cause:
                errors.add(cause)
                raise Failed from cause
        except Failed as error:
            errors.add(error)
            engine.retry(attempt, NOW, error, NOW)

    for _ in range(20):
        fail()
    assert len(errors) == 4


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("ordering", [Ordering.KEY, Ordering.UNORDERED])
@pytest.mark.parametrize("linger", [0.0, 60.0])
def test_records_of_batches_that_are_done_are_not_kept(ordering: Ordering, linger: float) -> None:
    engine, alive = engine_of(ORDERS, ordering=ordering), weakref.WeakSet[Record]()
    engine.let_batches_fill(10, linger)
    for number in range(50):
        came = records(range(100 * number, 100 * number + 100), key_of(10))
        alive.update(came)
        engine.receive(ORDERS, came, NOW)
        del came
        while batch := engine.take_batch(10, NOW):
            finish_all(engine, batch)
            del batch
        engine.committed(engine.tick())
    assert engine.work_remaining == 0
    assert len(alive) < 1_500  # of 5,000


def test_strict_gives_the_overdue_one_slot_of_four_so_that_high_never_waits_for_low() -> None:
    engine = engine_of(LOW, HIGH, slots=StrictSlots(5.0))
    engine.receive(LOW, records(range(100)), NOW)
    engine.receive(HIGH, records(range(100)), NOW + 10)
    assert [attempt.level for attempt in engine.take(12, NOW + 10)] == [0, 1, 1, 1] * 3


def test_a_batch_that_was_reported_with_outputs_counts_once_however_often_it_is_reported() -> None:
    engine = engine_of(ORDERS)
    engine.receive(ORDERS, records(range(4)), NOW)
    batch = engine.take_batch(2, NOW)
    for attempt in batch:
        engine.retry(attempt, NOW + 5, TimeoutError(), NOW)
    assert not engine.finish_together(batch, NOW, ["too late"])
    assert engine.tick().outputs == []
    rest = engine.take_batch(2, NOW)
    assert engine.finish_together(rest, NOW, ["in time"])
    assert not engine.finish_together(rest, NOW, ["once more"])
    assert engine.tick().outputs == ["in time"]
    assert offsets(engine.take_batch(4, NOW + 5)) == [0, 1]


def test_a_partition_that_was_moved_is_committed_at_its_new_place_though_nothing_is_done() -> None:
    engine: Engine[Any] = Engine(Ordering.UNORDERED)
    partition = TopicPartition("orders", partition=0)
    engine.assign(partition, OffsetMap(7), moved=True)
    tick = engine.tick()
    assert {each: commit.offset for each, commit in tick.commits.items()} == {partition: 7}
    engine.committed(tick)
    assert not engine.tick().commits

import tracemalloc
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from headway.core.levels.capacity import weighted_shares
from headway.core.producer.accumulator import Accumulator, Limits
from headway.core.producer.queues import NOTHING, Queue, TopicQueues
from headway.core.producer.turn_policies import FairTurns, StrictTurns, make_turn_policy
from headway.errors import ConfigError

CREDIT = 256 * 1024


@dataclass(eq=False, slots=True)
class Record:
    size: int = 1_000
    since: float = 0.0
    queue: Any = field(default=None, repr=False)


def with_topic(
    limits: Limits = Limits(),  # noqa: B008 - immutable
    partitions: int = 4,
) -> tuple[Accumulator[Record], TopicQueues[Record]]:
    accumulator: Accumulator[Record] = Accumulator(1, FairTurns([1]), limits)
    topic = accumulator.topic("orders-0", 0)
    accumulator.learn(topic, partitions, range(partitions))
    return accumulator, topic


def report(accumulator: Accumulator[Record], records: list[Record]) -> None:
    for record in records:
        returned(record.queue, record.size)
    accumulator.settle(0.0)


def returned(queue: Queue[Record], size: int) -> None:
    if not queue.returned:
        queue.reported.append(queue)
    queue.returned += size


def test_a_trickle_without_keys_goes_to_one_partition_until_it_is_a_batch() -> None:
    accumulator, topic = with_topic(partitions=125)
    went: list[int | None] = []
    for _ in range(1_000):
        accumulator.put(topic.undesignated, Record(655))
        [batch] = accumulator.drain(1 << 20, 0.0)
        went.append(batch.queue.partition)
        report(accumulator, batch.records)
    changes = sum(one != other for one, other in pairwise(went))
    assert changes == len(set(went)) - 1 == 9  # 64 KiB hold 101 records of 655 bytes


def test_the_choice_of_the_next_partition_looks_at_few_partitions_however_many_there_are() -> None:
    accumulator, topic = with_topic(partitions=2_000)
    went: set[int] = set()
    for number in range(1, 11):
        accumulator.put(topic.undesignated, Record(100_000))
        [batch] = accumulator.drain(1 << 20, 0.0)
        went.add(batch.queue.partition)
        assert len(topic.partitions) <= 16 + number  # the queue of a partition is made when it is first looked at
    assert len(went) == 10


def test_the_next_batch_goes_to_the_partition_with_most_room() -> None:
    accumulator, topic = with_topic()
    for partition, count in enumerate((5, 3, 1, 2)):
        for _ in range(count):
            accumulator.put(topic.queue(partition), Record())
    accumulator.put(topic.undesignated, Record())
    assert accumulator.drain(1 << 20, 0.0)[-1].queue.partition == 2


def test_a_full_window_holds_up_only_its_own_partition() -> None:
    accumulator, topic = with_topic(Limits(window=3_000))
    for partition in (0, 0, 0, 0, 0, 1):
        accumulator.put(topic.queue(partition), Record())
    first = accumulator.drain(1 << 20, 0.0)
    assert sorted((batch.queue.partition, len(batch.records)) for batch in first) == [(0, 3), (1, 1)]
    assert accumulator.drain(1 << 20, 0.0) == []
    report(accumulator, [record for batch in first if batch.queue.partition == 0 for record in batch.records])
    assert [len(batch.records) for batch in accumulator.drain(1 << 20, 0.0)] == [2]


def test_records_without_a_partition_avoid_one_without_a_leader_and_one_that_is_full() -> None:
    accumulator, topic = with_topic(Limits(window=2_000))
    accumulator.learn(topic, 4, {1, 3})
    for _ in range(9):
        accumulator.put(topic.undesignated, Record())
    drained = accumulator.drain(1 << 20, 0.0)
    assert {batch.queue.partition for batch in drained} == {1, 3}
    assert sum(len(batch.records) for batch in drained) == 4
    assert accumulator.drain(1 << 20, 0.0) == []
    report(accumulator, drained[0].records)
    assert accumulator.drain(1 << 20, 0.0)[0].queue is drained[0].queue


def test_a_partition_that_lost_its_leader_keeps_its_records_and_sends_them_when_it_has_one() -> None:
    accumulator, topic = with_topic()
    record = Record()
    accumulator.put(topic.queue(2), record)
    accumulator.learn(topic, 4, {0, 1, 3})
    assert accumulator.drain(1 << 20, 0.0) == []
    accumulator.learn(topic, 4, range(4))
    [batch] = accumulator.drain(1 << 20, 0.0)
    assert batch.records == [record]


def test_a_partition_that_turns_out_not_to_exist_gives_its_records_back() -> None:
    accumulator: Accumulator[Record] = Accumulator(1, FairTurns([1]))
    topic = accumulator.topic("orders-0", 0)
    record = Record()
    accumulator.put(topic.queue(9), record)
    assert accumulator.drain(1 << 20, 0.0) == []
    assert accumulator.learn(topic, 4, range(4)) == [record]
    assert accumulator.used == 0


def test_keyed_records_wait_behind_those_that_are_not_sorted_yet() -> None:
    accumulator: Accumulator[Record] = Accumulator(1, FairTurns([1]))
    topic = accumulator.topic("orders-0", 0)
    first, second = Record(), Record()
    accumulator.put(topic.raw, first, raw=True)
    assert accumulator.take_raw(10) == []  # nobody knows how many partitions there are
    accumulator.learn(topic, 4, range(4))
    assert accumulator.take_raw(10) == [first]
    assert topic.has_raw
    accumulator.put(topic.queue(1), second, raw=topic.has_raw)
    assert accumulator.take_raw(10) == [second]
    accumulator.sort(first, 1, 1_000)
    accumulator.sort(second, 1, 1_000)
    [batch] = accumulator.drain(1 << 20, 0.0)
    assert batch.records == [first, second]


def test_a_record_that_fits_only_an_empty_accumulator_is_taken_by_one() -> None:
    accumulator, topic = with_topic(Limits(memory=1_000))
    assert accumulator.put(topic.queue(0), Record(1_000))
    assert not accumulator.put(topic.queue(1), Record(1))
    assert not with_topic(Limits(memory=1_000))[0].put(topic.queue(0), Record(1_001))


def test_a_level_that_was_idle_has_saved_nothing_up() -> None:
    turns = FairTurns([1, 1])
    for _ in range(100):
        assert turns.pick([0.0, None], 0.0) == 0
        turns.charge(0, 1_000)
    picks = []
    for _ in range(4):
        level = turns.pick([0.0, 0.0], 0.0)
        assert level is not None
        picks.append(level)
        turns.charge(level, 1_000)
    assert picks.count(1) <= 3  # the turn that is under way, then half of them


def test_a_policy_is_fair_or_strict() -> None:
    assert isinstance(make_turn_policy("fair", weighted_shares(1, 3), 2, max_wait=5.0), FairTurns)
    assert isinstance(make_turn_policy("strict", None, 2, max_wait=5.0), StrictTurns)
    with pytest.raises(ConfigError, match="takes no distributor"):
        make_turn_policy("strict", weighted_shares(1, 3), 2, max_wait=5.0)
    with pytest.raises(ConfigError, match="'capacity_burst' is not one of fair and strict"):
        make_turn_policy("capacity_burst", None, 2, max_wait=5.0)


def test_what_waited_too_long_is_given_back_and_the_rest_goes_on() -> None:
    accumulator, topic = with_topic(Limits(patience=5.0))
    late, in_time = Record(since=0.0), Record(since=4.0)
    accumulator.put(topic.queue(0), late)
    accumulator.put(topic.queue(1), Record(since=0.0))
    accumulator.put(topic.queue(1), in_time)
    assert len(accumulator.expired(accumulator.next_expiry() + 6.0)) == 2
    assert [batch.records for batch in accumulator.drain(1 << 20, 6.0)] == [[in_time]]
    assert accumulator.next_expiry() <= 9.0


def test_nothing_too_old_is_handed_over_even_if_nobody_asked_for_the_expired() -> None:
    accumulator, topic = with_topic(Limits(patience=5.0))
    late = Record(since=0.0)
    accumulator.put(topic.queue(0), late)
    assert accumulator.drain(1 << 20, 6.0) == []
    assert accumulator.expired(6.0) == [late]


def test_a_record_that_was_being_sorted_while_the_expired_were_collected_expires_in_time() -> None:
    accumulator, topic = with_topic(Limits(patience=5.0))
    record = Record(since=0.0)
    accumulator.put(topic.raw, record, raw=True)
    accumulator.take_raw(10)
    assert accumulator.expired(4.0) == []
    accumulator.sort(record, 1, 1_000)
    assert accumulator.next_expiry() <= 5.0
    assert accumulator.expired(6.0) == [record]


def hand_over(accumulator: Accumulator[Record], queue: Queue[Record], size: int) -> bool:
    """As the sender does it."""
    if queue.credit < size and not accumulator.admit(queue, size, 0.0):
        return False
    queue.credit -= size
    return True


def test_records_that_overtake_nobody_are_handed_over_at_once_on_credit() -> None:
    accumulator, topic = with_topic()
    assert hand_over(accumulator, topic.unplaced, 1_000)
    assert (topic.unplaced.credit, topic.unplaced.used) == (CREDIT - 1_000, CREDIT)
    assert hand_over(accumulator, topic.unplaced, 1_000)
    assert topic.unplaced.used == CREDIT


def test_an_idle_queue_holds_no_credit() -> None:
    accumulator, topic = with_topic()
    for _ in range(2):
        assert hand_over(accumulator, topic.queue(1), 1_000)
    returned(topic.queue(1), 1_000)
    accumulator.settle(0.0)
    assert topic.queue(1).credit
    returned(topic.queue(1), 1_000)
    accumulator.settle(0.0)
    assert (topic.queue(1).credit, accumulator.used) == (0, 0)


def test_nobody_is_handed_over_past_one_that_waits() -> None:
    accumulator, topic = with_topic()
    for queue in (topic.unplaced, topic.queue(1), topic.queue(2)):
        assert hand_over(accumulator, queue, 1_000)
    accumulator.put(topic.queue(1), Record())
    assert not hand_over(accumulator, topic.unplaced, 1_000)  # its key may be of that partition
    assert not hand_over(accumulator, topic.queue(1), 1_000)
    assert hand_over(accumulator, topic.queue(2), 1_000)
    accumulator.drain(1 << 20, 0.0)
    assert hand_over(accumulator, topic.unplaced, 1_000)


def test_a_full_window_admits_nobody_to_its_own_partition_only() -> None:
    accumulator, topic = with_topic(Limits(window=3_000))
    assert [hand_over(accumulator, topic.queue(0), 1_000) for _ in range(5)] == [True] * 3 + [False] * 2
    assert hand_over(accumulator, topic.queue(1), 1_000)
    assert hand_over(accumulator, topic.unplaced, 1_000)


def test_a_flood_by_key_waits_for_its_room_and_only_who_sends_little_goes_by_its_partition() -> None:
    accumulator, topic = with_topic()
    while hand_over(accumulator, topic.unplaced, 1_000):
        pass
    assert not accumulator.has_space_soon(topic.queue(0), 1_000, 0.0)  # none was reported yet: they may be stuck
    returned(topic.unplaced, 1_000)
    accumulator.settle(1.0)
    while hand_over(accumulator, topic.unplaced, 1_000):
        pass
    assert not accumulator.has_space_soon(topic.queue(0), 1_000, 1.0)
    assert hand_over(accumulator, topic.queue(0), 1_000)
    assert accumulator.has_space_soon(topic.queue(0), 1_000, 1.0)
    assert not accumulator.has_space_soon(topic.queue(1), 1_000, 1.0)
    assert not accumulator.has_space_soon(topic.queue(0), 1_000, 2.0)  # stuck, by now


def test_who_would_overtake_a_record_that_waits_is_not_told_to_wait_for_room() -> None:
    accumulator, topic = with_topic()
    while hand_over(accumulator, topic.unplaced, 1_000):
        pass
    returned(topic.unplaced, 1_000)
    accumulator.settle(1.0)
    while hand_over(accumulator, topic.unplaced, 1_000):
        pass
    accumulator.put(topic.queue(0), Record(CREDIT))
    assert not accumulator.has_space_soon(topic.queue(0), 1_000, 1.0)


def test_any_partition_will_do_until_the_partitions_are_known_and_then_one_that_has_a_leader() -> None:
    accumulator: Accumulator[Record] = Accumulator(1, FairTurns([1]))
    topic = accumulator.topic("orders-0", 0)
    assert accumulator.admit_any(topic, 1_000, 0.0) is topic.unplaced
    accumulator.learn(topic, 4, {2})
    assert accumulator.admit_any(topic, 1_000, 0.0) is topic.queue(2)
    accumulator.learn(topic, 4, set())
    assert accumulator.admit_any(topic, 1_000, 0.0) is None


def test_what_is_refused_at_once_gives_its_room_back() -> None:
    accumulator, topic = with_topic(Limits(memory=1_000))
    assert hand_over(accumulator, topic.queue(0), 1_000)
    accumulator.take_back(topic.queue(0), 1_000)
    assert accumulator.used == 0
    assert hand_over(accumulator, topic.queue(0), 1_000)


def test_ten_thousand_partitions_take_some_megabytes_and_a_queue_for_each_where_records_wait_some_more() -> None:
    accumulator: Accumulator[Record] = Accumulator(1, FairTurns([1]))
    topics = [accumulator.topic(f"orders-{number}", 0) for number in range(10)]
    for topic in topics:
        accumulator.learn(topic, 1_000, range(1_000))
    tracemalloc.start()
    try:
        queues = [topic.queue(partition) for topic in topics for partition in range(1_000)]
        idle, _ = tracemalloc.get_traced_memory()
        records = [Record() for _ in queues]
        before, _ = tracemalloc.get_traced_memory()
        assert all(accumulator.put(queue, record) for queue, record in zip(queues, records, strict=True))
        waiting, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert idle < 5_500_000
    assert waiting - before < 9_500_000
    assert not NOTHING

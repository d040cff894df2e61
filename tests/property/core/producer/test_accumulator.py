from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.producer.accumulator import Accumulator, Limits
from headway.core.producer.queues import Batch, Queue
from headway.core.producer.turn_policies import FairTurns, StrictTurns

LIMITS = Limits(memory=8_000, reserve=0.25, window=900, patience=10.0)
LEVELS, TOPICS, PARTITIONS = 2, 3, 3
BIGGEST = 400


@dataclass(eq=False, slots=True)
class Record:
    size: int
    since: float
    address: tuple[int, int, int | None] = (0, 0, 0)  # level, topic, partition; None for any
    key: bool = False
    queue: Any = field(default=None, repr=False)


class Model:
    """Plain lists, and sums over them; drives an accumulator with the same calls."""

    def __init__(self) -> None:
        self.accumulator: Accumulator[Record] = Accumulator(LEVELS, FairTurns([1, 2]), LIMITS)
        self.topics = {
            (level, topic): self.accumulator.topic(f"{topic}-{level}", level)
            for level in range(LEVELS)
            for topic in range(TOPICS)
        }
        self.now = 0.0
        self.alive: list[Record] = []
        self.in_flight: list[Record] = []
        self.unsorted: list[Record] = []
        self.given: dict[tuple[int, int, int], list[Record]] = defaultdict(list)
        self.gone: list[Record] = []
        self.accepted: list[Record] = []
        self.pause = 0.0  # so much passes before each hand-over at the end, for a throttle's sake

    def room(self, queue: Queue[Record]) -> float:
        """What a record that is to wait finds: it revokes the credit that would let others overtake it."""
        topic, revoked = queue.topic, {id(queue), id(queue.topic.unplaced)}
        kept = {
            id(each): each.credit
            for other in self.topics.values()
            for each in other.queues()
            if id(each) not in revoked and other.level is topic.level
        }
        of_topic = sum(kept.get(id(each), 0) for each in topic.queues())
        alive = [record for record in self.alive if record.queue.topic.level is topic.level]
        own = [record for record in alive if record.queue.topic is topic]
        room = self.part(LIMITS.memory / LEVELS - self.used(alive) - sum(kept.values()), self.used(own) + of_topic)
        return self.part(room, self.used([record for record in own if record.queue is queue]))

    def part(self, room: float, own: int) -> float:
        return 0.75 * (room + own) - own

    def used(self, records: list[Record]) -> int:
        return sum(record.size for record in records)

    def put(self, level: int, topic: int, partition: int | None, size: int, key: bool) -> bool:
        queues = self.topics[level, topic]
        partition = 0 if key and partition is None else partition  # what a key will come to
        unknown = key and not queues.partition_count
        queue = queues.raw if unknown else queues.queue(partition)
        raw = unknown or (partition is not None and queues.has_raw)
        record = Record(size, self.now, (level, topic, partition), key)
        room = self.room(queue)
        if self.accumulator.put(queue, record, raw=raw):
            assert size <= room or not queues.level.used - size
            assert record in queue.records or record in queues.raw.records
            self.alive.append(record)
            self.accepted.append(record)
            return True
        assert size > room
        return False

    def hand_over(self, level: int, topic: int, partition: int | None, size: int, key: bool) -> None:
        """As the sender does it; a key's partition is 0."""
        queues = self.topics[level, topic]
        queue: Queue[Record] | None
        if partition is not None:
            queue = queues.queue(partition)
        elif key:
            queue, partition = queues.unplaced, 0
        else:
            queue = queues.sticky
            if queue is None or queue.credit < size:
                queue = self.accumulator.admit_any(queues, size, self.now)
        if queue is None or (queue.credit < size and not self.accumulator.admit(queue, size, self.now)):
            return
        waiting = [record for each in queues.queues() for record in each.records]
        assert not any(record.address[2] == partition is not None for record in waiting)
        assert partition is None or not queues.has_raw
        queue.credit -= size
        record = Record(size, self.now, (level, topic, partition), key, queue)
        if partition is not None:
            self.given[level, topic, partition].append(record)
        for kept in (self.alive, self.accepted, self.in_flight):
            kept.append(record)

    def learn(self, level: int, topic: int, leaders: set[int]) -> None:
        assert self.accumulator.learn(self.topics[level, topic], PARTITIONS, leaders) == []

    def take_raw(self, limit: int) -> None:
        self.unsorted += self.accumulator.take_raw(limit)

    def sort(self, count: int, growth: int) -> None:
        for record in self.unsorted[:count]:
            if record.size % 10 == 7:
                assert self.accumulator.drop(record) is (record in self.alive)
                self.forget([record] if record in self.alive else [])
            else:
                self.accumulator.sort(record, record.address[2], record.size + growth)
        del self.unsorted[:count]

    def drain(self, limit: int) -> None:
        for batch in self.accumulator.drain(limit, self.now):
            partition = batch.queue.partition
            assert partition is not None
            assert partition in batch.queue.topic.leaders
            assert batch.records
            assert batch.size == sum(record.size for record in batch.records)
            for record in batch.records:
                level, topic, wanted = record.address
                assert wanted in (None, partition)
                assert record.since >= self.now - LIMITS.patience
                self.given[level, topic, partition].append(record)
            self.in_flight += batch.records
            assert batch.queue.in_flight < LIMITS.window + BIGGEST
        self.expire(0.0)  # what it came across on the way

    def report(self, count: int) -> None:
        reported, self.in_flight = self.in_flight[:count], self.in_flight[count:]
        for record in reported:
            if not record.queue.returned:
                record.queue.reported.append(record.queue)
            record.queue.returned += record.size
        self.accumulator.settle(self.now)
        self.forget(reported)

    def expire(self, seconds: float) -> None:
        self.now += seconds
        waiting = {id(record) for record in [*self.in_flight, *self.unsorted]}
        late = {id(r) for r in self.alive if r.since < self.now - LIMITS.patience and id(r) not in waiting}
        assert not late or self.accumulator.next_expiry() <= self.now
        expired = self.accumulator.expired(self.now)
        assert {id(record) for record in expired} == late
        self.forget(expired)

    def throttle(self, seconds: float) -> None:
        self.accumulator.throttled(seconds, self.now)
        assert not any(queue.credit for topic in self.topics.values() for queue in topic.queues())
        self.pause = 3.0

    def purge(self, level: int, topic: int) -> None:
        purged = self.accumulator.purge([self.topics[level, topic]])
        assert not any(record.address[:2] == (level, topic) for record in set(self.alive) - {*purged, *self.in_flight})
        self.forget(purged)

    def forget(self, records: list[Record]) -> None:
        gone = {id(record) for record in records}
        assert len(gone) == len(records)
        self.alive = [record for record in self.alive if id(record) not in gone]
        self.gone += records

    def check(self) -> None:
        waiting = len(self.alive) - len(self.in_flight)
        assert self.accumulator.waiting == waiting
        credit = sum(queue.credit for topic in self.topics.values() for queue in topic.queues())
        assert self.accumulator.used == self.used(self.alive) + credit
        for topic in self.topics.values():
            assert topic.level.used <= LIMITS.memory / LEVELS
            of_topic = self.used([record for record in self.alive if record.queue.topic is topic])
            assert topic.used == of_topic + sum(queue.credit for queue in topic.queues())
            for queue in topic.queues():
                in_flight = self.used([record for record in self.in_flight if record.queue is queue])
                assert queue.in_flight == in_flight + queue.credit
                assert in_flight or not queue.credit
                assert not (queue.records and queue.credit)
        for records in self.given.values():
            explicit = [record.since for record in records if record.address[2] is not None]
            assert explicit == sorted(explicit)


levels, topics, partitions = st.integers(0, LEVELS - 1), st.integers(0, TOPICS - 1), st.integers(0, PARTITIONS - 1)
calls = st.one_of(
    st.tuples(st.just("put"), levels, topics, partitions | st.none(), st.integers(1, BIGGEST), st.booleans()),
    st.tuples(st.just("put"), levels, topics, partitions, st.just(BIGGEST), st.just(False)),
    st.tuples(st.just("hand_over"), levels, topics, partitions | st.none(), st.integers(1, BIGGEST), st.booleans()),
    st.tuples(st.just("learn"), levels, topics, st.sets(partitions)),
    st.tuples(st.just("take_raw"), st.integers(1, 10)),
    st.tuples(st.just("sort"), st.integers(1, 10), st.integers(-1, 0)),
    st.tuples(st.just("drain"), st.integers(1, 5_000)),
    st.tuples(st.just("report"), st.integers(1, 20)),
    st.tuples(st.just("expire"), st.floats(0, 20)),
    st.tuples(st.just("throttle"), st.floats(0, 5)),
    st.tuples(st.just("purge"), levels, topics),
)


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(calls, max_size=120))
def test_it_does_what_plain_lists_would_do(script: list[tuple[Any, ...]]) -> None:
    model = Model()
    for call, *arguments in script:
        model.now += 0.001  # so that every record has a time of its own
        getattr(model, call)(*arguments)
        model.check()
    finish(model)
    assert {id(record) for record in model.gone} == {id(record) for record in model.accepted}
    assert len(model.gone) == len(model.accepted)
    assert (model.accumulator.used, model.accumulator.waiting) == (0, 0)


def finish(model: Model) -> None:
    """With every partition known and led, all that was accepted comes out."""
    for level, topic in model.topics:
        model.learn(level, topic, set(range(PARTITIONS)))
    while model.alive:
        before = len(model.alive), len(model.unsorted), len(model.in_flight)
        model.take_raw(1_000)
        model.sort(1_000, 0)
        model.expire(model.pause)
        model.drain(100_000)
        model.report(100_000)
        model.check()
        assert (len(model.alive), len(model.unsorted), len(model.in_flight)) != before


floods = st.lists(st.tuples(levels, topics, partitions, st.integers(50, BIGGEST)), max_size=200)


@given(floods)
def test_a_flood_leaves_its_reserve_to_each_topic_that_has_nothing(flood: list[tuple[int, int, int, int]]) -> None:
    model = flooded(flood)
    for (level, topic), queues in model.topics.items():
        if not queues.used:
            rivals = sum(bool(other.used) for (of, _), other in model.topics.items() if of == level)
            assert model.put(level, topic, 0, int(0.75**2 * 0.25**rivals * LIMITS.memory / LEVELS), key=False)
            return


@given(floods)
def test_a_flood_of_a_topic_leaves_its_reserve_to_each_partition_that_has_nothing(
    flood: list[tuple[int, int, int, int]],
) -> None:
    model = flooded([(level, 0, partition, size) for level, _, partition, size in flood])
    for (level, topic), queues in model.topics.items():
        for partition in range(PARTITIONS):
            if topic == 0 and not queues.queue(partition).used:
                rivals = sum(bool(other.used) for other in queues.queues())
                kept = int(0.75**2 * 0.25**rivals * LIMITS.memory / LEVELS)
                assert model.put(level, 0, partition, kept, key=False)
                return


@given(floods)
def test_a_flood_changes_nothing_for_another_level(flood: list[tuple[int, int, int, int]]) -> None:
    model = flooded([(0, topic, partition, size) for _, topic, partition, size in flood])
    untouched = Model()
    for topic in range(TOPICS):
        assert model.room(model.topics[1, topic].queue(0)) == untouched.room(untouched.topics[1, topic].queue(0))


def flooded(flood: list[tuple[int, int, int, int]]) -> Model:
    model = Model()
    for level, topic, partition, size in flood:
        model.put(level, topic, partition, size, key=False)
    return model


def backlog(accumulator: Accumulator[Record], level: int, topic: str, count: int, partition: int = 0) -> Queue[Record]:
    queues = accumulator.topic(f"{topic}-{level}", level)
    accumulator.learn(queues, PARTITIONS, range(PARTITIONS))
    queue = queues.queue(partition)
    for _ in range(count):
        assert accumulator.put(queue, Record(1_000, 0.0))
    return queue


WIDE = Limits(memory=1 << 40, window=1 << 40)
TURN = 65_000 + 1_000


def bytes_by_level(batches: list[Batch[Record]], levels: int) -> list[int]:
    return [sum(batch.size for batch in batches if batch.queue.topic.level.index == level) for level in range(levels)]


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4), st.integers(1, 20))
def test_levels_that_always_wait_get_their_shares_of_the_bytes_to_within_a_turn(shares: list[int], drains: int) -> None:
    accumulator: Accumulator[Record] = Accumulator(len(shares), FairTurns(shares), WIDE)
    for level in range(len(shares)):
        backlog(accumulator, level, "orders", 1_500 * shares[level])
    batches = [batch for _ in range(drains) for batch in accumulator.drain(70_000, 0.0)]
    moved = bytes_by_level(batches, len(shares))
    per_share = [size / share for size, share in zip(moved, shares, strict=True)]
    for one, share in zip(per_share, shares, strict=True):
        for other, its_share in zip(per_share, shares, strict=True):
            assert abs(one - other) <= TURN / share + TURN / its_share


@given(st.integers(1, 6), st.integers(1, 3))
def test_topics_of_a_level_take_turns_however_many_partitions_one_has(topics: int, partitions: int) -> None:
    accumulator: Accumulator[Record] = Accumulator(1, FairTurns([1]), WIDE)
    for partition in range(partitions):
        backlog(accumulator, 0, "large", 200, partition)
    for topic in range(topics):
        backlog(accumulator, 0, f"small {topic}", 200)
    batches = accumulator.drain(TURN * (topics + 1), 0.0)
    assert len({batch.queue.topic.kafka_topic for batch in batches}) == topics + 1


@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.integers(1, 40))
def test_strict_gives_the_highest_first(counts: list[int], turns: int) -> None:
    accumulator: Accumulator[Record] = Accumulator(len(counts), StrictTurns(5.0), WIDE)
    for level, count in enumerate(counts):
        backlog(accumulator, level, "orders", count)
    served = [batch.queue.topic.level.index for batch in accumulator.drain(turns * 60_000, 1.0)]
    assert served == sorted(served, reverse=True)


@given(st.integers(2, 4))
def test_strict_gives_a_turn_to_who_has_waited_too_long(levels: int) -> None:
    accumulator: Accumulator[Record] = Accumulator(levels, StrictTurns(5.0), WIDE)
    for level in range(levels):
        backlog(accumulator, level, "orders", 10)
    topic = accumulator.topic(f"orders-{levels - 1}", levels - 1)
    fresh = Record(1_000, 7.0)
    accumulator.purge([topic])
    accumulator.put(topic.queue(0), fresh)
    [first, *_] = accumulator.drain(1, 7.0)
    assert first.queue.topic.level.index < levels - 1

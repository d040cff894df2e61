"""An engine that skips waiting records for newer ones, against one waiting record for each key."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.engine.attempt import Attempt, Brought, FailedAttempts
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition

PARTITIONS = [TopicPartition("orders", partition=0), TopicPartition("orders", partition=0, level=1)]
partitions = st.sampled_from(PARTITIONS)
KEYS = [None, b"", b"a", b"b"]
FAILURE = FailedAttempts(OSError(), 0.0, 0.0, 3, 0, OSError())

Lane = tuple[TopicPartition, bytes]


@dataclass(frozen=True)
class Record:
    partition: TopicPartition
    offset: int
    raw_key: bytes | None
    size: int


class NewestOfEachKey(RuleBasedStateMachine):
    @initialize(ordering=st.sampled_from([Ordering.KEY, Ordering.KEY_IF_ANY]))
    def begin(self, ordering: Ordering) -> None:
        self.engine: Engine[Record] = Engine(
            ordering, levels=2, size_of=lambda record: record.size, latest_only=True, most_bytes=10**6
        )
        self.now = 100.0
        self.waiting: dict[Lane, Record] = {}
        self.keyless: set[Record] = set()
        self.running: dict[Record, Attempt[Record]] = {}
        self.parked: list[Attempt[Record]] = []
        self.handled: list[Record] = []
        self.skipped: list[Record] = []
        self.received: list[Record] = []
        self.last: dict[Lane, Record] = {}
        for partition in PARTITIONS:
            self.engine.assign(partition, OffsetMap(0))

    @rule(
        partition=partitions,
        keys=st.lists(st.sampled_from(KEYS), max_size=6),
        size=st.integers(1, 9),
        comes_back=st.booleans(),
    )
    def receive(self, partition: TopicPartition, keys: list[bytes | None], size: int, comes_back: bool) -> None:
        first = sum(each.partition == partition for each in self.received)
        records = [Record(partition, first + index, key, size) for index, key in enumerate(keys)]
        came_back = records[-1] if records and comes_back else None
        for record in records:
            self.expect(record, comes_back=record is came_back)
        self.received += records
        brought = {came_back: Brought(FAILURE)} if came_back else {}
        self.engine.receive(partition, records, self.now, brought=brought)

    def expect(self, record: Record, *, comes_back: bool) -> None:
        if record.raw_key is None:
            self.keyless.add(record)
            return
        lane = (record.partition, record.raw_key)
        is_running = any((each.partition, each.raw_key) == lane for each in self.running)
        if comes_back and (is_running or lane in self.waiting):
            self.skipped.append(record)
            return
        if lane in self.waiting:
            self.skipped.append(self.waiting[lane])
        self.waiting[lane] = self.last[lane] = record

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        for attempt in self.engine.take(limit, self.now):
            record = attempt.record
            if record.raw_key is None:
                self.keyless.remove(record)
            else:
                assert self.waiting.pop((record.partition, record.raw_key)) == record
                assert all(
                    (each.partition, each.raw_key) != (record.partition, record.raw_key) for each in self.running
                )
            assert attempt.offset == record.offset
            self.running[record] = attempt

    @rule(data=st.data(), end=st.sampled_from(["done", "done", "retry", "put back", "park"]))
    def end_one(self, data: st.DataObject, end: str) -> None:
        if not self.running:
            return
        record = data.draw(st.sampled_from(sorted(self.running, key=lambda each: (each.partition, each.offset))))
        attempt = self.running.pop(record)
        if end == "done":
            assert self.engine.finish(attempt, self.now)
            self.handled.append(record)
            return
        if end == "park":
            if parked := self.engine.park(attempt, self.now, lets_pass=True):
                self.parked.append(parked)
            self.keep_or_skip(record)
            return
        assert self.engine.retry(attempt, self.now + 5, OSError() if end == "retry" else None, self.now)
        self.keep_or_skip(record)

    def keep_or_skip(self, record: Record) -> None:
        if record.raw_key is None:
            self.keyless.add(record)
        elif (record.partition, record.raw_key) in self.waiting:
            self.skipped.append(record)
        else:
            self.waiting[record.partition, record.raw_key] = record

    @rule(partition=partitions, holds=st.booleans())
    def hold_or_release(self, partition: TopicPartition, holds: bool) -> None:
        self.engine.hold([partition]) if holds else self.engine.release([partition], self.now)

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def unpark_all(self) -> None:
        for each in self.parked:
            self.engine.unpark(each, self.now)
        self.parked = []

    @invariant()
    def the_engine_holds_one_record_of_each_key(self) -> None:
        if not hasattr(self, "engine"):
            return
        held = [*self.waiting.values(), *self.keyless, *self.running]
        assert sum(self.engine.skipped) == len(self.skipped)
        assert self.engine.work_remaining == len(held)
        assert sum(self.engine.bytes_held) == sum(each.size for each in held)
        for partition in PARTITIONS:
            not_done = [each.offset for each in held if each.partition == partition]
            end = sum(each.partition == partition for each in self.received)
            assert self.engine.committable(partition) == min(not_done, default=end)

    def teardown(self) -> None:
        """In the end, each record is handled or skipped, once, and the last record of each key is handled."""
        if not hasattr(self, "engine"):
            return
        self.engine.release(PARTITIONS, self.now)
        self.unpark_all()
        self.now += 1000
        while self.running or self.engine.work_remaining:
            self.take(10)
            for record, attempt in self.running.items():
                self.engine.finish(attempt, self.now)
                self.handled.append(record)
            self.running.clear()
        assert sorted([*self.handled, *self.skipped], key=lambda each: (each.partition, each.offset)) == sorted(
            self.received, key=lambda each: (each.partition, each.offset)
        )
        assert not set(self.last.values()) & set(self.skipped)


NewestOfEachKey.TestCase.settings = settings(max_examples=settings().max_examples, stateful_step_count=40)
test_of_each_keys_waiting_records_only_the_newest_is_handled = NewestOfEachKey.TestCase

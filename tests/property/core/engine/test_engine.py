"""The engine against lists: whatever is received, run, reported, lost and committed, in whatever order."""

import math
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.engine.attempt import Attempt
from headway.core.engine.commit_tick import CommitTick
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import Commit, OffsetMap, decode_map
from headway.core.retry import GiveUp
from headway.records.record_types import TopicPartition

LOG = 60
PARTITIONS = [
    TopicPartition("orders", partition=0),
    TopicPartition("orders", partition=1),
    TopicPartition("orders", partition=0, level=1),
]
partitions = st.sampled_from(PARTITIONS)


ROOM = 100
OUTPUT_SIZE = 2


@dataclass(frozen=True)
class Record:
    partition: TopicPartition
    offset: int
    raw_key: bytes | None
    size: int


@dataclass
class Entry:
    """A received record that is not done."""

    record: Record
    not_before: float = 0.0
    attempt: Attempt[Record] | None = None  # while it runs
    attempts: int = 0
    parked: Attempt[Record] | None = None
    has_left_its_lane: bool = False


@dataclass
class Stay:
    """A partition while it is ours."""

    position: int
    done: set[int]
    entries: list[Entry] = field(default_factory=list)
    committable: int = 0
    retired: bool = False
    held: bool = False
    kept: int = 0  # bytes of what is done and not committed


class EngineOfALog(RuleBasedStateMachine):
    """Logs with holes, a broker that keeps commits and outputs, and an engine between."""

    @initialize(data=st.data(), ordering=st.sampled_from(Ordering))
    def begin(self, data: st.DataObject, ordering: Ordering) -> None:
        self.ordering = ordering
        keys = st.sampled_from([None, b"a", b"b", b"c"])
        self.logs = {
            partition: [
                Record(partition, offset, data.draw(keys), data.draw(st.integers(1, 9)))
                for offset in sorted(data.draw(st.sets(st.integers(0, LOG - 1), min_size=20)))
            ]
            for partition in PARTITIONS
        }
        self.broker = {partition: Commit(0, "", False) for partition in PARTITIONS}
        self.published: list[tuple[TopicPartition, int, int]] = []
        self.now = 100.0
        self.crash()

    # What happens

    @rule(upset=st.sampled_from(["crash", "assign", "revoke", "nothing", "nothing", "nothing"]), partition=partitions)
    def upset(self, upset: str, partition: TopicPartition) -> None:
        if upset == "crash":
            self.crash()
        elif upset == "assign":
            self.assign(partition)
        elif upset == "revoke":
            self.revoke(partition)

    def crash(self) -> None:
        self.engine: Engine[Record] = Engine(
            self.ordering,
            levels=2,
            buffer=8,
            most_bytes=ROOM,
            size_of=lambda record: record.size,
            size_of_output=lambda output: OUTPUT_SIZE,
        )
        self.stays: dict[TopicPartition, Stay] = {}
        self.stale: list[Attempt[Record]] = []
        self.slots: dict[Attempt[Record], Attempt[Record]] = {}  # of each attempt the first that was taken with it
        for partition in PARTITIONS:
            self.assign(partition)

    def assign(self, partition: TopicPartition) -> None:
        self.forget(partition)
        start = self.committed(partition)
        done = {offset for run in start.complete for offset in run}
        self.stays[partition] = Stay(start.offset, done, committable=start.offset)
        self.engine.assign(partition, start)

    def revoke(self, partition: TopicPartition) -> None:
        self.forget(partition)
        self.engine.revoke([partition])

    @rule(partition=partitions)
    def retire(self, partition: TopicPartition) -> None:
        self.engine.retire([partition])
        if stay := self.stays.get(partition):
            stay.retired, stay.held = True, False

    @rule(partition=partitions, is_held=st.booleans())
    def hold_or_release(self, partition: TopicPartition, is_held: bool) -> None:
        if is_held:
            self.engine.hold([partition])
        else:
            self.engine.release([partition], self.now)
        if (stay := self.stays.get(partition)) and not stay.retired:
            stay.held = is_held
        assert self.engine.held() == {partition for partition, stay in self.stays.items() if stay.held}

    @rule(partition=partitions)
    def give_up_what_runs_of_a_retired_partition(self, partition: TopicPartition) -> None:
        if (stay := self.stays.get(partition)) and stay.retired:
            running = [entry for entry in stay.entries if entry.attempt]
            self.engine.give_up([entry.attempt for entry in running if entry.attempt])
            for entry in running:
                self.stale += [entry.attempt] if entry.attempt else []
                entry.attempt = None

    def forget(self, partition: TopicPartition) -> None:
        if stay := self.stays.pop(partition, None):
            self.stale += [entry.attempt for entry in stay.entries if entry.attempt]

    def committed(self, partition: TopicPartition) -> OffsetMap:
        return decode_map(self.broker[partition].metadata, self.broker[partition].offset, LOG)

    @rule(partition=partitions, count=st.integers(0, 12))
    def receive(self, partition: TopicPartition, count: int) -> None:
        stay = self.stays.get(partition)
        start = stay.position if stay else 0
        batch = [record for record in self.logs[partition] if record.offset >= start][:count]
        self.engine.receive(partition, batch, self.now)
        if stay and batch and not stay.retired:
            stay.entries += [Entry(record) for record in batch if record.offset not in stay.done]
            stay.position = batch[-1].offset + 1

    @rule(limit=st.integers(0, 8))
    def take(self, limit: int) -> None:
        ready = self.ready()
        attempts = self.engine.take(limit, self.now)
        assert len(attempts) == min(limit, sum(not self.is_full(entry.record.partition.level) for entry in ready))
        for attempt in attempts:
            self.start(attempt)
            self.slots[attempt] = attempt
        for level in range(2):
            taken = [attempt.offset for attempt in attempts if attempt.level == level]
            assert len(taken) == len(set(zip(taken, [w.partition for w in attempts if w.level == level], strict=True)))

    @rule(max_size=st.integers(1, 4))
    def take_batch(self, max_size: int) -> None:
        ready = sum(not self.is_full(entry.record.partition.level) for entry in self.ready())
        batch = self.engine.take_batch(max_size, self.now)
        assert min(1, ready) <= len(batch) <= max_size
        entries = [self.entry_of(attempt) for attempt in batch]
        assert len({self.lane_of(entry) for entry in entries}) <= 1 or all(
            entry.has_left_its_lane or self.is_alone(entry.record) for entry in entries
        )
        for attempt in batch:
            self.start(attempt, [other.offset for other in batch if other.partition == attempt.partition])
            self.slots[attempt] = batch[0]

    def start(self, attempt: Attempt[Record], together: list[int] | None = None) -> None:
        assert not self.stays[attempt.partition].retired
        assert not self.stays[attempt.partition].held
        entries = self.stays[attempt.partition].entries
        entry = self.entry_of(attempt)
        assert entry.record is attempt.record
        assert entry.attempt is None
        assert entry.not_before <= self.now
        assert attempt.number == entry.attempts + 1
        ahead = [other for other in entries[: entries.index(entry)] if self.lane_of(other) == self.lane_of(entry)]
        assert all(other.record.offset in (together or []) for other in ahead)
        entry.attempt, entry.parked = attempt, None

    def entry_of(self, attempt: Attempt[Record]) -> Entry:
        entries = self.stays[attempt.partition].entries
        return next(entry for entry in entries if entry.record.offset == attempt.offset)

    @rule(data=st.data(), count=st.integers(1, 8))
    def finish_some(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self.finish(data)

    def finish(self, data: st.DataObject) -> None:
        if (found := self.choose_running(data)) is None:
            return
        stay, entry = found
        attempt = entry.attempt
        assert attempt
        outputs = [(attempt.partition, attempt.offset, part) for part in range(2)]
        assert self.engine.finish(attempt, self.now, outputs)
        assert not self.engine.finish(attempt, self.now, outputs)
        stay.entries.remove(entry)
        stay.done.add(attempt.offset)
        stay.kept += entry.record.size + 2 * OUTPUT_SIZE

    @rule(data=st.data(), delay=st.integers(0, 5))
    def retry(self, data: st.DataObject, delay: int) -> None:
        if (found := self.choose_running(data)) is None:
            return
        _, entry = found
        attempt = entry.attempt
        assert attempt
        assert self.engine.retry(attempt, self.now + delay, OSError(), self.now)
        assert not self.engine.retry(attempt, self.now, OSError(), self.now)
        entry.attempt, entry.not_before, entry.attempts = None, self.now + delay, entry.attempts + 1

    @rule(data=st.data(), delay=st.sampled_from([2, math.inf, math.inf]), lets_pass=st.booleans())
    def park(self, data: st.DataObject, delay: float, lets_pass: bool) -> None:
        if (found := self.choose_running(data)) is None:
            return
        _, entry = found
        attempt = entry.attempt
        assert attempt
        entry.parked = self.engine.park(attempt, self.now, self.now + delay, lets_pass=lets_pass)
        assert entry.parked
        assert self.engine.park(attempt, self.now) is None
        entry.attempt, entry.not_before = None, self.now + delay
        entry.has_left_its_lane |= lets_pass

    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        waiting = [
            entry
            for stay in self.stays.values()
            for entry in stay.entries
            if entry.parked and not entry.attempt and not stay.retired
        ]
        if waiting:
            entry = data.draw(st.sampled_from(waiting))
            assert entry.parked
            self.engine.unpark(entry.parked, self.now)
            entry.not_before, entry.parked = min(entry.not_before, self.now), None

    @rule(data=st.data())
    def report_what_is_stale(self, data: st.DataObject) -> None:
        if self.stale:
            attempt = self.stale.pop(data.draw(st.integers(0, len(self.stale) - 1)))
            assert not self.engine.finish(attempt, self.now, [(attempt.partition, attempt.offset, 0)])
            assert not self.engine.fail(attempt, OSError(), GiveUp("no"), self.now)

    def choose_running(self, data: st.DataObject) -> tuple[Stay, Entry] | None:
        running = [(stay, entry) for stay in self.stays.values() for entry in stay.entries if entry.attempt]
        return data.draw(st.sampled_from(running)) if running else None

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(succeeds=st.booleans())
    def commit(self, succeeds: bool) -> None:
        tick = self.engine.tick()
        if not succeeds:
            return
        self.acknowledge(tick)
        assert not self.engine.tick().commits

    @rule(partition=partitions, succeeds=st.booleans())
    def lose_a_partition_during_a_commit(self, partition: TopicPartition, succeeds: bool) -> None:
        tick = self.engine.tick()
        self.revoke(partition)
        if succeeds:
            self.acknowledge(tick)

    def acknowledge(self, tick: CommitTick) -> None:
        self.store(tick)
        for _ in range(2):  # it may be said again
            self.engine.committed(tick)
        for stay in self.stays.values():
            stay.kept = 0

    def store(self, tick: CommitTick) -> None:
        self.broker |= tick.commits
        self.published += tick.outputs

    # What must hold

    def lane(self, record: Record) -> object:
        if self.is_alone(record):
            return record.partition, record.offset
        return record.partition if self.ordering is Ordering.PARTITION else (record.partition, record.raw_key)

    def lane_of(self, entry: Entry) -> object:
        return (entry.record.partition, entry.record.offset) if entry.has_left_its_lane else self.lane(entry.record)

    def is_alone(self, record: Record) -> bool:
        return self.ordering is Ordering.UNORDERED or (self.ordering is Ordering.KEY_IF_ANY and record.raw_key is None)

    def heads(self) -> list[Entry]:
        first: dict[object, Entry] = {}
        for stay in self.stays.values():
            if stay.retired or stay.held:
                continue
            lanes_in_a_batch = {self.lane_of(entry) for entry in stay.entries if entry.attempt}
            for entry in stay.entries:
                if self.lane_of(entry) not in lanes_in_a_batch:
                    first.setdefault(self.lane_of(entry), entry)
        return list(first.values())

    def kept(self, level: int) -> int:
        return sum(stay.kept for partition, stay in self.stays.items() if partition.level == level)

    def is_full(self, level: int) -> bool:
        return self.kept(level) >= ROOM

    def ready(self) -> list[Entry]:
        return [entry for entry in self.heads() if entry.not_before <= self.now]

    @invariant()
    def what_is_published_is_exactly_what_is_committed(self) -> None:
        complete = {
            (partition, record.offset)
            for partition, log in self.logs.items()
            for record in log
            if record.offset < self.committed(partition).offset
            or any(record.offset in run for run in self.committed(partition).complete)
        }
        assert sorted(self.published) == sorted((*done, part) for done in complete for part in range(2))

    @invariant()
    def nothing_incomplete_is_passed_and_nothing_goes_back(self) -> None:
        for partition, stay in self.stays.items():
            committable = self.engine.committable(partition)
            below = [record.offset for record in self.logs[partition] if record.offset < committable]
            assert stay.committable <= committable
            assert stay.done.issuperset(offset for offset in below if offset >= stay.committable)
            stay.committable = committable

    @invariant()
    def the_counts_do_not_drift(self) -> None:
        assert not self.engine.take(0, self.now)
        entries = [entry for stay in self.stays.values() for entry in stay.entries]
        running = [entry.attempt for entry in entries if entry.attempt] + self.stale
        ready = [entry.record for entry in self.ready()]
        for level in range(2):
            assert self.engine.slots_taken[level] == len(
                {self.slots[attempt] for attempt in running if attempt.level == level}
            )
            assert self.engine.ready[level] == sum(record.partition.level == level for record in ready)
            size = sum(entry.record.size for entry in entries if entry.record.partition.level == level)
            assert self.engine.bytes_held[level] == size + self.kept(level)
        assert self.engine.wants_commit() == any(4 * self.kept(level) >= ROOM for level in range(2))
        assert self.engine.work_remaining == len(entries)

    @invariant()
    def it_wakes_when_the_next_attempt_is_due(self) -> None:
        self.engine.take(0, self.now)
        later = [entry.not_before for entry in self.heads() if self.now < entry.not_before < math.inf]
        assert self.engine.next_wake() == min(later, default=None)

    @invariant()
    def with_nothing_to_do_something_is_fetched(self) -> None:
        if self.stays and self.engine.work_remaining == 0 and not self.engine.is_uncommitted():
            assert not self.engine.paused()
            assert all(
                self.engine.demand()[level] > 0 for level in range(2) if any(p.level == level for p in self.stays)
            )

    def teardown(self) -> None:
        """Whatever happened, from here on everything gets done."""
        if not hasattr(self, "engine"):
            return
        self.crash()
        for partition in PARTITIONS:
            self.engine.receive(
                partition, [r for r in self.logs[partition] if r.offset >= self.stays[partition].position], self.now
            )
        while attempts := self.engine.take(3, self.now):
            for attempt in attempts:
                self.engine.finish(attempt, self.now, [(attempt.partition, attempt.offset, part) for part in range(2)])
            self.acknowledge(self.engine.tick())
        whole = [(p, record.offset, part) for p, log in self.logs.items() for record in log for part in range(2)]
        assert sorted(self.published) == sorted(whole)


EngineOfALog.TestCase.settings = settings(max_examples=settings().max_examples, stateful_step_count=50)
test_the_engine_agrees_with_a_model_of_lists = EngineOfALog.TestCase

"""The engine that gathers batches against lists: who waits, for how long, and that nothing is lost or out of order."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.engine.attempt import Attempt
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition

PARTITIONS = [
    TopicPartition("orders", partition=0),
    TopicPartition("orders", partition=1),
    TopicPartition("orders", partition=0, level=1),
]
LEVELS = 2
partitions = st.sampled_from(PARTITIONS)
outcomes = st.sampled_from(["done", "done", "failed", "untried"])


@dataclass(frozen=True)
class Record:
    partition: TopicPartition
    offset: int
    raw_key: bytes | None


@dataclass
class Entry:
    """A received record that is not done."""

    record: Record
    arrived: int
    not_before: float = 0.0
    failed: bool = False
    attempt: Attempt[Record] | None = None  # while it runs


@dataclass
class Stay:
    """A partition while it is ours."""

    position: int = 0
    entries: list[Entry] = field(default_factory=list)


# Not KEY_IF_ANY: what has no key is taken together up to the next with one, so batches may be smaller.
GATHERED = (Ordering.KEY, Ordering.PARTITION, Ordering.UNORDERED)


class GatheringOfBatches(RuleBasedStateMachine):
    """Records that come, wait for their batch to fill, run, fail, and go with their partitions."""

    @initialize(
        ordering=st.sampled_from(GATHERED),
        size=st.integers(1, 4),
        fewer=st.integers(0, 3),
        linger=st.integers(1, 4),
        of_one_partition=st.booleans(),
    )
    def begin(self, ordering: Ordering, size: int, fewer: int, linger: int, of_one_partition: bool) -> None:
        self.ordering, self.size, self.linger, self.of_one_partition = ordering, size, linger, of_one_partition
        self.least = max(1, size - fewer)  # records that need not wait for more
        self.engine: Engine[Record] = Engine(ordering, levels=LEVELS)
        self.engine.let_batches_fill(self.least, linger, of_one_partition)
        self.now = 100
        self.stays: dict[TopicPartition, Stay] = {}
        self.running: list[list[Attempt[Record]]] = []
        self.handled: set[tuple[TopicPartition, int, int]] = set()
        for partition in PARTITIONS:
            self.assign(partition)

    # What happens

    @rule(partition=partitions)
    def assign(self, partition: TopicPartition) -> None:
        self.stays[partition] = Stay()
        self.engine.assign(partition, OffsetMap(0))

    @rule(partition=partitions)
    def revoke(self, partition: TopicPartition) -> None:
        self.stays.pop(partition, None)
        self.engine.revoke([partition])

    @rule(partition=partitions, keys=st.lists(st.sampled_from([b"a", b"b", None]), max_size=6))
    def receive(self, partition: TopicPartition, keys: list[bytes | None]) -> None:
        if stay := self.stays.get(partition):
            records = [Record(partition, stay.position + index, key) for index, key in enumerate(keys)]
            stay.position += len(records)
            stay.entries += [Entry(record, self.now) for record in records]
            self.engine.receive(partition, records, self.now)

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(one_in_ten=st.integers(1, 10))
    def stop_waiting(self, one_in_ten: int) -> None:
        if one_in_ten == 1:
            self.engine.let_no_batch_fill()
            self.linger = 0

    def batches(self, limit: int) -> Iterator[list[Attempt[Record]]]:
        while limit and (batch := self.engine.take_batch(self.size, self.now, self.of_one_partition)):
            limit -= 1
            yield batch

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        due, full = self.due(), self.full()
        batches = list(self.batches(limit))
        for batch in batches:
            self.start(batch)
        if len(batches) < limit:  # slots are free, so none waits that need not
            assert all(entry.attempt for entry in due)
            if self.ordering is Ordering.UNORDERED:
                assert all(sum(entry.attempt is None for entry in lane) < self.least for lane in full)
            else:
                assert all(lane[0].attempt for lane in full)

    def start(self, batch: list[Attempt[Record]]) -> None:
        assert 1 <= len(batch) <= self.size
        places = {self.place(attempt.record) for attempt in batch}
        assert len(places) == 1
        entries = [self.entry(attempt) for attempt in batch]
        if self.ordering is not Ordering.UNORDERED:
            lane = self.lanes()[places.pop()]
            assert not any(entry.attempt for entry in lane)  # never two batches at a time
            assert [id(entry) for entry in entries] == [id(entry) for entry in lane[: len(batch)]]
        for entry, attempt in zip(entries, batch, strict=True):
            assert entry.attempt is None
            assert entry.not_before <= self.now
            entry.attempt = attempt
        self.running.append(batch)

    @rule(data=st.data())
    def report_a_batch(self, data: st.DataObject) -> None:
        if not self.running:
            return
        # All is drawn first: where Hypothesis ends an example within a rule, the attempts of a batch would be lost.
        batch = self.running[data.draw(st.integers(0, len(self.running) - 1))]
        attempts = data.draw(st.permutations(batch))
        reports = [(data.draw(outcomes), data.draw(st.integers(0, 4))) for _ in attempts]
        self.running.remove(batch)
        for attempt, (outcome, delay) in zip(attempts, reports, strict=True):
            self.report(attempt, outcome, delay)

    def report(self, attempt: Attempt[Record], outcome: str, delay: int) -> None:
        stay = self.stays.get(attempt.partition)
        entry = next((entry for entry in stay.entries if entry.attempt is attempt), None) if stay else None
        if outcome == "done":
            assert self.engine.finish(attempt, self.now) == (entry is not None)
            if stay and entry:
                stay.entries.remove(entry)
            return
        at = self.now + (delay if outcome == "failed" else 0)
        error = OSError() if outcome == "failed" else None
        assert self.engine.retry(attempt, at, error, self.now) == (entry is not None)
        if entry:
            entry.attempt, entry.not_before = None, at
            entry.failed = entry.failed or outcome == "failed"

    # What must hold

    def place(self, record: Record) -> object:
        """Where records are gathered."""
        if self.ordering is Ordering.UNORDERED:
            return record.partition if self.of_one_partition else record.partition.level
        return (record.partition, record.raw_key) if self.ordering is Ordering.KEY else record.partition

    def lanes(self) -> dict[object, list[Entry]]:
        lanes: dict[object, list[Entry]] = {}
        for stay in self.stays.values():
            for entry in stay.entries:
                lanes.setdefault(self.place(entry.record), []).append(entry)
        return lanes

    def entry(self, attempt: Attempt[Record]) -> Entry:
        return next(entry for entry in self.stays[attempt.partition].entries if entry.record is attempt.record)

    def heads(self) -> list[Entry]:
        """Those that are next in their lane."""
        if self.ordering is Ordering.UNORDERED:
            return [entry for lane in self.lanes().values() for entry in lane if not entry.attempt]
        return [lane[0] for lane in self.lanes().values() if not any(entry.attempt for entry in lane)]

    def until(self, entry: Entry) -> float:
        """How long a head waits at the most."""
        return entry.not_before if entry.failed else entry.arrived + self.linger

    def due(self) -> list[Entry]:
        """Heads that have waited long enough, or failed before and whose time has come."""
        return [entry for entry in self.heads() if self.until(entry) <= self.now]

    def full(self) -> list[list[Entry]]:
        """Lanes that have enough for a batch, none of it tried before."""
        heads = {id(entry) for entry in self.heads()}
        lanes = []
        for lane in self.lanes().values():
            fresh = [entry for entry in lane if not entry.failed and not entry.attempt]
            if len(fresh) >= self.least and (self.ordering is Ordering.UNORDERED or id(fresh[0]) in heads):
                lanes.append(fresh)
        return lanes

    @invariant()
    def it_is_woken_before_anybody_has_waited_too_long(self) -> None:
        self.engine.take(0, self.now)
        wake = self.engine.next_wake()
        full = {id(entry) for lane in self.full() for entry in lane}
        times = [self.until(entry) for entry in self.heads() if id(entry) not in full]
        # One that was let go as its batch was full may run at once, though the others of the batch are gone by now.
        times = sorted(time for time in times if time > self.now)[sum(self.engine.ready) :]
        later = min(times, default=math.inf)
        assert self.now < (math.inf if wake is None else wake) <= later

    @invariant()
    def nothing_is_lost(self) -> None:
        entries = [entry for stay in self.stays.values() for entry in stay.entries]
        assert self.engine.work_remaining == len(entries)
        for level in range(LEVELS):
            assert self.engine.slots_taken[level] == sum(batch[0].level == level for batch in self.running)

    def teardown(self) -> None:
        """Whatever happened, from here on everything runs."""
        if not hasattr(self, "engine"):
            return
        for _ in range(200):
            if not any(stay.entries for stay in self.stays.values()):
                return
            while self.running:
                for attempt in self.running.pop():
                    self.report(attempt, "done", 0)
            self.now += 5
            self.take(4)
        raise AssertionError("Some records never run.")


GatheringOfBatches.TestCase.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)
test_batches_are_gathered_as_a_model_of_lists_says = GatheringOfBatches.TestCase

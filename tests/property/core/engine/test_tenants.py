"""Tenants against lists, whatever happens to records: who is next, what is counted, and who is forgotten."""

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import ALONE, Ordering
from headway.core.engine.ready_queue import ReadyQueue
from headway.core.engine.tenants import Tenants, Usage
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition

NAMES = ["a", "b", "c", "d"]
WEIGHTS = {"a": 2.0, "b": 0.5}
PARTITIONS = [TopicPartition("orders", partition=number) for number in range(3)]


@dataclass
class Record:
    """What the engine asks of a record."""

    offset: int
    raw_key: bytes
    tenant: str


class EngineWithTenants(RuleBasedStateMachine):
    """An engine with tenants, under everything that may happen to records: none is lost, and all time is counted."""

    @initialize(ordering=st.sampled_from(Ordering), share=st.sampled_from([0.25, 1.0]))
    def begin(self, ordering: Ordering, share: float) -> None:
        self.ordering = ordering
        self.engine: Engine[Record] = Engine(ordering, tenants=WEIGHTS, retry_share=share)
        self.engine.count_slots(self)
        self.now = 0.0
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.received: dict[TopicPartition, dict[int, Record]] = {each: {} for each in PARTITIONS}
        self.running: list[list[Attempt[Record]]] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        for partition in PARTITIONS:
            self.engine.assign(partition, OffsetMap(0))

    def usable_slots(self) -> int:
        return 8

    @rule(
        partition=st.sampled_from(PARTITIONS),
        records=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), min_size=1, max_size=6),
    )
    def receive(self, partition: TopicPartition, records: list[tuple[str, int]]) -> None:
        start = self.ends[partition]
        made = [Record(start + index, bytes([key]), name) for index, (name, key) in enumerate(records)]
        self.ends[partition] += len(made)
        self.received[partition] |= {record.offset: record for record in made}
        self.engine.receive(partition, made, self.now, tenants=[record.tenant for record in made])

    @rule(limit=st.integers(1, 5))
    def take(self, limit: int) -> None:
        free = max(0, 8 - len(self.running))
        for attempt in self.engine.take(min(limit, free), self.now) if free else ():
            self.begin_to_run([attempt])

    @rule(size=st.integers(1, 4), of_one=st.booleans())
    @precondition(lambda self: len(self.running) < 8)
    def take_batch(self, size: int, of_one: bool) -> None:
        if attempts := self.engine.take_batch(size, self.now, of_one):
            assert len(attempts) <= size
            assert (
                not of_one
                or self.ordering is not Ordering.UNORDERED
                or len({attempt.partition for attempt in attempts}) == 1
            )
            self.begin_to_run(attempts)

    def begin_to_run(self, attempts: list[Attempt[Record]]) -> None:
        for attempt in attempts:
            assert attempt.tenant == attempt.record.tenant
            assert attempt.record is self.received[attempt.partition][attempt.offset]
            assert all(attempt not in job for job in self.running)
        self.running.append(attempts)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans(), again_in=st.sampled_from([0.0, 1.0]))
    def end(self, data: st.DataObject, fails: bool, again_in: float) -> None:
        job = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        for attempt in job:
            self.seconds[attempt.tenant] += (self.now - attempt.started) / len(job)
            if fails:
                self.engine.retry(attempt, self.now + again_in, ValueError(), self.now)
            elif self.engine.finish(attempt, self.now):
                del self.received[attempt.partition][attempt.offset]

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(partition=st.sampled_from(PARTITIONS), retires=st.booleans())
    def lose(self, partition: TopicPartition, retires: bool) -> None:
        if retires:
            self.engine.retire([partition])
        self.engine.revoke([partition])
        self.engine.assign(partition, OffsetMap(self.ends[partition]))
        self.received[partition].clear()

    @invariant()
    def seconds_are_those_of_the_attempts(self) -> None:
        for name, seconds in self.engine.busiest_tenants(10).items():
            assert abs(self.seconds[name] - seconds) < 1e-3  # an attempt counts a microsecond at the least

    def teardown(self) -> None:
        """All that is here can run."""
        if not hasattr(self, "engine"):
            return
        for _ in range(1000):
            for job in self.running:
                for attempt in job:
                    if self.engine.finish(attempt, self.now):
                        del self.received[attempt.partition][attempt.offset]
            self.now += 1
            self.running = [[attempt] for attempt in self.engine.take(8, self.now)]
            if not self.running:
                break
        assert not any(self.received.values())


class QueueOfTenants(RuleBasedStateMachine):
    """The ready attempts of a level, and lists of what is ready of each tenant."""

    @initialize()
    def begin(self) -> None:
        self.tenants = Tenants(WEIGHTS, Usage())
        self.queue: ReadyQueue[int] = ReadyQueue(self.tenants)
        self.orders = 0
        self.ready: list[Attempt[int]] = []
        self.running: list[list[Attempt[int]]] = []
        self.assignments = {place: Assignment[int](place, OffsetMap(0), 1) for place in PARTITIONS}
        self.times: dict[str, float] = {}

    def attempt(self, place: TopicPartition, name: str) -> Attempt[int]:
        self.orders += 1
        attempt = Attempt(0, self.orders, 1, ALONE, self.assignments[place], float(self.orders), self.orders)
        attempt.tenant = name
        return attempt

    @rule(place=st.sampled_from(PARTITIONS), names=st.lists(st.sampled_from(NAMES), max_size=5))
    def arrive(self, place: TopicPartition, names: list[str]) -> None:
        attempts = [self.attempt(place, name) for name in names]
        self.queue.arrive(attempts)
        self.ready += attempts

    @rule(place=st.sampled_from(PARTITIONS), name=st.sampled_from(NAMES), failed=st.booleans())
    def release(self, place: TopicPartition, name: str, failed: bool) -> None:
        attempt = self.attempt(place, name)
        if failed:
            attempt = attempt.again(0.0, ValueError(), 0.0)
            attempt.tenant = name
        self.queue.release(attempt)
        self.ready.append(attempt)

    @precondition(lambda self: self.ready)
    @rule(only_fresh=st.booleans())
    def take(self, only_fresh: bool) -> None:
        of_one = [attempt for attempt in self.ready if not (only_fresh and attempt.failure)]
        if not of_one:
            return
        least = min(self.tenants.remembered[attempt.tenant].time for attempt in of_one)
        attempt = self.queue.take(0.0, only_fresh)
        assert attempt in of_one
        of_tenant = [each for each in of_one if each.tenant == attempt.tenant]
        assert bool(attempt.failure) == any(each.failure for each in of_tenant)
        same = [each for each in of_tenant if each.assignment is attempt.assignment and each.failure == attempt.failure]
        assert attempt is min(same, key=lambda each: each.order)
        self.run([attempt])
        account = self.tenants.remembered[attempt.tenant]
        paid = max(account.average, 1e-6) / account.weight
        assert account.time <= least + paid + 1e-9  # it had the least before it was charged

    @precondition(lambda self: self.ready)
    @rule(size=st.integers(1, 4), of_one=st.booleans(), only_fresh=st.booleans())
    def take_batch(self, size: int, of_one: bool, only_fresh: bool) -> None:
        if only_fresh and not self.queue.fresh.ready:
            return
        attempts = self.queue.take_batch(size, 0.0, only_fresh, of_one)
        assert len({bool(attempt.failure) for attempt in attempts}) == 1
        assert not of_one or len({attempt.assignment for attempt in attempts}) == 1
        alike = [
            attempt
            for attempt in self.ready
            if bool(attempt.failure) == bool(attempts[0].failure)
            and (not of_one or attempt.assignment is attempts[0].assignment)
        ]
        assert len(attempts) == min(size, len(alike))
        self.run(attempts)

    def run(self, attempts: list[Attempt[int]]) -> None:
        for attempt in attempts:
            self.ready.remove(attempt)
        self.running.append(attempts)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.001, 1.0, 60.0]))
    def end(self, data: st.DataObject, seconds: float) -> None:
        for attempt in self.running.pop(data.draw(st.integers(0, len(self.running) - 1))):
            self.tenants.end(attempt.tenant, seconds, attempt.charged)

    @rule(place=st.sampled_from(PARTITIONS))
    def drop(self, place: TopicPartition) -> None:
        self.assignments[place].end()
        self.queue.drop(self.assignments[place])
        self.ready = [attempt for attempt in self.ready if attempt.assignment is not self.assignments[place]]
        self.assignments[place] = Assignment(place, OffsetMap(0), 1)

    @rule()
    def look_for_the_oldest(self) -> None:
        oldest = min(self.ready, key=lambda attempt: attempt.order, default=None)
        assert self.queue.oldest() == (oldest.arrived if oldest else None)

    @invariant()
    def accounts_say_what_is_ready_and_runs(self) -> None:
        assert self.queue.ready == len(self.ready)
        running = [attempt for job in self.running for attempt in job]
        for name, account in self.tenants.remembered.items():
            assert account.ready == sum(attempt.tenant == name for attempt in self.ready)
            assert account.running == sum(attempt.tenant == name for attempt in running)
            assert account.owed <= 0
        assert {attempt.tenant for attempt in (*self.ready, *running)} <= self.tenants.remembered.keys()
        assert self.ready or running or not self.tenants.remembered

    @invariant()
    def no_time_goes_back(self) -> None:
        for name, account in self.tenants.remembered.items():
            assert account.time >= self.times.get(name, 0.0)
            self.times[name] = account.time


TestEngineWithTenants = EngineWithTenants.TestCase
TestEngineWithTenants.settings = settings(max_examples=settings().max_examples, stateful_step_count=40, deadline=None)
TestQueueOfTenants = QueueOfTenants.TestCase
TestQueueOfTenants.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=40, deadline=None)

"""Tenants against lists, under everything that may happen to records: who is next, what is counted, who is forgotten."""

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.work import Work
from headway.core.offsets.offset_map import OffsetMap
from headway.records import TopicPartition

NAMES = ["a", "b", "c", "d"]
WEIGHTS = {"a": 2.0, "b": 0.5}
PARTITIONS = [TopicPartition("orders", partition=number) for number in range(3)]


@dataclass
class Record:
    """What the engine asks of a record."""

    offset: int
    raw_key: bytes
    tenant: str


class TenantsOfLists(RuleBasedStateMachine):
    """An engine with tenants, under everything that may happen to records; a list knows what is ready."""

    @initialize(ordering=st.sampled_from(Ordering), share=st.sampled_from([0.25, 1.0]))
    def begin(self, ordering: Ordering, share: float) -> None:
        self.ordering = ordering
        self.engine: Engine[Record] = Engine(ordering, tenants=WEIGHTS, retry_share=share)
        self.engine.count_slots(lambda: 8)
        self.now = 0.0
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.received: dict[TopicPartition, dict[int, Record]] = {each: {} for each in PARTITIONS}
        self.running: list[list[Work[Record]]] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        for partition in PARTITIONS:
            self.engine.assign(partition, OffsetMap(0))

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
        for work in self.engine.take(min(limit, free), self.now) if free else ():
            self.begin_to_run([work])

    @rule(size=st.integers(1, 4), of_one=st.booleans())
    @precondition(lambda self: len(self.running) < 8)
    def take_batch(self, size: int, of_one: bool) -> None:
        if works := self.engine.take_batch(size, self.now, of_one):
            assert len(works) <= size
            assert not of_one or self.ordering is not Ordering.UNORDERED or len({work.partition for work in works}) == 1
            self.begin_to_run(works)

    def begin_to_run(self, works: list[Work[Record]]) -> None:
        for work in works:
            assert work.tenant == work.record.tenant
            assert work.record is self.received[work.partition][work.offset]
            assert all(work not in job for job in self.running)
        self.running.append(works)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans(), again_in=st.sampled_from([0.0, 1.0]))
    def end(self, data: st.DataObject, fails: bool, again_in: float) -> None:
        job = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        for work in job:
            self.seconds[work.tenant] += (self.now - work.started) / len(job)
            if fails:
                self.engine.retry(work, self.now + again_in, ValueError(), self.now)
            elif self.engine.finish(work, self.now):
                del self.received[work.partition][work.offset]

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

    @rule()
    def oldest_is_a_ready_one(self) -> None:
        queue = self.engine._levels[0]
        ready = [
            work for turns in (queue.fresh, queue.failed) for each in turns._tenants.values() for work in each.turns
        ]
        assert queue.oldest() == min((work.arrived for work in ready), default=None)

    @invariant()
    def the_tenant_that_used_least_is_next(self) -> None:
        queue = self.engine._levels[0]
        for turns in (queue.fresh, queue.failed):
            times = [each.account.time for each in turns._tenants.values() if each.turns.ready]
            assert turns.ready == sum(each.turns.ready for each in turns._tenants.values())
            if times:
                assert turns.first_time() == min(times)
            else:
                assert turns.first() is None

    @invariant()
    def each_account_says_what_is_ready_and_runs(self) -> None:
        accounts = self.engine._tenants[0]._accounts
        queue = self.engine._levels[0]
        for name, account in accounts.items():
            ready = [
                turns._tenants[name].turns.ready for turns in (queue.fresh, queue.failed) if name in turns._tenants
            ]
            assert account.ready == sum(ready)
            assert account.running == sum(work.tenant == name for job in self.running for work in job)
            assert account.owed <= 0
        assert sum(account.ready for account in accounts.values()) == queue.ready
        if not self.running and not queue.ready:
            assert not accounts

    @invariant()
    def seconds_are_those_of_the_works(self) -> None:
        for name, seconds in self.engine.busiest_tenants(10).items():
            assert abs(self.seconds[name] - seconds) < 1e-3  # a work counts a microsecond at the least

    def teardown(self) -> None:
        """All that is here can run."""
        if not hasattr(self, "engine"):
            return
        for _ in range(1000):
            for job in self.running:
                for work in job:
                    if self.engine.finish(work, self.now):
                        del self.received[work.partition][work.offset]
            self.now += 1
            self.running = [[work] for work in self.engine.take(8, self.now)]
            if not self.running:
                break
        assert not any(self.received.values())
        assert not self.engine._tenants[0].remembered


TestTenantsOfLists = TenantsOfLists.TestCase
TestTenantsOfLists.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

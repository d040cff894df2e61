"""Rates by tenant and by key against lists of starts: none too many, none kept waiting without need, none lost."""

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headway.core.engine.attempt import Attempt, Brought
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition
from tests.models.attempt_life import state_of

TENANTS = ["a", "b", "c"]
KEYS = [None, b"x", b"y"]
BURST = 0.05
SMALL = 1e-6


@dataclass(eq=False)
class Record:
    """What the engine asks of a record."""

    offset: int
    raw_key: bytes | None
    tenant: str
    not_after: float


class Starts:
    """The starts of one name, as a debt that the rate pays off."""

    def __init__(self) -> None:
        self.debt = 0.0
        self.at = 0.0

    def now(self, rate: float, now: float) -> float:
        self.debt, self.at = max(0.0, self.debt - rate * (now - self.at)), now
        return self.debt


class EngineWithRates(RuleBasedStateMachine):
    """An engine with rates, under everything that may happen to records."""

    @initialize(
        ordering=st.sampled_from(Ordering),
        levels=st.integers(1, 2),
        per_tenant=st.sampled_from([None, 0.5, 4.0, 100.0]),
        per_key=st.sampled_from([None, 1.0, 20.0]),
        in_turns=st.booleans(),
        by_name=st.booleans(),
    )
    def begin(
        self,
        ordering: Ordering,
        levels: int,
        per_tenant: float | None,
        per_key: float | None,
        in_turns: bool,
        by_name: bool,
    ) -> None:
        if per_tenant is None and per_key is None:
            per_tenant = 2.0
        self.ordering, self.levels, self.per_tenant, self.per_key = ordering, levels, per_tenant, per_key
        of_tenants: dict[str, float | None] = dict.fromkeys(TENANTS, per_tenant)
        if by_name and per_tenant is not None:
            of_tenants |= {"b": per_tenant * 8, "c": None}
        self.of_tenants = of_tenants
        asked = None if per_tenant is None else of_tenants.__getitem__ if by_name else per_tenant
        tenants: dict[str, float] | None = {} if in_turns or per_tenant is not None else None
        self.has_tenants = tenants is not None
        self.engine: Engine[Record] = Engine(
            ordering, levels=levels, tenants=tenants, tenant_rate=asked, key_rate=per_key
        )
        assert self.engine.limits
        self.limits = self.engine.limits
        self.now = 1000.0
        self.share = 1.0
        self.partitions = [
            TopicPartition("orders", partition=partition, level=level)
            for level in range(levels)
            for partition in (0, 1)
        ]
        self.logs: dict[TopicPartition, list[Record]] = {each: [] for each in self.partitions}
        self.done: dict[TopicPartition, set[int]] = {each: set() for each in self.partitions}
        self.starts: defaultdict[Hashable, Starts] = defaultdict(Starts)
        self.running: list[list[Attempt[Record]]] = []
        self.batched = False
        self.held: set[TopicPartition] = set()
        for partition in self.partitions:
            self.engine.assign(partition, OffsetMap(0))

    @rule(
        which=st.integers(0, 3),
        records=st.lists(
            st.tuples(st.sampled_from(TENANTS), st.sampled_from(KEYS), st.sampled_from([math.inf, math.inf, 0.0, 3.0])),
            min_size=1,
            max_size=8,
        ),
    )
    def receive(self, which: int, records: list[tuple[str, bytes | None, float]]) -> None:
        partition = self.partitions[which % len(self.partitions)]
        log = self.logs[partition]
        made = [
            Record(len(log) + index, key, tenant, self.now + after)
            for index, (tenant, key, after) in enumerate(records)
        ]
        log += made
        tenants = [record.tenant for record in made] if self.has_tenants else ()
        brought = {each: Brought(not_after=each.not_after) for each in made if each.not_after < math.inf}
        self.engine.receive(partition, made, self.now, brought=brought, tenants=tenants)

    @rule(seconds=st.sampled_from([0.0, 0.004, 0.25, 1.0, 7.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(limit=st.integers(1, 6))
    def take(self, limit: int) -> None:
        for attempt in self.engine.take(limit, self.now):
            self.note_start([attempt])

    @rule(size=st.integers(1, 4))
    def take_batch(self, size: int) -> None:
        self.batched = self.batched or size > 1
        if attempts := self.engine.take_batch(size, self.now):
            self.note_start(attempts)

    @rule()
    def take_all_and_wait_for_the_next(self) -> None:
        """No attempt waits whose names have all started less than they may; and the next time is no time too late."""
        while attempts := self.engine.take(100, self.now):
            for attempt in attempts:
                self.note_start([attempt])
        if self.per_tenant is None or self.per_key is None:
            for attempt in self.waiting_heads():
                names = self.names_of(attempt)
                assert names
                assert all(self.starts[name].now(rate, self.now) > BURST * rate - SMALL for name, rate in names.items())
        if self.share and self.waiting_heads():
            wake = self.engine.next_wake()
            assert wake is not None
            assert wake >= self.now
            self.now = wake
            taken = self.engine.take(100, self.now)
            assert taken or self.per_tenant is not None  # an earlier time than needed, if a batch has made a debt since
            for attempt in taken:
                self.note_start([attempt])

    def waiting_heads(self) -> list[Attempt[Record]]:
        """Return the attempts that wait for a permit, as the gates have them."""
        gates = [gate for gate in (self.limits.keys, self.limits.tenants) if gate]
        return [attempt for gate in gates for attempt in gate.waiting()]

    def names_of(self, attempt: Attempt[Record]) -> dict[Hashable, float]:
        """Return the names by which a start counts, and their rates."""
        names: dict[Hashable, float] = {}
        if self.per_key is not None and attempt.record.raw_key is not None:
            names[(attempt.partition.topic, attempt.level, attempt.record.raw_key)] = self.per_key
        if (rate := self.of_tenants[attempt.record.tenant]) is not None:
            names[attempt.record.tenant] = rate * self.share
        return names

    def note_start(self, attempts: list[Attempt[Record]]) -> None:
        for attempt in attempts:
            if attempt.not_after <= self.now:
                continue
            for name, rate in self.names_of(attempt).items():
                starts = self.starts[name]
                debt = starts.now(rate, self.now)
                # A permit that was given before the share shrank is still good, as is one for each level.
                full = self.of_tenants[name] or rate if isinstance(name, str) else rate
                if not self.batched:
                    assert debt <= self.levels * (1 + BURST * full) - 1 + SMALL
                starts.debt = debt + 1
        self.running.append(attempts)

    @rule(index=st.integers(0, 20), fails=st.booleans(), after=st.sampled_from([0.0, 0.5]))
    def end(self, index: int, fails: bool, after: float) -> None:
        if not self.running:
            return
        for attempt in self.running.pop(index % len(self.running)):
            if fails:
                self.engine.retry(attempt, self.now + after, ValueError(), self.now)
            elif self.engine.finish(attempt, self.now):
                assert attempt.offset not in self.done[attempt.partition]
                self.done[attempt.partition].add(attempt.offset)

    @rule(which=st.integers(0, 3))
    def hold_or_release(self, which: int) -> None:
        partition = self.partitions[which % len(self.partitions)]
        if partition in self.held:
            self.held.remove(partition)
            self.engine.release([partition], self.now)
        else:
            self.held.add(partition)
            self.engine.hold([partition])

    @rule(which=st.integers(0, 3))
    def lose_and_begin_again(self, which: int) -> None:
        partition = self.partitions[which % len(self.partitions)]
        self.engine.revoke([partition])
        self.held.discard(partition)
        self.logs[partition], self.done[partition] = [], set()
        self.engine.assign(partition, OffsetMap(0))

    @rule(share=st.sampled_from([0.0, 0.5, 1.0]))
    def share_the_rate(self, share: float) -> None:
        for name, starts in self.starts.items():
            if isinstance(name, str) and (rate := self.of_tenants[name]) is not None:
                starts.now(rate * self.share, self.now)
        self.share = share
        self.limits.share(share, self.now)

    def teardown(self) -> None:
        """All records can be done in the end, each once, and no name is remembered then."""
        if not hasattr(self, "engine"):
            return
        self.share_the_rate(1.0)
        self.engine.release(self.held, self.now)
        self.held.clear()
        for _ in range(10_000):
            while attempts := self.engine.take(100, self.now):
                for attempt in attempts:
                    self.note_start([attempt])
            while self.running:
                self.end(0, False, 0.0)
            if not self.engine.work_remaining:
                break
            wake = self.engine.next_wake()
            if wake is None or wake <= self.now:
                assert any(self.engine.ready), "nothing can start, and nothing says when"
            else:
                self.now = wake
        for partition, log in self.logs.items():
            assert self.done[partition] == {record.offset for record in log}
        self.now += 1000
        self.engine.take(1, self.now)
        for gate in (self.limits.keys, self.limits.tenants):
            assert gate is None or gate.remembered == 0
        assert all(state_of(attempt) is not AttemptState.WAITING for attempt in self.waiting_heads())


EngineWithRates.TestCase.settings = settings(max_examples=3 * settings().max_examples // 2, stateful_step_count=40)
TestEngineWithRates = EngineWithRates.TestCase

"""What becomes of each record, whatever rules, failures, seeks, rebalances and restarts come between.

The model knows of each record what has happened to it since it was last not done: it was handled, became a dead letter,
or was moved. A record that is done without any of these was dropped by a rule that chose it, or was skipped for a newer
record of its key. None has two fates, and in the end each is done.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.levels.naming import level_topic
from headway.core.offsets.offset_map import OffsetMap, decode_with_trailer
from headway.core.offsets.trailer import Tried
from headway.core.retry import Move, Retries, fixed_backoff
from headway.core.rules.rule import (
    Demote,
    Drop,
    ForceCircuit,
    Hold,
    LimitConcurrency,
    LimitRate,
    MakeDeadLetter,
    Release,
    RetryAs,
    Rule,
)
from headway.core.rules.rule_book import RuleBook
from headway.errors import FatalError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.rules_gate import RulesGate
from headway.execution.gates.skipped_records import SkippedRecords
from headway.execution.jobs import RecordAttempt
from headway.parallel.held_failures import HeldFailures
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

PARTITIONS = [TopicPartition("orders", partition=number, level=level) for level in range(2) for number in range(2)]
SLOTS = 4
FAR = 1e12

Place = tuple[TopicPartition, int]

partitions = st.sampled_from(PARTITIONS)
WHERE = st.sampled_from(["", "key = a", "key = b", "header.tenant = t", "partition = 1", "not key = a", "attempts > 0"])
ACTIONS = st.sampled_from(
    [
        Hold(),
        Hold(lets_pass=True),
        Drop(),
        MakeDeadLetter(),
        LimitConcurrency(1),
        LimitRate(1e9),
        RetryAs(0),
        RetryAs(0, 3),
        Release(),
        Demote(0),
    ]
)


@dataclass(frozen=True)
class Record:
    topic_partition: TopicPartition
    offset: int
    raw_key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int = -1

    @property
    def kafka_topic(self) -> str:
        return level_topic(self.topic_partition.topic, self.topic_partition.level)


class Fates(RuleBasedStateMachine):
    @initialize(ordering=st.sampled_from(Ordering), latest_only=st.booleans(), holds=st.booleans())
    def begin(self, ordering: Ordering, latest_only: bool, holds: bool) -> None:
        self.ordering = ordering
        self.latest_only = latest_only and ordering in (Ordering.KEY, Ordering.KEY_IF_ANY)
        self.retries = Retries(fixed_backoff(0), max_attempts=2, then="hold" if holds else "dead_letter", share=1)
        self.in_force: list[Rule] = []
        self.logs: dict[TopicPartition, list[Record]] = {partition: [] for partition in PARTITIONS}
        self.committed: dict[TopicPartition, tuple[OffsetMap, Mapping[int, Tried]]] = {}
        self.committed |= {partition: (OffsetMap(0), {}) for partition in PARTITIONS}
        self.fates: Counter[Place] = Counter()
        self.may_be_dropped = set[Place]()
        self.passed_over = set[Place]()  # not done, but before an offset that was sought
        self.wakes: list[Wakeup] = []
        self.start_member()

    # A member

    def start_member(self) -> None:
        self.running: list[RecordAttempt] = []
        self.engine = Engine[Any](self.ordering, levels=2, latest_only=self.latest_only)
        circuit = CircuitGate(CircuitBreaker(least=1000))
        self.gate = RulesGate(self.engine, has_dead_letters=True, circuit=circuit)
        self.gate.share(1.0, 0.0, {})
        self.wakes.append(Wakeup())
        gates = [circuit, self.gate, SkippedRecords(self.engine)]
        self.dispatch = Dispatch(self.engine, self.retries, SLOTS, self.wakes[-1], gates)
        self.held = HeldFailures(self.dispatch, circuit)
        self.dispatch.add(self.held)
        self.dispatch.begin(ExecutorStub(self.start), letters=Letters(self), moves=Moves(self))
        self.use(self.in_force)
        for partition in PARTITIONS:
            self.resume(partition)

    def resume(self, partition: TopicPartition) -> None:
        """Go on from the last commit: what it does not have as done has no fate any more."""
        done, tried = self.committed[partition]
        for record in self.logs[partition]:
            if record.offset >= done.offset and not any(record.offset in run for run in done.complete):
                self.forget(partition, record.offset)
        with self.dispatch.lock:
            self.engine.assign(partition, done, tried=tried)
            self.engine.receive(partition, self.logs[partition][done.offset :], 0.0)
        self.dispatch.feed()

    def forget(self, partition: TopicPartition, offset: int) -> None:
        self.fates.pop((partition, offset), None)
        self.passed_over.discard((partition, offset))

    def start(self, jobs: Any) -> None:
        for [attempt] in jobs:
            for each in self.matching(attempt):
                assert not isinstance(each.action, Hold | Drop | MakeDeadLetter), each
                assert not isinstance(each.action, Demote) or attempt.level == 0
            self.running.append(attempt)

    def matching(self, attempt: RecordAttempt) -> list[Rule]:
        values: Mapping[str, Any] = {
            "key": attempt.record.raw_key,
            "header.tenant": dict(attempt.record.headers).get("tenant"),
            "partition": attempt.partition.partition,
            "attempts": attempt.number - 1,
        }
        return [each for each in self.in_force if each.selector is None or each.selector.matches(values.get)]

    def give_fate(self, attempt: RecordAttempt) -> None:
        if attempt.assignment.current:
            self.fates[attempt.partition, attempt.offset] += 1

    # What happens

    @rule(partition=partitions, keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), max_size=6), has=st.booleans())
    def receive(self, partition: TopicPartition, keys: list[bytes | None], has: bool) -> None:
        headers = (("tenant", b"t"),) if has else ()
        log = self.logs[partition]
        batch = [Record(partition, len(log) + index, key, headers) for index, key in enumerate(keys)]
        log += batch
        self.note_what_may_be_dropped()
        with self.dispatch.lock:
            self.engine.receive(partition, batch, 0.0)
        self.dispatch.feed()

    @rule(rules=st.lists(st.tuples(WHERE, ACTIONS), max_size=4), keeps_circuit_closed=st.booleans())
    def change_rules(self, rules: list[tuple[str, Any]], keeps_circuit_closed: bool) -> None:
        made = [Rule(str(number), "g", action, where) for number, (where, action) in enumerate(rules)]
        self.use([*made, Rule("circuit", "g", ForceCircuit(is_open=False))] if keeps_circuit_closed else made)

    def use(self, rules: list[Rule]) -> None:
        with self.dispatch.lock:
            self.in_force = rules
            self.gate.use(RuleBook(rules), 0.0)
        self.note_what_may_be_dropped()
        self.dispatch.feed()

    def note_what_may_be_dropped(self) -> None:
        if any(isinstance(each.action, Drop) for each in self.in_force):
            self.may_be_dropped |= {(partition, each.offset) for partition, log in self.logs.items() for each in log}

    @rule(data=st.data(), error=st.sampled_from([None, None, OSError(), FatalError()]))
    def end_one(self, data: st.DataObject, error: BaseException | None) -> None:
        if self.running:
            # Hypothesis keeps weak references to what it draws, and mypyc's classes do not survive these.
            attempt = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            if error:
                job = self.dispatch.complete((attempt,), error)
            else:
                self.give_fate(attempt)
                job = self.dispatch.done(attempt)
            self.start([job] if job else [])
        self.dispatch.feed()

    @rule(data=st.data())
    def return_one_untried(self, data: st.DataObject) -> None:
        if self.running:
            self.dispatch.untried(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))))
        self.dispatch.feed()

    @rule(partition=partitions, pauses=st.booleans())
    def pause(self, partition: TopicPartition, pauses: bool) -> None:
        with self.dispatch.lock:
            self.engine.hold([partition]) if pauses else self.engine.release([partition], FAR)
        self.dispatch.feed()

    @rule()
    def commit(self) -> None:
        with self.dispatch.lock:
            tick = self.engine.tick()
            self.engine.committed(tick)
        for partition, commit in tick.commits.items():
            done, trailer = decode_with_trailer(commit.metadata, commit.offset)
            self.committed[partition] = done, trailer.tried if trailer else {}

    @rule()
    def restart(self) -> None:
        self.start_member()

    @rule(partition=partitions)
    def lose_and_get_back(self, partition: TopicPartition) -> None:
        with self.dispatch.lock:
            self.engine.revoke([partition])
        self.resume(partition)

    @rule(partition=partitions, data=st.data())
    def seek(self, partition: TopicPartition, data: st.DataObject) -> None:
        log = self.logs[partition]
        offset = data.draw(st.integers(0, len(log)))
        with self.dispatch.lock:
            before = range(self.engine.committable(partition), offset)
            self.passed_over |= {(partition, each) for each in before if not self.fates[partition, each]}
            self.engine.assign(partition, OffsetMap(offset), moved=True)
        for record in log[offset:]:
            self.forget(partition, record.offset)
        self.commit()
        with self.dispatch.lock:
            self.engine.receive(partition, log[offset:], 0.0)
        self.dispatch.feed()

    @invariant()
    def no_slot_is_lost_and_no_record_has_two_fates(self) -> None:
        if hasattr(self, "dispatch"):
            assert self.dispatch.metrics().running == len(self.running)
            assert all(count <= 1 for count in self.fates.values())

    def teardown(self) -> None:
        if not hasattr(self, "dispatch"):
            return
        self.use([])
        with self.dispatch.lock:
            self.engine.release(PARTITIONS, FAR)
        rounds = 0
        while self.dispatch.work_remaining or self.running:
            with self.dispatch.lock:
                self.engine.release_kept(self.engine.kept(), 0.0)
            self.dispatch.feed()
            for attempt in self.running[:]:
                self.running.remove(attempt)
                self.give_fate(attempt)
                job = self.dispatch.done(attempt)
                self.start([job] if job else [])
            rounds += 1
            assert rounds < 1000, "records wait forever"
        for wake in self.wakes:
            wake.close()
        for partition, log in self.logs.items():
            assert self.engine.committable(partition) == len(log)
            newest = {each.raw_key: each.offset for each in log}
            for record in log:
                place = partition, record.offset
                is_skippable = self.latest_only and record.raw_key is not None
                is_skippable &= record.offset < newest[record.raw_key]
                may_have_none = place in self.may_be_dropped or place in self.passed_over or is_skippable
                assert self.fates[place] == 1 or (self.fates[place] == 0 and may_have_none), record


class Letters:
    """Stores dead letters at once."""

    def __init__(self, fates: Fates) -> None:
        self._fates = fates

    def send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        self._fates.give_fate(attempt)
        self._fates.dispatch.stored(attempt)


class Moves:
    """Moves records at once."""

    def __init__(self, fates: Fates) -> None:
        self._fates = fates

    def send(self, attempt: RecordAttempt, move: Move) -> None:
        self._fates.give_fate(attempt)
        self._fates.dispatch.stored(attempt)


Fates.TestCase.settings = settings(max_examples=settings().max_examples, stateful_step_count=40)
test_each_record_has_one_fate = Fates.TestCase


@pytest.mark.slow
def test_each_record_has_one_fate_in_long_histories() -> None:
    run_state_machine_as_test(Fates, settings=settings(max_examples=100, stateful_step_count=200, deadline=None))

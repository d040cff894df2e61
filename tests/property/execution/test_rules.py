"""Rules that change while records arrive, start and end, against what each record may do."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.core.rules.rule import Drop, Hold, LimitConcurrency, LimitRate, MakeDeadLetter, RetryAs, Rule
from headway.core.rules.rule_book import RuleBook
from headway.execution.dispatch import Dispatch
from headway.execution.gates.rules_gate import RulesGate
from headway.execution.jobs import RecordAttempt
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

PARTITIONS = [TopicPartition("orders", partition=number) for number in range(2)]
SLOTS = 4

WHERE = st.sampled_from(["", "key = a", "key = b", "header.tenant = t", "partition = 1", "not key = a", "attempts > 0"])
ACTIONS = st.sampled_from(
    [
        Hold(),
        Hold(lets_pass=True),
        Drop(),
        MakeDeadLetter(),
        LimitConcurrency(1),
        LimitConcurrency(2),
        LimitRate(1e9),
        RetryAs(0),
    ]
)


@dataclass(frozen=True)
class Record:
    topic_partition: TopicPartition
    offset: int
    raw_key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int = -1


class RulesOfAGroup(RuleBasedStateMachine):
    @initialize(ordering=st.sampled_from(Ordering), has_dead_letters=st.booleans())
    def begin(self, ordering: Ordering, has_dead_letters: bool) -> None:
        self.engine = Engine[Any](ordering)
        self.gate = RulesGate(self.engine, has_dead_letters=has_dead_letters)
        self.gate.share(1.0, 0.0, {})
        self.has_dead_letters = has_dead_letters
        self.wake = Wakeup()
        self.running: list[RecordAttempt] = []
        self.in_force: dict[str, Rule] = {}
        self.records: dict[tuple[TopicPartition, int], Record] = {}
        self.fates: Counter[tuple[TopicPartition, int]] = Counter()
        self.next = dict.fromkeys(PARTITIONS, 0)
        self.dispatch = Dispatch(self.engine, Retries(fixed_backoff(0)), SLOTS, self.wake)
        self.dispatch.begin(ExecutorStub(self.start), letters=self)
        for partition in PARTITIONS:
            self.engine.assign(partition, OffsetMap(0))

    def start(self, jobs: Any) -> None:
        for [attempt] in jobs:
            self.check_start(attempt)
            self.running.append(attempt)

    def send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        """Store a dead letter, as the dispatch asks."""
        self.fates[attempt.partition, attempt.offset] += 1
        self.dispatch.stored(attempt)

    def check_start(self, attempt: RecordAttempt) -> None:
        for rule_ in self.matching(attempt):
            assert not isinstance(rule_.action, Hold | Drop | MakeDeadLetter), rule_
            if isinstance(rule_.action, LimitConcurrency) and self.limits_since.get(rule_.id) is not None:
                same = [each for each in self.running if each in self.counted.get(rule_.id, ())]
                assert len(same) < rule_.action.most
                self.counted.setdefault(rule_.id, set()).add(attempt)

    def matching(self, attempt: RecordAttempt) -> list[Rule]:
        values: Mapping[str, Any] = {
            "key": attempt.record.raw_key,
            "header.tenant": dict(attempt.record.headers).get("tenant"),
            "partition": attempt.partition.partition,
            "attempts": attempt.number - 1,
        }
        return [each for each in self.in_force.values() if each.selector is None or each.selector.matches(values.get)]

    @rule(
        partition=st.sampled_from(PARTITIONS),
        keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), max_size=6),
        tenant=st.booleans(),
    )
    def receive(self, partition: TopicPartition, keys: list[bytes | None], tenant: bool) -> None:
        headers = (("tenant", b"t"),) if tenant else ()
        first = self.next[partition]
        batch = [Record(partition, first + index, key, headers) for index, key in enumerate(keys)]
        self.next[partition] += len(batch)
        self.records |= {(partition, each.offset): each for each in batch}
        with self.dispatch.lock:
            self.engine.receive(partition, batch, 0.0)
        self.dispatch.feed()

    @rule(rules=st.lists(st.tuples(WHERE, ACTIONS), max_size=4))
    def change_rules(self, rules: list[tuple[str, Any]]) -> None:
        self.use([Rule(str(number), "g", action, where) for number, (where, action) in enumerate(rules)])

    def use(self, rules: list[Rule]) -> None:
        with self.dispatch.lock:
            self.in_force = {each.id: each for each in rules}
            self.counted: dict[str, set[RecordAttempt]] = {}
            # What ran when a limit was made is not counted, so the limit is checked only for what starts under it.
            self.limits_since = {each.id: True for each in rules if not self.running}
            self.gate.use(RuleBook(rules), 0.0)
            self.dispatch.add(self.gate)
        self.dispatch.feed()

    @rule(data=st.data(), fails=st.booleans())
    def end_one(self, data: st.DataObject, fails: bool) -> None:
        if self.running:
            # Hypothesis keeps weak references to what it draws, and mypyc's classes do not survive these.
            attempt = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            if fails:
                job = self.dispatch.complete((attempt,), OSError())
            else:
                self.fates[attempt.partition, attempt.offset] += 1
                job = self.dispatch.done(attempt)
            self.start([job] if job else [])
        self.dispatch.feed()

    @rule(partition=st.sampled_from(PARTITIONS), pauses=st.booleans())
    def pause(self, partition: TopicPartition, pauses: bool) -> None:
        with self.dispatch.lock:
            self.engine.hold([partition]) if pauses else self.engine.release([partition], 1e9)
        self.dispatch.feed()

    @invariant()
    def no_slot_is_lost(self) -> None:
        if hasattr(self, "dispatch"):
            assert self.dispatch.metrics().running == len(self.running)
            assert len(self.running) <= SLOTS

    def teardown(self) -> None:
        """Without rules and pauses, every record ends, and no record has ended twice."""
        if not hasattr(self, "dispatch"):
            return
        with self.dispatch.lock:
            self.engine.release(PARTITIONS, 1e9)
        self.use([])
        while self.running:
            attempt = self.running.pop()
            self.fates[attempt.partition, attempt.offset] += 1
            job = self.dispatch.done(attempt)
            self.start([job] if job else [])
            self.dispatch.feed()
        self.wake.close()
        assert self.dispatch.work_remaining == 0
        ended = self.dispatch.metrics()
        assert all(count == 1 for count in self.fates.values())
        assert len(self.fates) + self.gate.metrics()["dropped"] == len(self.records) == ended.done
        assert self.gate.metrics()["held"] == 0


RulesOfAGroup.TestCase.settings = settings(max_examples=settings().max_examples, stateful_step_count=40)
test_each_record_meets_the_rules_and_ends_once = RulesOfAGroup.TestCase

"""Rules for a member as a whole, and rules that move records: circuits, tenants, levels."""

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Move, Retries, fixed_backoff
from headway.core.rules.rule import Action, Demote, ForceCircuit, Rule, SetWeight, read_rule
from headway.core.rules.rule_book import RuleBook
from headway.errors import ConfigError, UnreadableError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.rules_gate import RulesGate
from headway.execution.jobs import RecordAttempt
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

ORDERS = [TopicPartition("orders", partition=0, level=level) for level in range(2)]


class World:
    """A dispatch of two levels with a circuit breaker, at a time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slots: int = 10, **engine: Any) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.engine = Engine[Any](Ordering.UNORDERED, levels=2, **engine)
        self.circuit = CircuitGate(CircuitBreaker(least=2, failing=1.0))
        self.gate = RulesGate(self.engine, has_dead_letters=True, circuit=self.circuit)
        self.wake = Wakeup()
        self.dispatch = Dispatch(self.engine, Retries(fixed_backoff(0)), slots, self.wake, [self.circuit, self.gate])
        self.running: list[RecordAttempt] = []
        self.moved: list[tuple[int, Move]] = []
        self.dispatch.begin(ExecutorStub(self._start), moves=self)
        for partition in ORDERS:
            self.engine.assign(partition, OffsetMap(0))

    def _start(self, jobs: Any) -> None:
        self.running += [attempt for [attempt] in jobs]

    def send(self, attempt: RecordAttempt, move: Move) -> None:
        """Move a record, as the dispatch asks."""
        self.moved.append((attempt.offset, move))
        self.dispatch.stored(attempt)

    def receive(self, count: int, level: int = 0, topic: str = "orders-{}", **more: Any) -> None:
        records = [
            SimpleNamespace(offset=offset, raw_key=b"%d" % offset, headers=(), kafka_topic=topic.format(level))
            for offset in range(count)
        ]
        self.engine.receive(ORDERS[level], records, self.now, **more)
        self.dispatch.feed()

    def use(self, *rules: tuple[Action, str]) -> None:
        with self.dispatch.lock:
            made = [Rule(str(number), "g", action, where) for number, (action, where) in enumerate(rules)]
            self.gate.use(RuleBook(made), self.now)
        self.dispatch.feed()

    def end(self, error: BaseException | None = None) -> None:
        job = self.dispatch.complete((self.running.pop(0),), error)
        self._start([job] if job else [])
        self.dispatch.feed()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(monkeypatch)
    yield world
    world.wake.close()


def test_a_rule_keeps_the_circuit_open_until_it_ends_and_then_attempts_decide(world: World) -> None:
    world.use((ForceCircuit(is_open=True), ""))
    world.receive(20)
    assert world.running == []
    for _ in range(5):
        world.now += 1
        world.dispatch.feed()
        assert len(world.running) == 1
        world.end()
    assert world.dispatch.metrics().circuit_open
    world.use()
    while world.dispatch.metrics().circuit_open:
        world.now += 1
        world.dispatch.feed()
        world.end()
    world.dispatch.feed()
    assert len(world.running) == 10


def test_a_rule_keeps_the_circuit_closed_whatever_fails(world: World) -> None:
    world.receive(10)
    for _ in range(5):
        world.end(OSError())
    assert world.dispatch.metrics().circuit_open
    world.use((ForceCircuit(is_open=False), ""))
    for _ in range(20):
        assert not world.dispatch.metrics().circuit_open
        world.end(OSError())


def test_a_rule_changes_the_weight_of_tenants_that_wait_already(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, slots=1, tenants={})
    world.receive(400, tenants=["big" if offset % 2 else "small" for offset in range(400)])
    world.use((SetWeight(4.0), "tenant = big"))
    started = Counter[str]()
    for _ in range(100):
        [attempt] = world.running
        started[attempt.tenant] += 1
        world.now += 1
        world.end()
    assert 75 <= started["big"] <= 85
    world.use((SetWeight(1.0), "tenant in (big, small)"))
    started.clear()
    for _ in range(100):
        [attempt] = world.running
        started[attempt.tenant] += 1
        world.now += 1
        world.end()
    assert 45 <= started["big"] <= 55
    world.wake.close()


def test_a_record_of_a_higher_level_is_moved_to_the_level_that_a_rule_names(world: World) -> None:
    world.use((Demote(0), "offset < 2"))
    world.receive(3, level=1)
    world.receive(1, level=0)
    assert [(offset, move.topic) for offset, move in world.moved] == [(0, "orders-0"), (1, "orders-0")]
    assert sorted((each.level, each.offset) for each in world.running) == [(0, 0), (1, 2)]


def test_a_topic_that_has_its_level_from_a_mapping_is_not_demoted(world: World) -> None:
    world.use((Demote(0), ""))
    world.receive(3, level=1, topic="urgent")
    assert world.moved == []
    assert len(world.running) == 3


@pytest.mark.parametrize(
    ("action", "where"),
    [
        (SetWeight(2.0), ""),
        (SetWeight(2.0), "key = a"),
        (SetWeight(2.0), "tenant = acme and key = a"),
        (ForceCircuit(is_open=True), "tenant = acme"),
    ],
)
def test_a_selector_that_an_action_cannot_use_is_refused(action: Action, where: str) -> None:
    rule = Rule("r", "g", action, where)
    with pytest.raises(ConfigError, match="'r'"):
        rule.check()
    with pytest.raises(UnreadableError):
        read_rule(rule.key, rule.encode())

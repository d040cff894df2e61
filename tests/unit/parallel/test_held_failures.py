"""Records that have failed for good and are held in their place: when they start again, and when they give way."""

import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.suspects import died
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.core.rules.rule import Release, Rule
from headway.core.rules.rule_book import RuleBook
from headway.errors import ConfigError, FatalError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.rules_gate import RulesGate
from headway.execution.jobs import RecordAttempt
from headway.parallel.held_failures import HeldFailures
from headway.parallel.options import ParallelOptions
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

ORDERS = TopicPartition("orders", partition=0)


class Record:
    def __init__(self, offset: int, key: bytes, host: bytes = b"") -> None:
        self.offset, self.raw_key, self.headers, self.timestamp = offset, key, [("host", host)], -1

    def __repr__(self) -> str:
        return f"Record({self.offset})"


class World:
    """A dispatch that holds what has failed for good, and the dead letters that it stores."""

    def __init__(self, *gates: Any, max_attempts: int = 2, slots: int = 10_000, **engine: Any) -> None:
        self.engine = Engine[Any](Ordering.KEY, **engine)
        self.wake = Wakeup()
        retries = Retries(fixed_backoff(0), max_attempts=max_attempts, then="hold", share=1)
        self.dispatch = Dispatch(self.engine, retries, slots, self.wake, gates)
        self.held = HeldFailures(self.dispatch, gates[0] if gates else None)
        self.dispatch.add(self.held)
        self.running: dict[int, RecordAttempt] = {}
        self.letters: list[int] = []
        self.dispatch.begin(ExecutorStub(self._start), letters=self)
        self.engine.assign(ORDERS, OffsetMap(0))

    def _start(self, jobs: Any) -> None:
        self.running |= {attempt.offset: attempt for [attempt] in jobs}

    def send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        """Store a dead letter, as the dispatch asks."""
        self.letters.append(attempt.offset)
        self.dispatch.stored(attempt)

    def receive(self, *records: Record) -> None:
        with self.dispatch.lock:
            self.engine.receive(ORDERS, records, 0.0)
        self.dispatch.feed()

    def end(self, offset: int, error: BaseException | None = None) -> None:
        job = self.dispatch.complete((self.running.pop(offset),), error)
        self._start([job] if job else [])
        self.dispatch.feed()

    def fail_for_good(self, *offsets: int, error: BaseException | None = None) -> None:
        for offset in offsets:
            while offset in self.running:
                self.end(offset, error or OSError())

    def look(self) -> None:
        self.held.look(time.monotonic() + 1000)  # it is time, whenever it has looked last
        self.dispatch.feed()

    @property
    def held_failures(self) -> int:
        return self.dispatch.metrics().held_failures

    def release(self, where: str = "") -> None:
        gate = RulesGate(self.engine, has_dead_letters=True)
        with self.dispatch.lock:
            gate.use(RuleBook([Rule("r", "g", Release(), where, since=1)]), time.monotonic())
        self.dispatch.feed()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "headway.parallel.held_failures"]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.wake.close()


def records(*keys: bytes) -> list[Record]:
    return [Record(offset, key) for offset, key in enumerate(keys)]


def test_a_record_that_has_failed_for_good_is_held_and_only_its_key_waits(world: World) -> None:
    world.receive(*records(b"a", b"a", b"b"))
    world.fail_for_good(0)
    world.end(2)
    metrics = world.dispatch.metrics()
    assert (metrics.held_failures, metrics.running, metrics.done, metrics.failed) == (1, 0, 1, 2)
    assert world.letters == []
    assert world.engine.committable(ORDERS) == 0
    assert world.dispatch.next_change(world.dispatch.feed()) is None


def test_released_records_go_on_in_the_order_of_their_key_with_all_their_attempts(world: World) -> None:
    world.receive(*records(b"a", b"a", b"b"))
    world.fail_for_good(0, 2)
    world.release()
    assert sorted(world.running) == [0, 2]
    assert world.running[0].number == 3
    world.end(0, OSError())
    assert world.running[0].number == 4
    world.end(0)
    world.end(1)
    assert world.held_failures == 0


def test_a_rule_releases_only_what_it_chooses_by_error_and_header(world: World) -> None:
    world.receive(Record(0, b"a", b"bank"), Record(1, b"b", b"bank"), Record(2, b"c", b"shop"))
    world.fail_for_good(0, error=TimeoutError())
    world.fail_for_good(1, error=ValueError())
    world.fail_for_good(2, error=TimeoutError())
    world.release("error = TimeoutError and header.host = bank")
    assert sorted(world.running) == [0]
    assert world.held_failures == 2


def test_an_error_that_is_not_retried_is_held_too_but_not_a_record_that_kills_its_process(world: World) -> None:
    world.receive(*records(b"a", b"b"))
    world.end(0, FatalError())
    world.fail_for_good(1, error=died("was killed", 2, alone=True))
    assert world.held_failures == 1
    assert world.letters == [1]


def test_when_the_circuit_closes_what_failed_with_the_others_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    circuit = CircuitGate(CircuitBreaker(least=3, failing=1.0))
    world = World(circuit, max_attempts=1)
    world.receive(*records(b"a", b"b", b"c", b"d"))
    world.end(3, FatalError())
    for offset in (0, 1, 2):
        world.end(offset, OSError())
    assert world.dispatch.metrics().circuit_open
    assert world.held_failures == 3  # the third failure opened the circuit, so its record is tried again
    world.look()
    assert world.held_failures == 3
    world.receive(*[Record(offset, b"%d" % offset) for offset in range(4, 8)])
    while circuit.is_open:
        now += 1
        world.dispatch.feed()
        for offset in list(world.running):
            world.end(offset)
    world.look()
    assert {0, 1} <= set(world.running)
    assert [each.offset for each in world.engine.kept()] == [3]
    world.wake.close()


def test_after_a_restart_a_held_record_is_tried_again_and_its_attempts_are_known(world: World) -> None:
    world.receive(*records(b"a"))
    world.fail_for_good(0)
    tried = world.engine.tried(ORDERS)
    world.engine.assign(ORDERS, OffsetMap(0), tried=tried)
    assert world.held_failures == 0
    world.receive(*records(b"a"))
    assert world.running[0].number == 3
    world.end(0, OSError())
    assert world.held_failures == 1


def test_the_oldest_held_records_give_way_when_the_map_is_full(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.engine.refuse_maps(200)  # so that the map has 100 characters
    world.receive(*[Record(offset, b"%d" % offset) for offset in range(1200)])
    held = sorted(random.Random(1).sample(range(1200), 300))
    for offset in sorted(world.running):
        world.fail_for_good(offset) if offset in held else world.end(offset)
    with caplog.at_level(logging.WARNING, "headway.parallel"):
        while world.engine.paused() or not world.letters:
            world.look()
            world.engine.committed(world.engine.tick())
    assert world.letters == held[: len(world.letters)]
    assert 0 < len(world.letters) < len(held)
    assert world.held_failures == len(held) - len(world.letters)
    assert "have filled its offset map or its memory" in told(caplog)[0]


def test_a_map_that_is_nearly_full_of_held_records_is_reported_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.refuse_maps(390)  # so that the map has 195 characters, of which it may use 146
    world.receive(*[Record(offset, b"%d" % offset) for offset in range(700)])
    for offset in sorted(world.running):
        world.fail_for_good(offset) if offset % 9 == 0 else world.end(offset)
    world.engine.committed(world.engine.tick())
    with caplog.at_level(logging.WARNING, "headway.parallel"):
        world.look()
        world.look()
    assert [" % full" in each for each in told(caplog)] == [True]
    assert world.letters == []


def test_the_oldest_held_records_give_way_when_they_fill_the_memory() -> None:
    world = World(size_of=lambda record: 2**10, most_bytes=2**20)
    world.receive(*[Record(offset, b"%d" % (offset % 600)) for offset in range(1200)])
    world.fail_for_good(*range(600))
    assert world.engine.paused()
    world.look()
    assert world.letters == list(range(60))
    world.wake.close()


def test_a_held_record_that_expires_becomes_a_dead_letter(world: World) -> None:
    world.receive(*records(b"a"))
    world.running[0].not_after = time.monotonic() + 0.05
    world.fail_for_good(0)
    assert world.held_failures == 1
    at = world.dispatch.next_change(world.dispatch.feed())
    assert at
    time.sleep(max(0.0, at - time.monotonic()))
    world.dispatch.feed()
    assert world.letters == [0]


def test_without_a_dead_letter_topic_nothing_can_be_held() -> None:
    ParallelOptions(retries=Retries(then="hold"), dead_letter_topic="dead")
    with pytest.raises(ConfigError, match="there is no dead_letter_topic"):
        ParallelOptions(retries=Retries(then="hold"))
    with pytest.raises(ConfigError, match="then is 'keep'"):
        Retries(then="keep")  # type: ignore[arg-type]

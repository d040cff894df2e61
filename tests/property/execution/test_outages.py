"""Outages at random times under a circuit breaker: at most one probe runs, and every record ends once."""

import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.errors import FatalError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.circuit_gate import CircuitGate
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

ORDERS = TopicPartition("orders", partition=0)


class Record:
    """A record of a key, or of none."""

    def __init__(self, offset: int, key: int | None) -> None:
        self.offset, self.raw_key = offset, None if key is None else b"%d" % key


class Store:
    """A store of dead letters that reports at once."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.letters: list[int] = []
        self._dispatch = dispatch

    def send(self, attempt: Any, error: BaseException, reason: str) -> None:
        self.letters.append(attempt.offset)
        self._dispatch.stored(attempt)


class Run:
    """A dispatch with a circuit breaker, whose jobs the test ends; time passes only where it says so."""

    def __init__(
        self,
        keys: Sequence[int | None],
        ordering: Ordering,
        slots: int,
        batch: int | None = None,
        max_attempts: int = 3,
    ) -> None:
        self.now = 100.0
        self.running: list[Any] = []
        self.done: list[int] = []
        self.engine, self._wake = Engine[Any](ordering), Wakeup()
        retries = Retries(fixed_backoff(0.5), max_attempts=max_attempts)
        self.circuit = CircuitGate(CircuitBreaker(least=2, failing=0.5, longest=4.0))
        self.dispatch = Dispatch(self.engine, retries, slots, self._wake, [self.circuit])
        self.store = Store(self.dispatch)
        self.dispatch.begin(ExecutorStub(self._start), letters=self.store, batch_size=batch)
        self.engine.assign(ORDERS, OffsetMap(0))
        self.engine.receive(ORDERS, [Record(offset, key) for offset, key in enumerate(keys)], self.now)

    def _start(self, jobs: Sequence[Any]) -> None:
        if self.circuit.is_open:
            assert len(jobs) == len(jobs[0]) == 1
            assert self.circuit.opens_at() is None
        self.running += jobs

    def end(self, index: int, error: BaseException | None) -> None:
        job = self.running.pop(index)
        self.done += [] if error else [attempt.offset for attempt in job]
        if following := self.dispatch.complete(job, error):
            self._start([following])

    def feed(self) -> None:
        """Let what may start do so; if nothing does, time passes until the dispatch wants to be called again."""
        self.dispatch.feed()
        if not self.running:
            change = self.dispatch.next_change(self.now)
            assert change is not None, "nothing would ever go on"
            self.now = max(self.now, change)

    def close(self) -> None:
        self._wake.close()


@settings(max_examples=3 * settings().max_examples // 2)
@given(
    st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=30),
    st.sampled_from(Ordering),
    st.integers(1, 5),
    st.sampled_from([None, 3]),
    st.data(),
)
def test_whatever_fails_whenever_every_record_ends_once_and_the_run_goes_on(
    keys: list[int | None], ordering: Ordering, slots: int, batch: int | None, data: st.DataObject
) -> None:
    run = Run(keys, ordering, slots, batch)
    is_down = False
    with patch("time.monotonic", lambda: run.now):
        while run.dispatch.work_remaining:
            run.feed()
            if run.running:
                is_down ^= data.draw(st.integers(0, 9)) == 9
                fails = is_down or data.draw(st.integers(0, 9)) == 9
                error = FatalError() if data.draw(st.integers(0, 19)) == 19 else OSError() if fails else None
                run.end(data.draw(st.integers(0, len(run.running) - 1)), error)
                run.now += data.draw(st.sampled_from([0.0, 0.1, 5.0]))
        metrics = run.dispatch.metrics()
    run.close()
    assert sorted(run.done + run.store.letters) == list(range(len(keys)))
    assert (metrics.done, metrics.dead_letters) == (len(keys), len(run.store.letters))
    assert run.engine.slots_taken == [0]


def test_records_that_always_fail_end_though_they_keep_the_circuit_open() -> None:
    run, began = Run([0, 1, 2], Ordering.KEY, 3), time.monotonic()
    calls = 0
    with patch("time.monotonic", lambda: run.now):
        while run.dispatch.work_remaining:
            run.feed()
            while run.running:
                calls += 1
                run.end(0, OSError())
    run.close()
    assert sorted(run.store.letters) == [0, 1, 2]
    assert calls <= 3 * (50 + 3)
    assert time.monotonic() - began < 60


def test_an_outage_uses_up_no_attempts() -> None:
    run = Run(range(20), Ordering.KEY, 4)
    with patch("time.monotonic", lambda: run.now):
        for _ in range(40):
            run.feed()
            while run.running:
                run.end(0, ConnectionError())
        assert run.dispatch.metrics().circuit_open
        while run.dispatch.work_remaining:
            run.feed()
            while run.running:
                run.end(0, None)
        assert not run.dispatch.metrics().circuit_open
    run.close()
    assert (run.store.letters, sorted(run.done)) == ([], list(range(20)))


@pytest.mark.parametrize("batch", [None, 5])
def test_records_that_always_fail_keep_no_healthy_record_waiting_after_an_outage(batch: int | None) -> None:
    run, bad = Run(range(20), Ordering.UNORDERED, 4, batch, max_attempts=1000), {0, 1, 7, 13}
    is_down = True
    with patch("time.monotonic", lambda: run.now):
        for _ in range(60):
            run.feed()
            while run.running:
                fails = is_down or any(attempt.offset in bad for attempt in run.running[0])
                run.end(0, OSError("no record succeeds, or one of the batch never does") if fails else None)
            is_down &= run.now < 110.0
    run.close()
    assert sorted(run.done) == [offset for offset in range(20) if offset not in bad]

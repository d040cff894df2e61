"""When the control thread has to look again, and what becomes of a record that is moved."""

import time
from types import SimpleNamespace
from typing import Any

from headway.core.engine.attempt import FinalOutcome
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Move, Retries, fixed_backoff
from headway.errors import RuleError
from headway.execution.dispatch import Dispatch
from headway.execution.gate import Gate
from headway.execution.gates.start_rate import StartRate
from headway.execution.jobs import Job, RecordAttempt
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

ORDERS = TopicPartition("orders", partition=0)


def test_a_retry_that_is_due_and_waits_for_the_rate_is_looked_at_when_that_allows_it_and_not_all_the_time() -> None:
    engine, started = Engine[Any](Ordering.KEY), list[Any]()
    engine.assign(ORDERS, OffsetMap(0))
    wake = Wakeup()
    dispatch = Dispatch(engine, Retries(fixed_backoff(0.0)), 10, wake, [StartRate(0.5)])
    dispatch.begin(ExecutorStub(started.extend))
    engine.receive(ORDERS, [SimpleNamespace(offset=0, raw_key=b"k")], time.monotonic())
    dispatch.feed()
    [[attempt]] = started
    assert dispatch.complete((attempt,), OSError()) is None  # the next may start in two seconds
    now = time.monotonic()
    looks = dispatch.next_change(now)
    assert looks is not None
    assert 1 < looks - now <= 2
    wake.close()


class MovesAll(Gate):
    """A gate that moves each record, as a rule does."""

    def admit(self, job: Job, now: float) -> Job:
        for attempt in job:
            attempt.outcome = attempt.outcome or FinalOutcome(RuleError("moved"), Move("orders-0", "moved"))
        return []


class Moved:
    """The records that are to be moved, and that nobody has stored yet."""

    def __init__(self) -> None:
        self.sent: list[RecordAttempt] = []

    def send(self, attempt: RecordAttempt, move: Move) -> None:
        assert move.topic == "orders-0"
        self.sent.append(attempt)


def test_a_record_that_is_moved_keeps_its_lane_until_its_copy_is_stored_and_its_handler_is_never_called() -> None:
    engine, started, moved = Engine[Any](Ordering.KEY), list[Any](), Moved()
    engine.assign(ORDERS, OffsetMap(0))
    wake = Wakeup()
    dispatch = Dispatch(engine, Retries(), 10, wake, [MovesAll()])
    dispatch.begin(ExecutorStub(started.extend), moves=moved)
    engine.receive(ORDERS, [SimpleNamespace(offset=each, raw_key=b"k") for each in range(2)], time.monotonic())
    dispatch.feed()
    assert [attempt.offset for attempt in moved.sent] == [0]
    dispatch.not_stored(moved.sent.pop(), time.monotonic())  # it is sent again
    assert [attempt.offset for attempt in moved.sent] == [0]
    dispatch.stored(moved.sent.pop())
    assert [attempt.offset for attempt in moved.sent] == [1]
    dispatch.stored(moved.sent.pop())
    assert engine.tick().commits[ORDERS].offset == 2
    assert not started
    assert not dispatch.metrics().dead_letters
    wake.close()

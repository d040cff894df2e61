"""When the control thread has to look again."""

import time
from types import SimpleNamespace
from typing import Any

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.execution.dispatch import Dispatch
from headway.execution.gates.start_rate import StartRate
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

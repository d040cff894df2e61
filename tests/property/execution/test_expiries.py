"""Records that expire, in random sequences of what executors and stores report: none is started late, none is lost."""

import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.engine.attempt import Brought
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.errors import ExpiredError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.expiry_gate import ExpiryGate
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

ORDERS = TopicPartition("orders", partition=0)


class Record:
    """A record of a key, which expires at a time."""

    def __init__(self, offset: int, key: int) -> None:
        self.offset, self.raw_key = offset, b"%d" % key


class Store:
    """A store of dead letters that reports at once, as that of transactions does, or refuses at first."""

    def __init__(self, dispatch: Dispatch, refusals: int) -> None:
        self.letters: list[tuple[int, bool]] = []
        self._dispatch, self._refusals = dispatch, refusals

    def send(self, attempt: Any, error: BaseException, reason: str) -> None:
        if self._refusals:
            self._refusals -= 1
            self._dispatch.not_stored(attempt, time.monotonic())
            return
        self.letters.append((attempt.offset, isinstance(error, ExpiredError)))
        self._dispatch.stored(attempt, (b"letter",))


RECORDS = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(-2, 12))), min_size=1, max_size=40)


@settings(max_examples=2 * settings().max_examples)
@given(
    RECORDS,
    st.sampled_from(Ordering),
    st.booleans(),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([None, 1, 3]),
    st.data(),
)
def test_what_expired_is_never_started_and_everything_is_done_once(
    records: list[tuple[int, int | None]],
    ordering: Ordering,
    kept: bool,
    refusals: int,
    slots: int,
    batch: int | None,
    data: st.DataObject,
) -> None:
    clock = 100.0
    engine, wake, running = Engine[Any](ordering), Wakeup(), list[Any]()
    came = [Record(offset, key) for offset, (key, _) in enumerate(records)]
    ends = {each: clock + end for each, (_, end) in zip(came, records, strict=True) if end is not None}

    def start(jobs: Sequence[Any]) -> None:
        assert all(ends.get(attempt.record, clock + 1) > clock for job in jobs for attempt in job)
        running.extend(jobs)

    with patch("time.monotonic", lambda: clock):
        dispatch = Dispatch(engine, Retries(fixed_backoff(1.0)), slots, wake)
        engine.assign(ORDERS, OffsetMap(0))
        store = Store(dispatch, refusals if kept else 0)
        dispatch.begin(ExecutorStub(start), letters=store, batch_size=batch)
        if ends:
            dispatch.add(ExpiryGate(keeps=kept))
        engine.receive(ORDERS, came, clock, brought={each: Brought(None, end) for each, end in ends.items()})
        done = list[int]()
        while dispatch.work_remaining:
            dispatch.feed()
            if not running:
                clock += 1.0
                continue
            job = running.pop(data.draw(st.integers(0, len(running) - 1)))
            fails = data.draw(st.integers(0, 3)) == 3
            done += [] if fails else [attempt.offset for attempt in job]
            if following := dispatch.complete(job, OSError("no") if fails else None):
                start([following])
            clock += data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))
        metrics = dispatch.metrics()
    wake.close()
    assert len(done) == len(set(done))
    assert metrics.done == len(records)
    expired = sorted(set(range(len(records))) - set(done))
    assert metrics.expired == len(expired)
    assert sorted(store.letters) == ([(offset, True) for offset in expired] if kept else [])
    assert engine.slots_taken == [0]
    assert engine.tick().commits[ORDERS].offset == len(records)

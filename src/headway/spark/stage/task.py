"""One task of a parallel stage: it takes rows, handles each in its turn, and returns outcomes.

The engine and the executors are those of the `ParallelConsumer`. Spark's batches take the place of fetched records, and
rows passed on take the place of commits. Invariants:
- One row of each key is handled at a time, in the order of the rows; no row runs behind a failed one of its key.
- Each row comes out once, whatever its values, its result and its errors are: none of them fails the task. Nor does a
  call that does not end, if there is a time limit.
- The rows that are not put out yet keep less memory than the limit plus one batch. So do their results, with the
  results of running calls. A few rows of a large batch do not keep all of it.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import StructType

from headway.core.engine.concurrency import Concurrency
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import ALONE
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import FatalError, Retries, RetryLater
from headway.declarations import is_coroutine_function
from headway.execution.context import Context
from headway.execution.dispatch import Dispatch
from headway.execution.event_loop import EventLoop, run_whatever_is_raised
from headway.execution.handlers import Handlers, with_context
from headway.execution.jobs import Job
from headway.execution.threads import Threads
from headway.parallel.control_loop import Executor
from headway.records import TopicPartition
from headway.runtime.precise_loop import precise_event_loop
from headway.runtime.wakeup import Wakeup
from headway.spark.stage.input_batch import InputBatch, StageRow
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.outcomes import Outcome, OutcomeColumns, failure
from headway.spark.stage.result_type import ResultType
from headway.spark.stage.row_keys import row_keys
from headway.spark.stage.running_calls import RunningCalls

log = logging.getLogger(__name__)

RowHandler = Callable[[InputRow, Context], Any] | Callable[[InputRow], Any]

_ROWS = TopicPartition("rows", partition=0)  # to the engine, a task's rows are one partition
_LEAST_BUFFER = 1_000
ROOM = 256 * 2**20  # bytes of rows that are not put out yet; above it no more rows are read
SHRINK_AT = 64 * 2**20  # bytes of such rows above which done rows are put out at once, and batches are shrunk
RESULT_ROOM = 64 * 2**20  # bytes of results that are not put out yet; above it no handler is called
_UNBOUNDED = 2**62  # the engine's own limit: a row's part of a batch says nothing about the memory it keeps
_AT_A_TIME = 5_000
_LONGEST_WAIT = 0.1  # seconds; nothing wakes the task when room becomes free
LOOP_ANSWERS_WITHIN = 10.0  # seconds
_NEVER = 2**62

_PARKED: Any = object()
_BEHIND = "a row of its key failed before it"
_NOT_LATER = (
    "The handler raised RetryLater, for which a ParallelConsumer schedules its record; a row has no topic to come from "
    "again. Raise RetriableError, or schedule it with the sink's column due."
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters by which a stage handles its rows."""

    key: tuple[str, ...]
    max_concurrency: int
    time_limit: float | None
    retries: Retries
    columns: StructType  # the columns that the stage adds


class Stage:
    """The handling of one task's rows."""

    def __init__(self, handler: RowHandler, settings: Settings) -> None:
        self._handler = with_context(handler, "row")
        self._settings = settings
        self._results = ResultType(settings.columns["result"].dataType)
        self._columns = OutcomeColumns(settings.columns, self._results)
        self._wake = Wakeup()
        buffer = self._buffer = max(_LEAST_BUFFER, 2 * settings.max_concurrency)
        names = (
            (lambda rows: [ALONE] * len(rows)) if not settings.key else lambda rows: map(attrgetter("raw_key"), rows)
        )
        self._engine: Engine[Any] = Engine(
            names,
            buffer=buffer,
            room=_UNBOUNDED,
            size_of=lambda _: 1,
            retry_share=settings.retries.share,
            commits=False,
        )
        self._engine.assign(_ROWS, OffsetMap(0))
        self._dispatch = Dispatch(
            self._engine, settings.retries, Concurrency(settings.max_concurrency), self._wake, levels=1
        )
        self._running = RunningCalls(settings.time_limit)
        self._executor = self._make_executor()
        self._failed_lanes: set[Hashable] = set()
        self._batches: dict[InputBatch, None] = {}  # the batches with rows that are not put out yet
        self._outcomes: deque[tuple[StageRow, Outcome]] = deque()
        self._result_bytes = 0  # of these outcomes
        self._counting = threading.Lock()
        self._wake_at = _NEVER
        self._received = self._emitted = 0

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with their outcomes, in the order in which they are done."""
        self._dispatch.begin(self._executor.start, letters=self)
        try:
            for batch in batches:
                self._receive(batch)
                yield from self._emit(at_least=_AT_A_TIME)
                while not self._has_room():
                    yield from self._emit()
                    self._await(_AT_A_TIME)
            while self._emitted < self._received:
                yield from self._emit()
                self._await(_AT_A_TIME)
        finally:
            self._dispatch.abandon()
            self._executor.close(0.0)
            self._wake.close()

    # Rows in

    def _receive(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        batch = InputBatch(records, self._received, row_keys(records, self._settings.key))
        self._batches[batch] = None
        self._received += records.num_rows
        with self._dispatch.lock:
            self._engine.receive(_ROWS, batch.rows, time.monotonic())
        self._dispatch.feed()

    def _has_room(self) -> bool:
        if self._bytes_kept() > SHRINK_AT:
            for batch in self._batches:
                batch.shrink()
        if self._bytes_kept() > ROOM:
            return False
        with self._dispatch.lock:
            return self._engine.demand()[0] > 0

    def _bytes_kept(self) -> int:
        return sum(batch.size for batch in self._batches)

    # Handling

    def _make_executor(self) -> Executor:
        done = self._done
        if is_coroutine_function(self._handler):
            calls = Handlers(
                self._call_async, done, self._raised, self._dispatch.give_up, self._handler, in_batches=False
            )
            return EventLoop(calls, _loop(), self._settings.time_limit)
        calls = Handlers(self._call, done, self._raised, self._dispatch.give_up, self._handler, in_batches=False)
        return Threads(calls, self._settings.max_concurrency, self._settings.time_limit)

    async def _call_async(self, job: Job) -> Any:
        row = self._begin(job, asyncio.current_task())
        return await self._handler(row.row, Context(job[0])) if row else _PARKED

    def _call(self, job: Job) -> Any:
        return self._handler(row.row, Context(job[0])) if (row := self._begin(job)) else _PARKED

    def _begin(self, job: Job, task: asyncio.Task[Any] | None = None) -> StageRow | None:
        """Return the row to handle; None if an earlier row of its key has failed."""
        work: Any = job[0]
        self._running.begin(work, task)
        if work.lane in self._failed_lanes:
            return None
        row: StageRow = work.record
        row.started = time.time()
        return row

    def _done(self, job: Job, result: Any) -> Job | None:
        work: Any = job[0]
        if not self._running.end(work):
            return None
        row: StageRow = work.record
        if result is _PARKED:
            self._put(row, Outcome("parked", error=(None, None, _BEHIND)))
            return self._dispatch.done(work)
        try:
            checked, size = self._results.checked(result)
        except Exception as error:  # raised by Arrow, by Python (OverflowError), or by a user's own class
            return self._dispatch.settle_job((work,), FatalError(self._results.refusal(error)))
        self._put(row, Outcome("ok", work.attempt, checked, size, None, row.started, time.time()))
        return self._dispatch.done(work)

    def _raised(self, job: Job, error: BaseException) -> Job | None:
        if not self._running.end(job[0]):
            return None
        return self._dispatch.settle_job(job, FatalError(_NOT_LATER) if issubclass(type(error), RetryLater) else error)

    def _give_up_overdue(self) -> None:
        """Fail the rows whose calls do not end."""
        if not self._running.overdue():
            return
        if isinstance(self._executor, EventLoop) and not _answers(_loop()):
            raise self._running.holding_up(_loop())
        for work in self._running.overdue():  # the loop may have ended some meanwhile, when it went on
            if error := self._running.give_up(work):
                if isinstance(self._executor, Threads):
                    self._executor.replace_one()
                self._dispatch.settle_later((work,), error)

    def send(self, work: Any, error: BaseException, reason: str) -> None:
        """Put out a row that has failed for good; the engine takes this for storing its dead letter."""
        if work.lane is not ALONE:
            self._failed_lanes.add(work.lane)
        row: StageRow = work.record
        self._put(row, Outcome("failed", work.attempt, None, 0, failure(error, reason), row.started, time.time()))
        self._dispatch.stored(work)

    def _put(self, row: StageRow, outcome: Outcome) -> None:
        self._outcomes.append((row, outcome))
        if outcome.size:
            self._count(outcome.size)
        if len(self._outcomes) >= self._wake_at or self._dispatch.paused:
            self._wake_at = _NEVER
            self._wake.set()

    def _count(self, size: int) -> None:
        """Add to the bytes of results to put out; pause the handlers while there are too many."""
        with self._counting:
            self._result_bytes += size
            self._dispatch.paused = self._result_bytes > RESULT_ROOM

    # Rows out

    def _await(self, outcomes: int) -> None:
        """Wait until there is room, or there are so many outcomes, or all; start due rows meanwhile."""
        now = time.monotonic()
        self._wake_at = min(outcomes, self._received - self._emitted)
        with self._dispatch.lock:
            self._dispatch.alarm(0, self._buffer // 2)
        if len(self._outcomes) < self._wake_at:
            due = self._dispatch.next_change(now) or now + _LONGEST_WAIT
            self._wake.wait(max(0.0, min(due - now, _LONGEST_WAIT)))
        if self._dispatch.failure:
            raise self._dispatch.failure
        self._give_up_overdue()
        self._dispatch.feed()

    def _emit(self, at_least: int = 1) -> Iterator[pa.RecordBatch]:
        left = len(self._outcomes)
        if left < at_least and not self._dispatch.paused and self._bytes_kept() <= SHRINK_AT:
            return
        while left > 0:
            groups = self._grouped_outcomes(left)
            count = sum(map(len, groups.values()))
            left -= count
            self._emitted += count
            # In the order of the input: a row that waited for one of an earlier batch comes out behind it.
            for batch in sorted(groups, key=attrgetter("first")):
                yield self._with_outcomes(batch, groups[batch])
            self._dispatch.feed()  # if no handler was called because there were too many results

    def _grouped_outcomes(self, most: int) -> Mapping[InputBatch, Sequence[tuple[StageRow, Outcome]]]:
        """Take up to `most` outcomes, by their rows' batches; fewer if one batch cannot hold all their results."""
        groups: dict[InputBatch, list[tuple[StageRow, Outcome]]] = defaultdict(list)
        size = 0
        for _ in range(most):
            each = self._outcomes.popleft()
            groups[each[0].batch].append(each)
            if each[1].size:
                size += each[1].size
                if size > RESULT_ROOM:
                    break
        self._count(-size)
        return groups

    def _with_outcomes(self, batch: InputBatch, group: Sequence[tuple[StageRow, Outcome]]) -> pa.RecordBatch:
        rows = batch.put_out([row for row, _ in group])
        if not batch.left:
            del self._batches[batch]
        added = self._columns.arrays([outcome for _, outcome in group])
        return pa.RecordBatch.from_arrays([*rows, *added], names=[*batch.names, *self._settings.columns.names])


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this Python worker. It outlives tasks, and so do connections that were made in it."""
    loop = precise_event_loop()
    serve = partial(run_whatever_is_raised, loop, loop.create_future())
    threading.Thread(target=serve, name="headway-event-loop", daemon=True).start()
    return loop


def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop still runs callbacks."""
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    return answered.wait(LOOP_ANSWERS_WITHIN)

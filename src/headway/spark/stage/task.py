"""One task of a parallel stage, which calls the handler for each of its rows, and yields the rows with their outcomes.

The engine and the executors are those of the `ParallelConsumer`. Spark's batches take the place of fetched records, and
putting rows out takes the place of commits. Invariants:
- One row of each key is handled at a time, in the order of the rows. If a call was abandoned, it may still be running,
  so later rows of its key are not handled. If `park_behind_failed` is set, the same applies after a failed row.
- Each row comes out exactly once, whatever its values, its result and its errors are, and none of these fails the task.
  With a time limit or a deadline, a call that never ends does not fail the task either.
- After the deadline, no call begins, and the task does not wait for running calls. Rows of a key that are handled again
  later are put out in their order, and no row is due earlier than the row before it.
- The rows that are not put out yet take less memory than their limit plus one batch. The results that are not put out
  yet take less than their limit plus the results of the running calls (`held_rows.py`).
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from headway.core.engine.attempt import FailedAttempts
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import ALONE, Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.untrusted import LATEST
from headway.core.user_errors import text_of
from headway.declarations import is_coroutine_function
from headway.delay.due_time import due_at
from headway.errors import ConfigError, ExpiredError, FatalError, HeadwayError, RetryLater, TimeLimitError
from headway.execution.context import Context, wall_time
from headway.execution.dispatch import Dispatch
from headway.execution.event_loop import EventLoop
from headway.execution.executor import Executor, HandlerCalls
from headway.execution.gate import Gate
from headway.execution.gates.adaptive_limit import AdaptiveLimit
from headway.execution.gates.expiry_gate import ExpiryGate
from headway.execution.handler_calls import failures_of, not_run
from headway.execution.handlers import with_context
from headway.execution.jobs import Job
from headway.execution.lifespan import with_state
from headway.execution.threads import Threads
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from headway.spark.stage.arrow_results import results_of_arrow
from headway.spark.stage.deadline import Deadline, Due, Returned, retries_until
from headway.spark.stage.handler_loop import answers, handler_loop
from headway.spark.stage.held_rows import HeldRows
from headway.spark.stage.input_batch import InputBatch, StageRow
from headway.spark.stage.input_row import InputRow, place_of
from headway.spark.stage.outcomes import OutcomeColumns, RowOutcome, error_value
from headway.spark.stage.python_worker import Shared
from headway.spark.stage.rate_grants import GrantedStarts
from headway.spark.stage.rate_office import RateClient
from headway.spark.stage.result_type import ResultType
from headway.spark.stage.row_history import brought_along, failure_after, row_history_after
from headway.spark.stage.row_keys import row_keys
from headway.spark.stage.running_calls import LONGER_BY, RunningCalls
from headway.spark.stage.settings import RowHandler, Settings, argument_names

if TYPE_CHECKING:
    from headway.execution.traced_calls import TracedCalls

log = logging.getLogger(__name__)

_ROWS = TopicPartition("rows", partition=0)  # in the engine, all rows of a task belong to this partition
_LEAST_BUFFER = 1_000
# Disables the engine's own limit in bytes. A single waiting row keeps its whole batch in memory, so `HeldRows` limits
# the memory of batches instead.
_UNBOUNDED = 2**62
_AT_A_TIME = 5_000
_LONGEST_WAIT = 0.1  # seconds between two checks for free memory, because no event wakes the task for it
_SHORTEST_WAIT = 0.01  # seconds between checks, after the deadline, of whether the last calls are over

# In seconds since the epoch: a day before the latest time that Python can represent, because the local time in another
# time zone can be a day ahead.
_LATEST = LATEST / 1000 - 86_400

_NOT_CALLED: Any = object()
_BEHIND = "a row of its key failed before it"
_NOT_BEGUN = "it had not begun at the deadline"
_LATER = "it is tried again later"
_EXPIRED = "it expired before it was started"
_NOT_LATER = (
    "The handler raised RetryLater, but parallel_map was called without later=True. Set later=True and write the rows "
    "with outputs, or raise RetriableError."
)


class Stage:
    """Handles the rows of one task."""

    def __init__(self, handler: RowHandler, settings: Settings, shared: Shared | None = None) -> None:
        self._handler = with_context(handler, *argument_names(settings))
        self._shared = shared
        if shared:
            shared.check()
            self._handler = with_state(self._handler, shared.state, in_batches=settings.batches is not None)
        self._is_async = is_coroutine_function(self._handler)
        self._settings = settings
        self._results = ResultType(settings.columns["result"].dataType, settings.zone)
        self._wake = Wakeup()
        self._held = HeldRows(OutcomeColumns(settings.columns, self._results), self._wake.set, self._pause)
        # With a priority, the task reads as many rows as fit into its memory limit, so that it finds those with the
        # highest priority.
        buffer = _UNBOUNDED if settings.priority else max(_LEAST_BUFFER, 2 * settings.max_concurrency)
        self._refill_below = -1 if settings.priority else buffer // 2
        self._engine: Engine[Any] = Engine(
            Ordering.KEY if settings.key else Ordering.UNORDERED,
            buffer=buffer,
            most_bytes=_UNBOUNDED,
            size_of=lambda _: 1,
            retry_share=settings.retries.share,
            commits=False,
            rank_of=attrgetter("priority") if settings.priority else None,
        )
        self._engine.assign(_ROWS, OffsetMap(0))
        self._deadline = Deadline(settings.deadline)
        self._rate: RateClient | None = None
        self._fed_at = -math.inf
        self._granted = GrantedStarts(settings.max_concurrency, ready=self._ready, ask=self._ask)
        gates: list[Gate] = [AdaptiveLimit(settings.max_concurrency)] if settings.adaptive else []
        if settings.rate:
            gates.append(self._granted)  # the last gate, so that permits are requested only if all other gates are open
        self._expiry = ExpiryGate(keeps=True)
        retries = settings.retries
        if settings.deadline is not None:
            retries = retries_until(retries, self._deadline)
        self._dispatch = Dispatch(self._engine, retries, settings.max_concurrency, self._wake, gates)
        self._running = RunningCalls(settings.time_limit, self._deadline)
        self._traced_calls: TracedCalls | None = None
        self._executor = self._make_executor()
        self._parks: dict[Hashable, int] = {}  # for each lane, the offset of its last row that is handled
        self._returned: dict[Hashable, Returned] = {}  # for each lane, its rows that are handled again later

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with their outcomes, in the order in which they are done."""
        batches_of = self._settings.batches
        if batches_of:
            self._engine.let_batches_fill(batches_of.least, batches_of.linger)
        self._dispatch.begin(
            self._executor,
            letters=self,
            schedules=LaterRows(self._schedule) if self._settings.later else None,
            batch_size=batches_of.max_size if batches_of else None,
        )
        try:
            if self._settings.rate:
                self._rate = RateClient(self._settings.rate, self._grant, self._dispatch.give_up)
            for batch in batches:
                self._receive(batch)
                yield from self._put_out(at_least=_AT_A_TIME)
                while not self._has_space():
                    yield from self._put_out()
                    self._await(_AT_A_TIME)
            self._fill_no_batches()
            while self._held.waiting:
                yield from self._put_out()
                self._await(_AT_A_TIME)
        finally:
            self._dispatch.abandon()
            if self._rate:
                self._rate.close()
            self._executor.close(0.0)
            if self._traced_calls:
                self._traced_calls.close()
            self._wake.close()

    # Rows in

    def _receive(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        self._deadline.begin()
        keys = row_keys(records, self._settings.key)
        batch = InputBatch(records, self._held.received, keys, level_topics=self._settings.level_topics)
        if self._settings.priority:
            batch.set_priorities(self._settings.priority)
        self._held.add(batch)
        now = time.monotonic()
        brought = brought_along(batch, now, self._settings.expires_after)
        if any(each.not_after < math.inf for each in brought.values()):
            self._dispatch.add(self._expiry)
        with self._dispatch.lock:
            self._engine.receive(_ROWS, batch.rows, now, brought=brought)
        if self._deadline.is_over():
            self._return_the_rest()
        self._feed()

    def _feed(self) -> None:
        self._fed_at = self._dispatch.feed()

    def _has_space(self) -> bool:
        if not self._held.have_space():
            return False
        with self._dispatch.lock:
            return self._engine.demand()[0] > 0

    def _fill_no_batches(self) -> None:
        """Let incomplete batches start, because no more rows will arrive to fill them."""
        with self._dispatch.lock:
            self._engine.let_no_batch_fill()
        self._feed()

    # The rate of all tasks together

    def _ready(self, now: float) -> int:
        due = self._engine.next_wake()
        return sum(self._engine.ready) + (due is not None and due <= now)

    def _ask(self, starts: int) -> None:
        if self._rate:
            self._rate.ask(starts)

    def _grant(self, starts: int) -> None:
        with self._dispatch.lock:
            self._granted.grant(starts)
        self._feed()

    # Handling

    def _make_executor(self) -> Executor:
        settings = self._settings
        calls: HandlerCalls = self
        if settings.tracing:
            from headway.spark.stage.traced_rows import traced_calls  # noqa: PLC0415 - few stages need this import

            calls = self._traced_calls = traced_calls(self, settings.tracing)
        limit = min((each for each in (settings.time_limit, settings.deadline) if each is not None), default=None)
        if self._is_async:
            return EventLoop(calls, handler_loop(), limit)
        return Threads(calls, settings.max_concurrency, limit)

    def call(self, job: Job) -> Any:
        """Call the handler for a job. The executor calls this on one of its threads, or in an asyncio task.

        If the handler is async, this returns the coroutine, which the executor awaits.
        """
        if attempts := self._begin(job):
            return self._handle(attempts)
        return _not_called() if self._is_async else _NOT_CALLED

    def give_up(self, failure: HeadwayError) -> None:
        """End the task with this error."""
        self._dispatch.give_up(failure)

    def _handle(self, attempts: Sequence[Any]) -> Any:
        if self._settings.batches is None:
            return self._handler(attempts[0].record.row, Context(attempts[0]))
        rows: Any = [attempt.record.row for attempt in attempts]
        if self._settings.arrow_columns:
            rows = selected_columns(rows, self._settings.arrow_columns)
        return self._handler(rows, [Context(attempt) for attempt in attempts])

    def _begin(self, job: Job) -> Sequence[Any]:
        """Return the attempts of a job for which the handler must be called, or no attempts after the deadline.

        Leaves out rows that must not be handled, because an earlier row of their key parks them or is itself handled
        again later.
        """
        self._running.begin(job, asyncio.current_task() if self._is_async else None)
        if self._dispatch.ending or self._deadline.is_over():
            return ()
        attempts = self._called(job)
        now = time.time()
        for attempt in attempts:
            attempt.record.started = now
        return attempts

    def _called(self, job: Job) -> Sequence[Any]:
        """Return the attempts of a job, without those at rows that an earlier row of their key parks or delays."""
        lane = job[0].lane
        if lane not in self._parks and lane not in self._returned:
            return job
        return [attempt for attempt in job if not (self._is_parked(attempt) or self._is_behind_returned(attempt))]

    def _is_parked(self, attempt: Any) -> bool:
        return attempt.lane in self._parks and bool(self._parks[attempt.lane] < attempt.offset)

    def _is_behind_returned(self, attempt: Any) -> bool:
        first = self._returned.get(attempt.lane)
        return first is not None and bool(first.offset < attempt.offset)

    def returned(self, job: Job, result: Any) -> Job | None:
        """Put out the rows of a job whose call has returned. Returns the next job for the executor."""
        if not self._running.end(job[0]):
            return None
        if result is _NOT_CALLED:
            for attempt in job:
                self._put_unhandled(attempt)
            return self._dispatch.complete(job)
        if self._settings.batches is None:
            refused = self._check(job[0], result)
            return self._dispatch.done(job[0]) if refused is None else self._settle(job, {job[0]: refused})
        called = self._put_uncalled(job)
        try:
            if self._settings.arrow_columns:
                results = results_of_arrow(result, len(called), self._results)
            else:
                results = results_of_batch(result, len(called))
        except BaseException as error:  # for a wrong number of results, or raised by Arrow or one of the user's classes
            return self._settle(job, dict.fromkeys(called, FatalError(text_of(error))))
        checked = zip(called, results, strict=True)
        return self._settle(
            job, {attempt: refused for attempt, each in checked if (refused := self._check(attempt, each))}
        )

    def _put_uncalled(self, job: Job) -> Sequence[Any]:
        """Put out the rows of a batch that were not passed to the handler. Returns the attempts at the other rows."""
        called = self._called(job)
        if len(called) < len(job):
            for attempt in job:
                if attempt not in called:
                    self._put_unhandled(attempt)
        return called

    def _check(self, attempt: Any, result: Any) -> FatalError | None:
        """Emit a row with its result. If the result does not fit the schema, return an error instead."""
        try:
            checked, size = self._results.checked(result)
        except BaseException as error:  # raised by Arrow, Python (OverflowError), or one of the user's classes
            return FatalError(str(not_run(result) or self._results.refusal(error)))
        row: StageRow = attempt.record
        self._held.put(row, RowOutcome("ok", attempt.number, checked, size, None, row.started, time.time()))
        return None

    def raised(self, job: Job, error: BaseException) -> Job | None:
        """Retry or put out the rows of a job whose call has raised an error. Returns the next job for the executor."""
        if not self._running.end(job[0]):
            return None
        if self._settings.batches is None:
            return self._settle(job, {job[0]: error})
        called = self._put_uncalled(job)
        failures = failures_of(called, error)
        for attempt in called:
            if attempt not in failures:
                self._check(attempt, None)
        return self._settle(job, failures)

    def _settle(self, job: Job, failures: Mapping[Any, BaseException]) -> Job | None:
        """Report these failures of a job to the dispatch, and all other attempts of the job as done."""
        if self._settings.on_time_limit:
            failures = self._without_late_ones(failures)
        if not self._settings.later:
            failures = {
                attempt: FatalError(_NOT_LATER) if issubclass(type(error), RetryLater) else error
                for attempt, error in failures.items()
            }
        failed = list(failures.items())
        return self._dispatch.complete_each([(attempt, ()) for attempt in job if attempt not in failures], failed)

    def _without_late_ones(self, failures: Mapping[Any, BaseException]) -> Mapping[Any, BaseException]:
        """Put out rows whose call exceeded its time limit, with the result of `on_time_limit`.

        Returns the remaining failures. If `on_time_limit` raises, its error takes the place of the original one.
        """
        left: dict[Any, BaseException] = {}
        for attempt, error in failures.items():
            refused: BaseException | None = error
            if issubclass(type(error), TimeLimitError) and not self._deadline.is_over():
                try:
                    refused = self._check(attempt, self._settings.on_time_limit(attempt.record.row))  # type: ignore[misc]
                except BaseException as raised:
                    refused = raised
            if refused is not None:
                left[attempt] = refused
        return left

    # The deadline

    def _return_the_rest(self) -> None:
        """End all calls at the deadline: start none, leave the running ones, and put out all rows as `later`."""
        self._dispatch.end()
        for job, error in self._running.leave():
            self._dispatch.complete_elsewhere(job, error)
        while attempts := self._take_all():
            for attempt in attempts:
                self._put_unhandled(attempt)

    def _take_all(self) -> Sequence[Any]:
        with self._dispatch.lock:
            attempts = self._engine.take(_AT_A_TIME, math.inf)
            for attempt in attempts:
                self._engine.finish(attempt, time.monotonic())
        return attempts

    def _put_unhandled(self, attempt: Any) -> None:
        """Emit a row whose handler was not called."""
        row: StageRow = attempt.record
        failure: FailedAttempts | None = attempt.failure
        history = row_history_after(row.row, failure)
        attempts = attempt.number - 1
        if self._is_parked(attempt):
            self._held.put(row, RowOutcome("parked", attempts, error=(None, None, _BEHIND), history=history))
        elif attempt.not_after <= time.monotonic():
            self._held.put(row, RowOutcome("expired", attempts, error=(None, None, _EXPIRED), history=history))
        else:
            error = error_value(failure.error, _NOT_BEGUN) if failure else (None, None, _NOT_BEGUN)
            again_at = self._again_at(attempt, time.time())
            self._held.put(row, RowOutcome("later", attempts, error=error, history=history, again_at=again_at))

    def _again_at(self, attempt: Any, at: float) -> float:
        """Return the time at which a row is handled again: `at`, or another time if the order of its key requires it.

        A row must not be handled again before an earlier row of its key, or after a later row.
        """
        at = min(at, _LATEST)
        if attempt.lane is ALONE:
            return at
        others = self._returned.get(attempt.lane)
        if others is None:
            self._returned[attempt.lane] = Returned(attempt.offset, at, at)
        elif attempt.offset < others.offset:
            at = min(at, others.first_at)
            self._returned[attempt.lane] = Returned(attempt.offset, at, others.last_at)
        else:
            at = max(at, others.last_at)
            self._returned[attempt.lane] = others._replace(last_at=at)
        return at

    def _schedule(self, attempt: Any, error: BaseException, delay: Any) -> None:
        """Put out a row that is handled again later. The dispatch calls this to store a schedule."""
        row: StageRow = attempt.record
        if isinstance(delay, Due):
            again_at = self._again_at(attempt, wall_time(delay.at))
            failure = failure_after(attempt, error, untried=delay.untried)
        else:
            try:
                again_at, failure = due_at(delay, time.time()) / 1000, failure_after(attempt, error)
            except BaseException as refused:  # the delay's class can be the user's own, and can raise anything
                impossible = ConfigError(f"RetryLater cannot be carried out: {text_of(refused)}")
                self._dispatch.not_scheduled(attempt, impossible)
                return
        failed_with, history = error_value(error, _LATER), row_history_after(row.row, failure)
        self._held.put(
            row, RowOutcome("later", attempt.number, None, 0, failed_with, row.started, time.time(), history, again_at)
        )
        self._dispatch.stored(attempt)

    def _give_up_overdue(self) -> None:
        """Abandon calls that have exceeded their time limit by far, and fail their rows."""
        if self._deadline.is_over(by=LONGER_BY) and self._holds_up():
            raise self._running.holding_up(handler_loop())
        if not self._running.overdue():
            return
        if self._holds_up():
            raise self._running.holding_up(handler_loop())
        for attempt in self._running.overdue():  # again, because calls may have ended while the loop was tested
            if given_up := self._running.give_up(attempt):
                self._park_behind(attempt)  # the call may still run, and rows of a key must not run at the same time
                if isinstance(self._executor, Threads):
                    self._executor.replace_one()
                self._dispatch.complete_elsewhere(*given_up)

    def _holds_up(self) -> bool:
        """Return whether a coroutine blocks the event loop in which all coroutines run."""
        return isinstance(self._executor, EventLoop) and not answers(handler_loop())

    def send(self, attempt: Any, error: BaseException, reason: str) -> None:
        """Put out a row that has failed permanently or has expired. The dispatch calls this to store a dead letter."""
        row: StageRow = attempt.record
        if issubclass(type(error), ExpiredError):
            history = row_history_after(row.row, attempt.failure)
            self._held.put(
                row, RowOutcome("expired", attempt.number - 1, error=(None, None, _EXPIRED), history=history)
            )
        else:
            if self._settings.park_behind_failed:
                self._park_behind(attempt)
            failed_with, history = error_value(error, reason), row_history_after(row.row, failure_after(attempt, error))
            self._held.put(
                row, RowOutcome("failed", attempt.number, None, 0, failed_with, row.started, time.time(), history)
            )
        self._dispatch.stored(attempt)

    def _park_behind(self, attempt: Any) -> None:
        """Arrange that later rows of this row's key are not handled."""
        if attempt.lane is not ALONE:
            self._parks[attempt.lane] = min(attempt.offset, self._parks.get(attempt.lane, attempt.offset))

    # Rows out

    def _pause(self, paused: bool) -> None:
        self._dispatch.paused = paused

    def _put_out(self, at_least: int = 1) -> Iterator[pa.RecordBatch]:
        for batch in self._held.put_out(at_least):
            yield batch
            self._feed()  # the executor may have been paused because the results took too much memory

    def _await(self, outcomes: int) -> None:
        """Wait a short time for this many outcomes, or until all rows are done, and start rows that are due.

        Also ends calls at the deadline, and raises the error of a stage that has failed.
        """
        now = time.monotonic()
        is_time = self._held.wake_at(outcomes)
        with self._dispatch.lock:
            self._dispatch.alarm(0, self._refill_below)
        if not is_time:
            due = self._dispatch.next_change(self._fed_at) or now + _LONGEST_WAIT
            self._wake.wait(max(0.0, min(due - now, _LONGEST_WAIT, max(self._deadline.at - now, _SHORTEST_WAIT))))
        if self._dispatch.failure:
            raise self._dispatch.failure
        if self._shared:
            self._shared.check()
        if self._deadline.is_over():
            self._return_the_rest()
        self._give_up_overdue()
        self._feed()


async def _not_called() -> Any:
    return _NOT_CALLED


class LaterRows:
    """Adapts a function to the protocol by which the dispatch stores schedules."""

    def __init__(self, send: Callable[[Any, BaseException, Any], None]) -> None:
        self.send = send


def results_of_batch(result: Any, count: int) -> Sequence[Any]:
    """Return the result of each row of a batch.

    If the handler returned a list, it has one result for each row. Any other value is the result of every row. Raises
    `ValueError` if the length of the list is not `count`.
    """
    if type(result) is not list:
        return [result] * count
    if len(result) != count:
        raise ValueError(
            f"The handler returned {len(result)} results for a batch of {count} rows. Return one result for each row."
        )
    return result


def selected_columns(rows: Sequence[InputRow], names: Sequence[str]) -> pa.RecordBatch:
    """Return the named columns of some rows, in the order of the rows, without converting them to Python values."""
    # Read the place of each row only once, because the stage may move the row to another batch at any time.
    places = [place_of(row) for row in rows]
    parts = []
    for _, of_one_batch in groupby(places, lambda place: id(place[0])):
        run = list(of_one_batch)
        parts.append(run[0][0].taken(names, [index for _, index in run]))
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays([part.column(number) for part in parts]) for number in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, schema=parts[0].schema)

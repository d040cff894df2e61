"""The public parallel consumer. The file is long for the docstrings of what users call."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, overload

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.concurrency import Concurrency
from headway.core.engine.lanes import Ordering, OrderingName
from headway.core.engine.suspects import Suspect
from headway.core.levels.capacity import Distributor
from headway.core.levels.naming import LevelSubscription, checked_topics, subscriptions
from headway.core.levels.policies import PolicyName
from headway.core.retry import Retries
from headway.declarations import check_kind, checked_timeout, is_coroutine_function
from headway.errors import ClosedError, ConfigError, HeadwayError
from headway.execution.dispatch import Dispatch
from headway.execution.handlers import BatchHandler, Handler, Handlers, WithContext, for_batches, for_each_record
from headway.execution.lifespan import Life, Lifespan
from headway.execution.running_table import RunningTable
from headway.execution.supervision import Supervision
from headway.kafka.binding.forks import tell_of_forks
from headway.kafka.binding.known_settings import check_taken
from headway.kafka.consumer.commits import OnCommit
from headway.kafka.consumer.level_consumers import END_WITHIN
from headway.parallel.batches import Batches
from headway.parallel.brought_along import BroughtAlong
from headway.parallel.callbacks import Callbacks, OnRebalance
from headway.parallel.commits import CommitMode
from headway.parallel.control_loop import ControlLoop, Executor
from headway.parallel.controls import Controls
from headway.parallel.group_rate import GroupRate
from headway.parallel.keyless_log import KeylessLog
from headway.parallel.output_stream import Backlog, OutputStream
from headway.parallel.output_tasks import AsyncOnOutput, OutputTasks
from headway.parallel.outputs import OnOutput
from headway.parallel.result_stream import BatchResult, Result, ResultStream
from headway.parallel.run_parts import ExecutorName, OnExpired, RunOptions, RunParts, Sends, make_engine, make_levels
from headway.parallel.tenancy import Tenant
from headway.parallel.tenant_rates import TenantRates
from headway.parallel.validation import (
    check_async_callback,
    check_callback,
    check_callbacks,
    checked_batch_handler,
    checked_handler,
    checked_options,
)
from headway.runtime.background import in_background
from headway.runtime.call_stacks import is_on_stack
from headway.runtime.end_steps import EndSteps, Step
from headway.runtime.flag import Flag
from headway.runtime.sigterm import on_terminate
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config, ParallelSettings

_INTERVALS: Final[dict[CommitMode, float]] = {"async": 5.0, "sync": 5.0, "transactional": 0.1}  # seconds
_LEAST_BUFFER = 1000
_LEAST_FOR_END = 1.0  # seconds for the last commits and for leaving, after a drain time-out that handlers have used up
_LOOK_WHETHER_IT_RUNS_EVERY = 1.0  # seconds


class ParallelConsumer(Controls):
    """A consumer that handles records in parallel, in the order that `ordering` asks for, each acknowledged on its own.

    Completed records above an incomplete one are committed beside the offset, as an offset map. A restart therefore
    repeats only records that were not done. Without `levels` topics and group have the names given. With
    `levels` they have the names of their levels, which share the slots as `policy` says. For the settings see
    `headway.settings.config`; the other keys go to librdkafka.

    Args:
        config: The settings.
        ordering: The records that run in order: those of the same key, of the same partition, or none.
        max_concurrency: The number of records, or batches, handled at a time.
        adaptive: Start with few, grow while throughput grows, shrink when only the latency does.
        rate_limit: The number of records that the group may start in a second. Each member has the share of it that
            it has of the partitions.
        key_rate_limit: The number of records of one key that may start in a second, for each topic and level.
        tenant_rate_limit: The number of records of one `tenant` that the group may start in a second, shared by its
            members as `rate_limit` is: one for each tenant, rates by name with `"*"` for all others, or a function that
            returns the rate of a tenant and is asked once a minute. None, and a name left out, have no limit.
        time_limit: The seconds that a call of the handler may take; after that the attempt has failed.
        executor: `thread` for plain functions and `async` for coroutine functions, by default as the handler is, or
            `process` for a function that needs the processor. It and the deserialisers must then be importable.
        processes: The number of processes; by default the number of processors.
        policy: The sharing of slots between levels: `fair` by weight, `strict` highest first with a longest wait, or
            `capacity_burst` with the Java priority client's shares.
        distributor: The weights or shares; by default each level has twice that of the one below.
        retries: The times and number of further attempts; by default without end, at most a minute apart.
        dead_letter_topic: The topic for records that are not tried again. Without it, the run ends with `HandlerError`.
        commit_mode: `async`; `sync`, which waits for each answer; or `transactional`: outputs, dead letters and
            offsets in one transaction, by default every 100 ms.
        producer_config: Settings of the producer for outputs, such as serialisers or `transactional.id`. `config`
            already says how to reach the brokers.
        hand_over_timeout: The seconds that a leaving partition waits for its running handlers and for the commit of
            their records. The commit has the last of these seconds, and at least one.
        tenant: To whom a record belongs: `header:NAME`, `key`, `key:/` for the part of the key before a separator, or a
            function of the record, which must be quick. Within a level, tenants take turns by the handler time that
            they used.
        queue_time_warning: The seconds between the fetch and the start of a record that are too long: the log tells of
            such records in sums, and `metrics` counts them. By default it is told of none.
        on_invalid_metadata: Metadata of a commit that is no offset map is dropped with a warning (`warn`), or ends the
            run with `OffsetMapError` (`fail`).
        buffer_records: The number of records of each level that are ready in memory, so that no slot waits for a fetch;
            by default 1,000, or four times `max_concurrency`.
        buffer_memory: The bytes that records and uncommitted outputs of each level may take.
        tenant_weights: The weights of tenants, by name; all others have 1.
        expires_after: The seconds after its timestamp for which a record may be started; by default for ever, or as the
            record itself says (`expires` of a producer's `send`).
        on_expired: What becomes of a record that expired before it could be started: it is counted, and `drop` means
            done, `dead_letter` that it goes to the `dead_letter_topic`.
        circuit_breaker: The bounds from which on one attempt at a time is made, as long as nearly all fail; by default
            there are none.
        lifespan: What handlers share: a function that makes a context manager, async or not, of the connection's
            settings if it takes them. It is entered before the first record, and left after the last handler; what it
            yields is `context.state`. With `executor="process"` each process has its own.

    Raises `ConfigError` for settings out of bounds. `pause`, `resume`, `stop` and `close` may be called from any
    thread.
    """

    def __init__(
        self,
        config: Config,
        *,
        ordering: Ordering | OrderingName = Ordering.KEY,
        max_concurrency: int = 16,
        adaptive: bool = False,
        rate_limit: float | None = None,
        key_rate_limit: float | None = None,
        tenant_rate_limit: TenantRates | None = None,
        time_limit: float | None = None,
        executor: ExecutorName | None = None,
        processes: int | None = None,
        policy: PolicyName = "fair",
        distributor: Distributor | None = None,
        retries: Retries | None = None,
        dead_letter_topic: str | None = None,
        commit_mode: CommitMode = "async",
        producer_config: Config | None = None,
        hand_over_timeout: float = 10.0,
        queue_time_warning: float | None = None,
        on_invalid_metadata: Literal["warn", "fail"] = "warn",
        buffer_records: int | None = None,
        buffer_memory: int = 64 * 2**20,
        tenant: Tenant | None = None,
        tenant_weights: Mapping[str, float] | None = None,
        expires_after: float | None = None,
        on_expired: OnExpired = "drop",
        circuit_breaker: CircuitBreaker | None = None,
        lifespan: Lifespan | None = None,
    ) -> None:
        settings = self._settings = ParallelSettings.parse(config)
        checked = checked_options(
            settings,
            ordering=ordering,
            max_concurrency=max_concurrency,
            adaptive=adaptive,
            rate_limit=rate_limit,
            key_rate_limit=key_rate_limit,
            tenant_rate_limit=tenant_rate_limit,
            time_limit=time_limit,
            executor=executor,
            processes=processes,
            policy=policy,
            distributor=distributor,
            retries=retries,
            dead_letter_topic=dead_letter_topic,
            commit_mode=commit_mode,
            producer_config=producer_config,
            hand_over_timeout=hand_over_timeout,
            queue_time_warning=queue_time_warning,
            on_invalid_metadata=on_invalid_metadata,
            buffer_records=buffer_records,
            buffer_memory=buffer_memory,
            tenant=tenant,
            tenant_weights=tenant_weights,
            expires_after=expires_after,
            on_expired=on_expired,
            circuit_breaker=circuit_breaker,
            lifespan=lifespan,
        )
        check_taken(checked.outputs.kafka)  # its client is made when it is needed, which is late for a typing error
        options = self._options = RunOptions(
            *(settings, checked.outputs, max_concurrency, time_limit, executor, processes, dead_letter_topic),
            *(commit_mode, on_expired, circuit_breaker, lifespan, checked.limits),
        )
        self._tenancy = checked.tenancy
        levels = settings.levels or 1
        buffer = buffer_records or max(_LEAST_BUFFER, 4 * max_concurrency)
        engine = make_engine(
            ordering,
            levels,
            checked.slots,
            buffer,
            buffer_memory,
            checked.retries.share,
            checked.tenancy,
            checked.limits,
        )
        self._wake = Wakeup()
        self._levels = make_levels(settings)
        admission = Concurrency(max_concurrency, rate=rate_limit, adaptive=adaptive)
        self._dispatch = Dispatch(engine, checked.retries, admission, self._wake, levels)
        if queue_time_warning is not None:
            self._dispatch.warn_of_queue_times(queue_time_warning)
        rates = [admission, checked.limits]
        self._rate = GroupRate(settings.kafka, settings.group, self._levels, rates, self._dispatch, self._wake)
        interval = settings.commit_interval or _INTERVALS[commit_mode]
        self._callbacks = Callbacks(self._wake)
        in_lanes = max_concurrency > 1 and Ordering(ordering) is Ordering.KEY
        self._control = ControlLoop(
            self._dispatch,
            self._levels,
            self._wake,
            self._rate,
            self._callbacks,
            buffer=buffer,
            hand_over_timeout=hand_over_timeout,
            commit_interval=interval,
            waits_for_commits=commit_mode == "sync",
            fails_on_invalid_metadata=on_invalid_metadata == "fail",
            tenancy=checked.tenancy,
            keyless=KeylessLog(self._dispatch) if in_lanes else None,
            brought_along=BroughtAlong(settings.group, self._dispatch.let_expire, expires_after),
        )
        self._committing = self._control.committing
        self._fetching = self._control.fetching
        self._parts = RunParts(options, self._dispatch, self._levels, self._committing, self._wake)
        for level in self._levels:
            level.wake(self._wake)
        self._state = threading.Lock()
        self._runner: int | None = None  # the thread that runs, or that closes what never ran
        self._steps = EndSteps(self._steps_to_end)
        self._subscriptions: Sequence[LevelSubscription] = ()
        self._ended = Flag()
        self._stop: tuple[bool, float] | None = None  # True to drain, and the deadline
        tell_of_forks(self)
        self.failure: BaseException | None = None  # the error that ended the run, if one did

    def subscribe(
        self,
        topics: str | Iterable[str] | Mapping[str, int],
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """Read these topics, or, with `levels`, each topic of a mapping at the level given (KIP-349).

        A name that starts with `^` is a pattern. Call it once, before `run`. The callbacks are plain functions. They
        are called one after the other, in a thread of their own, and what they raise ends the run.

        Args:
            topics: The topics.
            on_assign: Gets the list of partitions that are new. None of their records starts before it returns.
            on_revoke: Gets the partitions that leave, also at the end of the run. None of their records runs any more,
                and what is done since the last commit is committed if it returns within the `hand_over_timeout`.
            on_lost: Gets partitions that another member may have already; by default `on_revoke`.
            on_commit: Gets (error, offsets) of each commit, error None if it is done. What it raises is only logged.
        """
        self._check_open()
        if self._runner is not None:
            raise ConfigError(
                "subscribe was called while the consumer runs. Call it before, with all topics; to read others, close "
                "this consumer and make a new one."
            )
        check_callbacks(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost, on_commit=on_commit)
        self._callbacks.use(on_assign, on_revoke, on_lost, on_commit)
        self._subscriptions = subscriptions(checked_topics(topics), self._settings.levels)
        self._rate.subscribe(self._subscriptions)
        if self._parts.life is None:
            self._fetching.subscribe(self._subscriptions)

    def supervise(self, table: int, suspects: Iterable[Suspect]) -> Supervision | None:
        """Note which records run in the file of this descriptor, for a process that outlives this one.

        Call it before `run`. The suspects are records that ran in processes that died; the `Supervision` takes further
        ones. Returns None with `executor="process"`: there handlers run in other processes, and end only those.
        """
        if self._options.executor == "process":
            return None
        running = RunningTable(table, self._options.max_concurrency)
        self._parts.supervision = Supervision(running, suspects, self._committing.request)
        return self._parts.supervision

    # Running

    def run(self, handler: Handler) -> None:
        """Call `handler(record, context)` for each record, until `stop` or `close`; once in a consumer's life.

        A plain function runs on threads, an `async def` on an event loop in a thread of its own. A record is done when
        the handler returns. Any exception of the handler is a failed attempt. `RetriableError` is tried again until
        `max_attempts`, `FatalError` and `DeserializationError` (an unreadable key or value) never. Ctrl-C ends `run` at
        once: completed records are committed, running ones come again. SIGTERM drains, a second one ends at once.

        Raises:
            HandlerError: A record failed for good, and there is no `dead_letter_topic`.
            LifespanError: The lifespan failed at its start, or at its end.
            AuthenticationError: The brokers do not let this client in, or no longer.
            AuthorizationError: A right on a topic or a group is missing from the start. A right lost later is logged
                now and then, and `metrics` names it, until the right is there again.
        """
        self._run(lambda: self._checked(handler), self._each_record)

    def _checked(
        self, handler: Handler | BatchHandler, batches: Batches | None = None, *, produces: bool = False
    ) -> WithContext:
        if batches is not None:
            check_kind("batches", batches, Batches, "Batches, as Batches(100)")
        check = checked_handler if batches is None else checked_batch_handler
        handle = check(handler, self._options.executor, collects=produces)  # type: ignore[arg-type]
        return self._parts.with_state(handle, in_batches=batches is not None)

    def _each_record(self, handler: WithContext) -> Handlers:
        return for_each_record(handler, None, self._dispatch)

    async def run_async(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> None:
        """Run an `async def` as tasks of the running loop, otherwise as `run`; cancelling stops without draining.

        With `batches` the handler is one of batches, as for `run_batches`.
        """
        make = for_batches if batches else for_each_record
        calls = lambda handle: make(handle, None, self._dispatch)  # noqa: E731
        await self._run_in_loop(lambda owner: self._run(lambda: self._checked(handler, batches), calls, owner, batches))

    async def _run_in_loop(self, run: Callable[["asyncio.Task[Any] | None"], None]) -> None:
        owner = asyncio.current_task()
        # The loop's executor has few threads, and this one is needed for as long as the consumer runs.
        running = asyncio.wrap_future(in_background(lambda: run(owner)))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop(drain=False)
            await asyncio.shield(running)
            raise

    async def run_and_produce_async(
        self,
        handler: Handler | BatchHandler,
        on_output: OnOutput | AsyncOnOutput | None = None,
        *,
        batches: Batches | None = None,
    ) -> None:
        """Run an `async def` as tasks of the running loop, otherwise as `run_and_produce`.

        `on_output` may be an `async def`: its calls are tasks of the loop, one after the other, which outputs do not
        wait for. They have all ended when this returns; cancelling it stops without draining, and ends the one that
        runs.
        """
        if on_output is None or not is_coroutine_function(on_output):
            await self._run_in_loop(lambda owner: self._produce(handler, on_output, batches, owner))
            return
        check_async_callback("on_output", on_output, ("input", "output", "metadata"))
        tasks = OutputTasks(on_output, Backlog(self._dispatch))
        try:
            await self._run_in_loop(lambda owner: self._produce(handler, tasks, batches, owner))
        except asyncio.CancelledError:
            tasks.cancel()
            raise
        finally:
            await tasks.end()

    def run_and_produce(
        self, handler: Handler | BatchHandler, on_output: OnOutput | None = None, *, batches: Batches | None = None
    ) -> None:
        """Send what the handler returns or yields: None, a `ProducerRecord`, or several; otherwise as `run`.

        A record is done when all its outputs are stored; if one is refused, the attempt has failed. With
        `commit_mode="transactional"` whole sets of outputs are committed with their records' offsets, or nothing. An
        output that Kafka refuses only at that commit makes its record a dead letter. `on_output(input, output,
        metadata)` is called for each stored output, in a thread of the consumer's.

        With `batches` the handler is one of batches, as for `run_batches`. Its outputs are those of all its records.
        """
        self._produce(handler, on_output, batches)

    def _produce(
        self,
        handler: Handler | BatchHandler,
        on_output: OnOutput | None,
        batches: Batches | None,
        owner: "asyncio.Task[Any] | None" = None,
    ) -> None:
        def checked() -> WithContext:
            check_callback("on_output", on_output, ("input", "output", "metadata"))
            return self._checked(handler, batches, produces=True)

        def calls(handle: WithContext) -> Handlers:
            settle = self._parts.settle_outputs(on_output, of_batches=batches is not None)
            return (for_batches if batches else for_each_record)(handle, settle, self._dispatch)

        self._run(checked, calls, owner, batches, produces=True)

    def run_batches(
        self, handler: BatchHandler, max_size: int, linger: float = 0.0, min_size: int | None = None
    ) -> None:
        """Call `handler(records, contexts)` for batches of up to `max_size` records; otherwise as `run`.

        A batch holds records of one key or partition, in order, as `ordering` says, or any records if unordered. A
        record waits up to `linger` seconds for its batch to fill, and no longer once the batch has `min_size` records.
        The handler raises `BatchError` to tell which records failed. After any other exception all records of the batch
        have failed.
        """
        batches = Batches(max_size, linger, min_size)
        self._run(
            lambda: self._checked(handler, batches),
            lambda handle: for_batches(handle, None, self._dispatch),
            batches=batches,
        )

    @overload
    def results(self, handler: Handler, *, batches: None = None) -> ResultStream[Result]: ...
    @overload
    def results(self, handler: BatchHandler, *, batches: Batches) -> ResultStream[BatchResult]: ...
    def results(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> ResultStream[Any]:
        """Return the handler's results, to be iterated over with `for` or `async for`; otherwise as `run`.

        A record is done when the next result is asked for. The record at which the iteration is left therefore comes
        again. Leaving the iteration stops the consumer. With `batches` the handler is one of batches, as for
        `run_batches`; each batch has one result.
        """
        handle = self._checked(handler, batches)
        run = lambda calls, owner: self._run(lambda: handle, lambda _: calls, owner, batches)  # noqa: E731
        in_batches = batches is not None
        return ResultStream(handle, self._dispatch, run, lambda drain: self.stop(drain=drain), in_batches=in_batches)

    def outputs(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> OutputStream:
        """Return the stored outputs, to be iterated over with `for` or `async for`; otherwise as `run_and_produce`.

        Each is a `StoredOutput`: input, output, and metadata with topic, partition, offset and timestamp. It comes once
        it is stored, in transactions once that is committed; its record is then done whether it is taken or not. While
        1,000 wait to be taken, no further record starts. Leaving the iteration stops the consumer.
        """
        self._checked(handler, batches, produces=True)
        produce = lambda stored, owner: self._produce(handler, stored, batches, owner)  # noqa: E731
        return OutputStream(produce, lambda drain: self.stop(drain=drain), Backlog(self._dispatch))

    def _run(
        self,
        check: Callable[[], WithContext],
        make_calls: Callable[[WithContext], Handlers],
        owner: "asyncio.Task[Any] | None" = None,
        batches: Batches | None = None,
        *,
        produces: bool = False,
    ) -> None:
        self._begin()
        try:
            # A second SIGTERM must not end the process before the completed records are committed.
            with on_terminate(lambda drain: self.stop(drain=drain)), contextlib.ExitStack() as at_last:
                at_last.callback(self._end)
                handler = check()
                if batches:
                    self._parts.handle_in_batches(batches, with_outputs=produces)
                self._parts.require_rights(self._subscriptions)
                self._parts.begin(make_calls(handler), owner, lambda: self._stop is not None)
                if self._parts.life and self._stop is None:
                    # A member that cannot answer its group while it starts would hold up all others.
                    self._fetching.subscribe(self._subscriptions)
                self._turn_until_stopped()
            # Of the last handler, whose thread has ended by now, or of a callback at the end.
            if failure := self._dispatch.failure or self._callbacks.failure or self._parts.failure:
                raise failure
        except BaseException as error:
            self.failure = error
            raise

    def _turn_until_stopped(self) -> None:
        while self._stop is None:
            self._control.turn()
        while self._stop[0] and self._dispatch.is_running() and time.monotonic() < self._stop[1]:
            self._control.turn()

    def _begin(self) -> None:
        with self._state:
            self._check_open()
            if self._runner is not None:
                raise ClosedError("A consumer runs once in its life. Make a new consumer to go on.")
            if not self._subscriptions:
                raise ConfigError("The consumer has no topic to read. Call subscribe before it runs.")
            self._runner = threading.get_ident()

    def _end(self) -> None:
        """Leave the groups and let go of everything, whatever is raised; the last error is raised at the end."""
        self._steps.take()
        self._ended.set()

    def _steps_to_end(self) -> Iterator[Step]:
        """Yield the steps. They wait for Kafka until one time: the end of the drain time-out, if that is soon."""
        now = time.monotonic()
        drains_until = self._stop[1] if self._stop and self._stop[0] else math.inf
        end_by = min(now + END_WITHIN, max(drains_until, now + _LEAST_FOR_END))

        def until() -> float:
            return time.monotonic() if self._steps.hurries else end_by

        yield lambda: self._control.leave(until())
        yield lambda: self._control.commit_last(until())
        for level in self._levels:
            yield partial(level.wake, None)
        yield lambda: self._levels.close(until())
        yield from (partial(self._close_in_time, part) for part in reversed(self._parts.closing()))
        yield lambda: self._control.wait_for_callbacks(until())
        yield self._rate.close
        yield self._wake.close
        if self._tenancy:
            yield self._tenancy.end
        if self._parts.supervision:
            yield self._parts.supervision.clear

    def _close_in_time(self, closing: Sends | Executor | Life) -> None:
        until = -math.inf if self._stop is None or self._steps.hurries else self._stop[1]
        closing.close(max(0.0, until - time.monotonic()))

    # The end

    def stop(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Make `run` end, and return at once; a handler or a signal handler may call it.

        With `drain`, running handlers may end within `timeout` seconds, from 0 to `math.inf`; without, their records
        come again after a restart. The last commits and leaving the groups belong to these seconds, and take at most
        10. Fetched records that did not start are left in Kafka. Completed records are committed in any case.
        """
        timeout = checked_timeout(timeout)
        if self._is_forked:
            return
        self._stop = drain, time.monotonic() + (timeout if drain else 0)
        self._dispatch.end()
        self._wake.set()

    def close(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Stop, as `stop` does, and wait until `run` has ended; not for handlers, which `run` waits for.

        Raises `HeadwayError` in a callback, which `run` waits for, too. In a forked process it does nothing.
        """
        timeout = checked_timeout(timeout)
        if self._is_forked:
            return
        if self._callbacks.runs_here():
            raise HeadwayError(
                "close() was called in a callback of the consumer, which it would wait for. Call stop()."
            )
        with self._state:
            if self._runner is None:
                self._runner = threading.get_ident()  # no run can begin from now on
        if not self._ended.is_set():
            self.stop(drain=drain, timeout=timeout)
        while not self._ended.is_set():
            # Two interrupts may have ended `run` in the midst of its own end, or before it was under its care.
            here = threading.get_ident()
            if is_on_stack(here, _RUN, self) or is_on_stack(here, _END, self):
                return  # called by a signal handler within these, which cannot go on before this returns
            if not is_on_stack(self._runner, _RUN, self):
                self._end()
            else:
                self._ended.wait(_LOOK_WHETHER_IT_RUNS_EVERY)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close, drain=error is None)


_RUN, _END = ParallelConsumer._run.__code__, ParallelConsumer._end.__code__

"""The public parallel consumer."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, Unpack, overload

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.suspects import Suspect
from headway.core.levels.naming import checked_topics, subscriptions
from headway.core.record_size import RECORD_TAKES
from headway.declarations import (
    check_kind,
    check_place,
    check_whole,
    checked_timeout,
    is_coroutine_function,
    shown,
)
from headway.errors import ClosedError, ConfigError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.start_rate import StartRate
from headway.execution.gates.supervision import Supervision
from headway.execution.handlers import BatchHandler, Handler, TakeResult
from headway.execution.metrics import ParallelMetrics
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.forks import made_before_fork, tell_of_forks
from headway.kafka.binding.known_settings import check_taken
from headway.kafka.consumer.commits import OnCommit
from headway.kafka.consumer.level_consumers import members_of
from headway.parallel.batches import Batches
from headway.parallel.callbacks import OnRebalance, check_async_callback, check_callbacks
from headway.parallel.control_loop import ControlLoop
from headway.parallel.handler_output import size_of_output
from headway.parallel.handler_spec import HandlerSpec
from headway.parallel.options import ParallelOptions, ParallelOptionsDict, shows_options
from headway.parallel.output_stream import AsyncOnOutput, OutputStream, OutputTasks
from headway.parallel.outputs import OnOutput
from headway.parallel.result_stream import BatchResult, Result, ResultStream
from headway.parallel.run import DRAIN_WITHIN, Run
from headway.parallel.run_parts import RunParts
from headway.parallel.seek_target import SeekTarget
from headway.parallel.stream import Owner
from headway.parallel.tenancy import Tenancy
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.background import in_background
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config, ParallelSettings


class ParallelConsumer:
    """Handles records in parallel, in the order that `ordering` asks for, and acknowledges each on its own.

    Completed records above an incomplete one are committed beside the offset, as an offset map. So a restart repeats
    only records that were not done. Without `levels`, topics and group have the names given. With `levels`, they have
    the names of their levels, which share the slots according to `policy`. `headway.settings.config` explains the
    settings; other keys go to librdkafka.

    Args:
        config: The settings.
        ordering: Which records run in order: those with the same key, those of the same partition, or none.
        max_concurrency: The number of records, or batches, that are handled at a time.
        adaptive: True to start with few at a time, add more while throughput grows, and take back what only adds
            latency.
        rate_limit: The number of records that the group starts per second, at most. Each member has a share of it, in
            proportion to its partitions.
        key_rate_limit: The number of records with one key that start per second, at most, in each topic and level.
        tenant_rate_limit: The number of records of one `tenant` that the group starts per second, at most, shared by
            its members as `rate_limit` is: a number for each tenant, a mapping from names to numbers with `"*"` for
            all others, or a function that returns the number for a tenant and is called once a minute. A tenant whose
            number is None or left out has no limit.
        time_limit: The seconds that a call of the handler can take before the attempt fails.
        executor: `thread` for plain functions and `async` for coroutine functions, chosen by the handler if left out;
            or `process` for a function that needs much CPU. It and the deserialisers must then be importable.
        processes: The number of processes. By default the number of processors.
        policy: How levels share the slots: `fair` by weight, `strict` highest level first but none waits too long, or
            `capacity_burst` with the Java priority client's shares.
        distributor: The weights or shares of the levels. By default each level has twice that of the one below.
        retries: When and how often failed records are retried. By default forever, at most a minute apart.
        dead_letter_topic: The topic for records that are not retried any more. Without it, such a record ends the run
            with `HandlerError`.
        commit_mode: `async`; `sync`, which waits for each answer; or `transactional`, which commits outputs, dead
            letters and offsets in one transaction, by default every 100 ms.
        producer_config: Settings of the producer for outputs, such as serialisers or `transactional.id`. It connects
            as `config` does.
        hand_over_timeout: The seconds that a partition that is revoked waits for its running handlers and for the
            commit of their records. The last second of it, or one more, is kept for the commit.
        tenant: Whom a record belongs to: `header:NAME`, `key`, `key:/` for the part of the key before a separator, or
            a function of the record, which must be fast. Within a level, tenants take turns by the handler time that
            they have used.
        queue_time_warning: The seconds that a record may wait between its fetch and its start before it is late. Late
            records are logged as totals and counted in `metrics`. By default none are.
        on_invalid_metadata: What happens if a commit's metadata is not an offset map: it is ignored with a warning
            (`warn`), or it ends the run with `OffsetMapError` (`fail`).
        buffer_records: The number of records of each level that are kept ready in memory, so that no slot waits for a
            fetch. By default 1,000, or four times `max_concurrency` if that is more.
        buffer_memory: The most bytes that records and uncommitted outputs of each level take.
        tenant_weights: The weights of tenants by name. All others have 1.
        expires_after: The seconds after its timestamp in which a record can be started. By default there is no limit
            but the one of the record itself (`expires` of a producer's `send`).
        on_expired: What happens to a record that expired before it could be started. `drop` marks it as done,
            `dead_letter` sends it to the `dead_letter_topic`; both count it.
        circuit_breaker: When most attempts fail, run one probe at a time instead of failing every record. Off by
            default.
        lifespan: What handlers share, such as a connection pool: a function that makes a context manager, async or
            not; the connection's settings are passed if it takes them. It is entered before the first record and left
            after the last handler. What it yields is `context.state`. With `executor="process"` each process has its
            own.

    Raises `ConfigError` for settings out of bounds. Any thread can call `pause`, `resume`, `stop` and `close`.
    """

    @shows_options
    def __init__(self, config: Config, **options: Unpack[ParallelOptionsDict]) -> None:
        settings = self._settings = ParallelSettings.parse(config)
        checked = self._options = ParallelOptions.of(options)
        checked.check_with(settings)
        check_taken(checked.outputs.kafka)  # its client is made later, when a misspelt setting would end the run
        self._wake = Wakeup()
        # The event of a reached end carries the position behind transaction markers, which are not records.
        self._levels = members_of(settings, {"enable.partition.eof": True})
        tenancy = checked.tenancy()
        rate = None if checked.rate_limit is None else StartRate(checked.rate_limit)
        engine = _make_engine(checked, settings, tenancy)
        gates = checked.gates(rate, engine.limits)
        dispatch = self._dispatch = Dispatch(engine, checked.all_retries, checked.max_concurrency, self._wake, gates)
        rates = [each for each in (rate, engine.limits) if each is not None]
        self._parts = RunParts(checked, settings, dispatch, self._levels, self._wake)
        control = ControlLoop(dispatch, self._levels, self._wake, checked, settings, tenancy, rates, self._parts)
        self._callbacks, self._fetching, self._commits = control.callbacks, control.fetching, control.commits
        has_lifespan = checked.lifespan is not None
        self._run = Run(self._parts, control, dispatch, self._levels, self._wake, tenancy, joins_late=has_lifespan)
        for level in self._levels:
            level.client.wake_with(self._wake)
        self._is_forked = False
        tell_of_forks(self)

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
        are called one after the other in a thread of their own, and what they raise ends the run.

        Args:
            topics: The topics.
            on_assign: Called with the list of new partitions. None of their records starts before it returns.
            on_revoke: Called with the partitions that leave, also at the end of the run. None of their records is
                running then. Records done since the last commit are committed if it returns within the
                `hand_over_timeout`.
            on_lost: Called with partitions that another member might have already. By default `on_revoke` is.
            on_commit: Called with (error, offsets) for each commit; error is None if it succeeded. What it raises is
                only logged.
        """
        self._check_open()
        if self._run.has_begun:
            raise ConfigError(
                "subscribe was called while the consumer runs. Call it before, with all topics; to read others, close "
                "this consumer and make a new one."
            )
        check_callbacks(on_assign, on_revoke, on_lost, on_commit)
        self._callbacks.use(on_assign, on_revoke, on_lost, on_commit)
        self._run.subscribe(subscriptions(checked_topics(topics), self._settings.levels))

    def supervise(self, table: int, suspects: Iterable[Suspect]) -> Supervision | None:
        """Keep a table of the running records in the file of this descriptor, for a process that outlives this one.

        Call it before `run`. The suspects are records that ran in processes that died; later ones go to the
        `Supervision` that is returned. Returns None with `executor="process"`, where handlers run in other processes
        and can end only those.
        """
        return (
            None
            if self._options.executor == "process"
            else self._parts.supervise(table, suspects, self._commits.request)
        )

    # Running

    def run(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> None:
        """Call `handler(record, context)` for each record, until `stop` or `close`; once in a consumer's life.

        A plain function runs on threads, an `async def` on an event loop in a thread of its own. A record is done when
        the handler returns. Any exception of the handler is a failed attempt. `RetriableError` is retried until
        `max_attempts`, `FatalError` and `DeserializationError` (an unreadable key or value) never. Ctrl-C ends `run` at
        once: completed records are committed, running ones are handled again. SIGTERM drains; a second one ends at
        once.

        With `batches` it calls `handler(records, contexts)` for batches of up to `max_size` records. A batch holds
        records of one key or partition, in order, as `ordering` says, or any records if unordered. A record waits up
        to `linger` seconds for its batch to fill, and no longer once the batch has `min_size` records. The handler
        raises `BatchError` to name the records that failed. After any other exception all of them have failed.

        Raises:
            HandlerError: A record failed for good, and there is no `dead_letter_topic`.
            LifespanError: The lifespan failed at its start, or at its end.
            AuthenticationError: The brokers do not let this client in, or no longer.
            AuthorizationError: A right on a topic or a group is missing from the start. A right lost later is logged
                now and then, and `metrics` names it, until the right is there again.
        """
        self._start(HandlerSpec(handler, batches))

    async def run_async(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> None:
        """Run an `async def` as tasks of the running loop, otherwise as `run`; cancelling stops without draining."""
        await self._start_async(HandlerSpec(handler, batches))

    def run_and_produce(
        self, handler: Handler | BatchHandler, on_output: OnOutput | None = None, *, batches: Batches | None = None
    ) -> None:
        """Send what the handler returns or yields: None, a `ProducerRecord`, or several; otherwise as `run`.

        A record is done when all its outputs are stored; if one is refused, the attempt has failed. With
        `commit_mode="transactional"` whole sets of outputs are committed with their records' offsets, or nothing. An
        output that Kafka refuses only at that commit makes its record a dead letter. `on_output(input, output,
        metadata)` is called for each stored output, in a thread of the consumer's.

        With `batches` the handler is one of batches, as for `run`. Its outputs are those of all its records.
        """
        self._start(HandlerSpec(handler, batches, sends=True, on_output=on_output))

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
        spec = HandlerSpec(handler, batches, sends=True, on_output=on_output)
        if on_output is None or not is_coroutine_function(on_output):
            await self._start_async(spec)
            return
        check_async_callback("on_output", on_output, ("input", "output", "metadata"))
        tasks = OutputTasks(on_output, self._dispatch)
        try:
            await self._start_async(replace(spec, on_output=tasks))
        except asyncio.CancelledError:
            tasks.cancel()
            raise
        finally:
            await tasks.end()

    @overload
    def results(self, handler: Handler, *, batches: None = None) -> ResultStream[Result]: ...
    @overload
    def results(self, handler: BatchHandler, *, batches: Batches) -> ResultStream[BatchResult]: ...
    def results(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> ResultStream[Any]:
        """Return the handler's results, to be iterated over with `for` or `async for`; otherwise as `run`.

        A record is done when the next result is asked for. The record at which the iteration is left therefore comes
        again. Leaving the iteration stops the consumer. With `batches` the handler is one of batches, as for `run`;
        each batch has one result.
        """
        spec = HandlerSpec(handler, batches)
        is_async = is_coroutine_function(self._parts.handler(spec))

        def run(take_result: TakeResult, owner: Owner) -> None:
            self._start(replace(spec, take_result=take_result), owner if is_async else None)

        return ResultStream(run, self._stop, self._dispatch, in_batches=batches is not None)

    def outputs(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> OutputStream:
        """Return the stored outputs, to be iterated over with `for` or `async for`; otherwise as `run_and_produce`.

        Each is a `StoredOutput`: input, output, and metadata with topic, partition, offset and timestamp. It comes once
        it is stored, in transactions once that is committed; its record is then done whether it is taken or not. While
        1,000 wait to be taken, no further record starts. Leaving the iteration stops the consumer.
        """
        spec = HandlerSpec(handler, batches, sends=True)
        self._parts.handler(spec)  # so that a mistake is raised here, and not at the first iteration

        def produce(on_output: OnOutput, owner: Owner) -> None:
            self._start(replace(spec, on_output=on_output), owner)

        return OutputStream(produce, self._stop, self._dispatch)

    def _start(self, spec: HandlerSpec, owner: Owner = None) -> None:
        self._check_open()
        self._run.run(spec, owner)

    async def _start_async(self, spec: HandlerSpec) -> None:
        owner = asyncio.current_task()
        # Not the loop's executor: it has few threads, and this one is needed for as long as the consumer runs.
        running = asyncio.wrap_future(in_background(lambda: self._start(spec, owner)))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop(drain=False)
            await asyncio.shield(running)
            raise

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the run, if one did."""
        return self._run.failure

    # Pauses

    def pause(
        self, partitions: Iterable[TopicPartition] | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Start and fetch no records until `resume`: of these partitions, of a topic, of a level, or of all.

        Running handlers go on. A pause lasts through rebalances, and also covers partitions that are assigned later.
        """
        self._check_open()
        chosen = self._chosen(partitions, topic, level)
        if partitions is not None or topic is not None or level is not None:
            with self._dispatch.lock:
                self._fetching.pauses.begin(chosen, topic=topic, level=level)
            self._fetching.hold()
        else:
            self._dispatch.paused = True
        self._wake.set()

    def resume(
        self, partitions: Iterable[TopicPartition] | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """End a pause that began with the same arguments, or without arguments all pauses."""
        self._check_open()
        chosen = self._chosen(partitions, topic, level)
        with self._dispatch.lock:
            if partitions is not None or topic is not None or level is not None:
                self._fetching.pauses.end(chosen, topic=topic, level=level)
            else:
                self._fetching.pauses.end_all()
                self._dispatch.paused = False
        self._fetching.hold()
        self._wake.set()

    def paused(self) -> set[TopicPartition]:
        """Return the partitions of this consumer that are paused."""
        self._check_process()
        with self._dispatch.lock:
            assigned = self.assignment()
            return assigned if self._dispatch.paused else set(self._fetching.pauses.covered(assigned))

    def _chosen(
        self, partitions: Iterable[TopicPartition] | None, topic: str | None, level: int | None
    ) -> Collection[TopicPartition]:
        """Return the selected partitions.

        Raises `ConfigError` if an item is not a `TopicPartition` or its level does not exist.
        """
        if isinstance(partitions, (str, TopicPartition)):
            raise ConfigError(
                f"{shown(partitions)} is not a collection of partitions. Give [TopicPartition(…)], or a topic by name, "
                'as topic="orders".'
            )
        chosen = list(partitions or ())
        for partition in chosen:
            check_kind(
                "A partition", partition, TopicPartition, 'a TopicPartition, as TopicPartition("orders", partition=3)'
            )
        for each in (*(partition.level for partition in chosen), *(() if level is None else (level,))):
            check_whole("level", each, 0)
            self._levels[each]  # raises if the level does not exist
        if topic is not None and not isinstance(topic, str):
            raise ConfigError(f"topic is {shown(topic)}; it must be the name of a topic.")
        return chosen

    # Places in the log

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue an assigned partition at this offset, which the next commit also stores. Returns at once.

        No record of the partition starts before its running handlers have ended or the `hand_over_timeout` is over.
        Their results are ignored, and so is what was done and not committed. An offset outside the log stands for its
        nearest end. Raises `ConfigError` for a partition that is not assigned now.
        """
        check_place("offset", offset)
        self._seek([partition], SeekTarget("offset", offset))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue these partitions, or all that are assigned, at their beginning, as `seek` does."""
        self._seek(partitions, SeekTarget("beginning"))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue these partitions, or all that are assigned, at their end, as `seek` does."""
        self._seek(partitions, SeekTarget("end"))

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first record of this time or later, in milliseconds since the epoch, as `seek` does."""
        check_place("timestamp", timestamp)
        self._seek(partitions, SeekTarget("time", timestamp))

    def _seek(self, partitions: Iterable[TopicPartition] | None, place: SeekTarget) -> None:
        self._check_open()
        chosen = self.assignment() if partitions is None else self._chosen(partitions, None, None)
        self._fetching.seek(dict.fromkeys(chosen, place))
        self._wake.set()

    def request_commit(self) -> None:
        """Commit the completed records now, before the next commit is due. Returns at once."""
        self._check_open()
        self._commits.request()
        self._wake.set()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions of all levels that are assigned to this consumer now. Any thread can call it."""
        self._check_process()
        return self._levels.assignment()

    @property
    def work_remaining(self) -> int:
        """The number of records that were fetched and are not done yet."""
        self._check_process()
        return self._dispatch.work_remaining

    def metrics(self) -> ParallelMetrics:
        """Return the counts of records done, running and waiting."""
        self._check_process()
        refused = next((level.client.refused for level in self._levels if level.client.refused), None)
        return replace(
            self._dispatch.metrics(),
            refused=refused or self._commits.refused,
            deleted_unread=sum(sum(level.membership.deleted_unread.values()) for level in self._levels),
        )

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on, and at once if a broker has refused the earlier ones.

        Open connections stay open. Any thread can call it. Raises `ConfigError` if librdkafka does not accept the
        credentials.
        """
        self._check_open()
        for level in self._levels:
            level.client.set_sasl_credentials(username, password)
        self._parts.set_sasl_credentials(username, password)
        change_credentials(self._settings.kafka, username, password)

    def forked(self) -> None:
        """Do nothing any more: this object is the copy in a forked process, without threads."""
        self._is_forked = True

    def _check_process(self) -> None:
        if self._is_forked:
            raise made_before_fork("consumer")

    def _check_open(self) -> None:
        self._check_process()
        if self._run.has_ended:
            raise ClosedError("The consumer is closed. Make a new one to go on.")

    # The end

    def stop(self, *, drain: bool = True, timeout: float = DRAIN_WITHIN) -> None:
        """Make `run` end, and return at once; a handler or a signal handler may call it.

        With `drain`, running handlers have `timeout` seconds to end, from 0 to `math.inf`; without it, their records
        are handled again after a restart. The last commits and leaving the groups are part of these seconds, and take
        at most 10. Fetched records that did not start are left in Kafka. Completed records are committed in any case.
        """
        timeout = checked_timeout(timeout)
        if not self._is_forked:
            self._run.stop(drain, timeout)

    def _stop(self, drain: bool) -> None:
        self.stop(drain=drain)

    def close(self, *, drain: bool = True, timeout: float = DRAIN_WITHIN) -> None:
        """Stop, as `stop` does, and wait until `run` has ended. Do not call it in a handler, which `run` waits for.

        Raises `HeadwayError` in a callback, which `run` waits for, too. In a forked process it does nothing.
        """
        timeout = checked_timeout(timeout)
        if not self._is_forked:
            self._run.close(drain, timeout)

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


def _make_engine(
    options: ParallelOptions, settings: ParallelSettings, tenancy: Tenancy | None
) -> Engine[ConsumerRecord]:
    return Engine(
        Ordering(options.ordering),
        levels=settings.levels or 1,
        slots=options.slots(settings),
        buffer=options.buffer,
        room=options.buffer_memory,
        size_of=_size,
        size_of_output=size_of_output,
        retry_share=options.all_retries.share,
        tenants=None if tenancy is None else tenancy.weights,
        tenant_rate=None if tenancy is None else tenancy.rates,
        key_rate=options.key_rate_limit,
    )


def _size(record: ConsumerRecord) -> int:
    """Return the bytes of a record without its headers, which are added where they are read."""
    return RECORD_TAKES + len(record.raw_key or b"") + len(record.raw_value or b"")

"""The public parallel consumer: its subscription, its ways to run a handler, and its controls."""

import asyncio
import time
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
from headway.execution.handlers import BatchHandler, Handler, ResultReceiver
from headway.execution.metrics import ParallelMetrics
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.kafka.binding.known_settings import check_taken
from headway.kafka.consumer.commits import OnCommit
from headway.kafka.consumer.level_consumers import END_WITHIN, members_of
from headway.parallel.batches import Batches
from headway.parallel.callbacks import OnRebalance
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
from headway.runtime.end_steps import construction
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config, ParallelSettings


class ParallelConsumer:
    """Handles records in parallel, in the order that `ordering` requires, and acknowledges each record individually.

    Completed records above an unfinished one are committed beside the offset, as an offset map. So a restart repeats
    only unfinished records. With `levels`, a topic and a group are read in several levels, such as `orders-0` and
    `orders-1`, which share the slots according to `policy`. `headway.settings.config` explains the settings; all other
    keys are passed to librdkafka.

    Args:
        config: The settings.
        ordering: Which records run in order: those with the same key, those of the same partition, or none.
        max_concurrency: The number of records, or batches, that are handled at a time.
        adaptive: True to start with few records at a time, add more while that raises the throughput, and remove those
            that only add latency.
        rate_limit: The maximum number of records that the group starts per second. Each member has a share of it, in
            proportion to its partitions.
        key_rate_limit: The maximum number of records with the same key that start per second, in each topic and level.
        tenant_rate_limit: The maximum number of records of one `tenant` that the group starts per second, shared by its
            members as `rate_limit` is: a number for each tenant, a mapping from names to numbers with `"*"` for all
            others, or a function that returns the number for a tenant and is called once a minute. A tenant whose
            number is None or left out has no limit.
        time_limit: The seconds that a call of the handler can take before the attempt fails.
        executor: `thread` for plain functions, `async` for coroutine functions, or `process` for plain functions that
            need much CPU. By default `thread` or `async`, according to the handler. With `process`, the handler and the
            deserialisers must be importable.
        processes: The number of processes. By default the number of processors.
        policy: How levels share the slots: `fair` by weight, `strict` with the highest level first and a longest wait
            for all others, or `capacity_burst` with the Java priority client's shares.
        distributor: The weights or shares of the levels. By default each level has twice the weight of the one below.
        retries: When and how often failed records are retried. By default forever, at most a minute apart.
        dead_letter_topic: The topic for records that are no longer retried. Without it, such a record ends the run with
            `HandlerError`.
        commit_mode: `async`; `sync`, which waits for each answer; or `transactional`, which commits outputs, dead
            letters and offsets in one transaction, by default every 100 ms.
        producer_config: Settings of the producer for outputs, such as serialisers or `transactional.id`. It connects
            as `config` does.
        hand_over_timeout: The seconds that a revoked partition waits for its running handlers and for the commit of
            their records. The commit gets at least one second, even if the handlers use up the time.
        tenant: The tenant that a record belongs to: `header:NAME`, `key`, `key:/` for the part of the key before a
            separator, or a function of the record, which must be fast. Within a level, tenants take turns according to
            the handler time that they have used.
        queue_time_warning: The seconds between its fetch and its start after which a record is late. Late records are
            counted in `metrics`, and their number is logged. By default no record is late.
        on_invalid_metadata: What happens if a commit's metadata is not an offset map: it is ignored with a warning
            (`warn`), or it ends the run with `OffsetMapError` (`fail`).
        buffer_records: The number of records of each level that are kept ready in memory, so that no slot waits for a
            fetch. By default 1,000, or four times `max_concurrency` if that is more.
        buffer_memory: The maximum number of bytes that records and uncommitted outputs of each level take.
        tenant_weights: The weights of tenants by name. All others have 1.
        expires_after: The seconds after its timestamp in which a record can be started. By default only the record's
            own limit counts, which its sender can set (`expires` of a producer's `send`).
        on_expired: What happens to a record that expired before it could be started: `drop` marks it as done, and
            `dead_letter` sends it to the `dead_letter_topic`. Both count it in `metrics`.
        circuit_breaker: When most attempts fail, run one probe at a time instead of failing every record. Off by
            default.
        lifespan: A function that makes a context manager, async or not, for what handlers share, such as a connection
            pool. It gets the connection's settings if it has a parameter. The context is entered before the first
            record and left after the last handler, and the yielded object is `context.state`. With
            `executor="process"` each process has its own.

    Raises `ConfigError` for settings out of bounds. Any thread can call `pause`, `resume`, `stop` and `close`.
    """

    @shows_options
    def __init__(self, config: Config, **options: Unpack[ParallelOptionsDict]) -> None:
        settings = self._settings = ParallelSettings.parse(config)
        checked = self._options = ParallelOptions.of(options)
        checked.check_with(settings)
        check_taken(checked.outputs.kafka)  # its client is made later, when a misspelt setting would end the run
        self._is_forked = False
        with construction(lambda: self.close(drain=False)):
            register_for_forks(self)
            # Only librdkafka's end-of-partition event says that the position is behind a transaction marker, which is
            # not a record. Without it, the offset of such a marker could never be committed.
            self._levels = members_of(settings, {"enable.partition.eof": True})
            self._wake = Wakeup()
            try:
                self._make_run()
            except BaseException:  # `close` needs the run, so it cannot end what was made so far
                self._levels.close(time.monotonic() + END_WITHIN)
                self._wake.close()
                raise
            for level in self._levels:
                level.client.wake_with(self._wake)

    def _make_run(self) -> None:
        settings, checked = self._settings, self._options
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

    def subscribe(
        self,
        topics: str | Iterable[str] | Mapping[str, int],
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """Read these topics. Call it once, before `run`.

        The callbacks must be plain functions. They are called one after the other in a thread of their own. An error of
        the first three ends the run.

        Args:
            topics: The topics; a name that starts with `^` is a pattern. With `levels` it can be a mapping of existing
                topics to their levels (KIP-349).
            on_assign: Called with the list of new partitions. None of their records starts before it returns.
            on_revoke: Called with the list of partitions that leave, also at the end of the run, when none of their
                records is running. Completed records are committed if it returns within the `hand_over_timeout`.
            on_lost: Called with a list of partitions that another member might have already. Without it, `on_revoke` is
                called.
            on_commit: Called with (error, offsets) for each commit; error is None if it succeeded. If it raises,
                the error is only logged.
        """
        self._check_open()
        if self._run.has_begun:
            raise ConfigError(
                "subscribe was called while the consumer was running. Call it once, before run, with all topics. To "
                "read other topics, close this consumer and make a new one."
            )
        self._callbacks.subscribe(on_assign, on_revoke, on_lost, on_commit)
        self._run.subscribe(subscriptions(checked_topics(topics), self._settings.levels))

    def supervise(self, table: int, suspects: Iterable[Suspect]) -> Supervision | None:
        """Keep a table of the running records in the file of this descriptor, for the supervisor of this process.

        Call it before `run`. The suspects are records that were running in processes that died; later suspects can be
        given to the returned `Supervision`. Returns None with `executor="process"`, because a handler can then end only
        the process that it runs in.
        """
        return (
            None
            if self._options.executor == "process"
            else self._parts.supervise(table, suspects, self._commits.request)
        )

    # Running

    def run(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> None:
        """Call `handler(record, context)` for each record, until `stop` or `close`. A consumer can run only once.

        Plain functions run on threads, an `async def` runs on an event loop in a thread of its own. A record is done
        when the handler returns. Any exception of the handler is a failed attempt. It is retried according to
        `retries`, except that `FatalError` and `DeserializationError` (an unreadable key or value) are never retried.
        Ctrl-C ends `run` at once: completed records are committed, and running ones are repeated by the next run.
        SIGTERM drains the consumer, and a second SIGTERM ends it at once.

        With `batches`, it calls `handler(records, contexts)` for batches of up to `max_size` records. According to
        `ordering`, a batch has records of one key or of one partition, in their order, or any records. A record waits
        up to `linger` seconds for its batch to have `min_size` records. To name the records that failed, the handler
        raises `BatchError`. After any other exception all records of the batch have failed.

        Raises:
            HandlerError: A record failed for good, and there is no `dead_letter_topic`.
            LifespanError: The lifespan failed at its start or at its end.
            AuthenticationError: The brokers refuse the login of this client.
            AuthorizationError: A right on a topic or a group is missing from the start. A right that is lost later is
                logged now and then, and named in `metrics`, until it is granted again.
        """
        self._start(HandlerSpec(handler, batches))

    async def run_async(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> None:
        """Run like `run`, but call an `async def` in the running event loop. Cancelling it stops without draining."""
        await self._start_async(HandlerSpec(handler, batches))

    def run_and_produce(
        self, handler: Handler | BatchHandler, on_output: OnOutput | None = None, *, batches: Batches | None = None
    ) -> None:
        """Run like `run`, and send the records that the handler returns or yields: none, one, or several.

        The outputs must be `ProducerRecord`s. A record is done when Kafka has stored all its outputs; if Kafka refuses
        one, the attempt has failed. With `commit_mode="transactional"`, outputs are committed together with the offsets
        of their records, and a record becomes a dead letter if Kafka refuses one of its outputs in the transaction.
        `on_output(input, output, metadata)` is called for each stored output, in a thread of the consumer.

        With `batches`, the handler gets batches, as for `run`, and its outputs belong to all records of the batch.
        """
        self._start(HandlerSpec(handler, batches, sends=True, on_output=on_output))

    async def run_and_produce_async(
        self,
        handler: Handler | BatchHandler,
        on_output: OnOutput | AsyncOnOutput | None = None,
        *,
        batches: Batches | None = None,
    ) -> None:
        """Run like `run_and_produce`, but call an `async def` in the running event loop.

        `on_output` can be an `async def` too. It is called in the running loop, once at a time, and handlers do not
        wait for it. All calls have ended when this returns. Cancelling it stops without draining, and cancels the
        running call of `on_output`.
        """
        spec = HandlerSpec(handler, batches, sends=True, on_output=on_output)
        if on_output is None or not is_coroutine_function(on_output):
            await self._start_async(spec)
            return
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
        """Run like `run`, and return the handler's results, to be iterated over with `for` or `async for`.

        A record is done when the next result is asked for. So if the iteration is left at a record, the next run
        repeats that record. Leaving the iteration stops the consumer. With `batches`, the handler gets batches, as for
        `run`, and each batch has one result.
        """
        spec = HandlerSpec(handler, batches)
        is_async = is_coroutine_function(self._parts.handler(spec))

        def run(receiver: ResultReceiver, owner: Owner) -> None:
            self._start(replace(spec, receiver=receiver), owner if is_async else None)

        return ResultStream(run, self._stop, self._dispatch, in_batches=batches is not None)

    def outputs(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> OutputStream:
        """Run like `run_and_produce`, and return the stored outputs, to be iterated over with `for` or `async for`.

        Each item is a `StoredOutput`: the input, the output, and metadata with topic, partition, offset and timestamp.
        An output is returned when Kafka has stored it and, with transactions, committed it. Its record is done then,
        even if the caller does not take the output. While 1,000 outputs wait to be taken, no record starts. Leaving the
        iteration stops the consumer.
        """
        spec = HandlerSpec(handler, batches, sends=True)
        self._parts.handler(spec)  # raises for an invalid handler here, and not at the first iteration

        def produce(on_output: OnOutput, owner: Owner) -> None:
            self._start(replace(spec, on_output=on_output), owner)

        return OutputStream(produce, self._stop, self._dispatch)

    def _start(self, spec: HandlerSpec, owner: Owner = None) -> None:
        self._check_open()
        self._run.run(spec, owner)

    async def _start_async(self, spec: HandlerSpec) -> None:
        owner = asyncio.current_task()
        # Not in the loop's executor, which has few threads: this one is taken for as long as the consumer runs.
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
        """Stop starting and fetching records: of these partitions, of a topic, of a level, or of everything.

        Running handlers continue. A pause lasts until `resume`, also through rebalances. A pause of a topic, a level or
        everything also covers partitions that are assigned later.
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
        """End the pause that began with the same arguments. Without arguments, end all pauses."""
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

        No record of the partition starts before its running handlers have ended, or the `hand_over_timeout` is over.
        Their results are ignored, and uncommitted records count as not done. An offset outside the log means the
        nearest end of the log. Raises `ConfigError` if the partition is not assigned to this consumer.
        """
        check_place("offset", offset)
        self._seek([partition], SeekTarget("offset", offset))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue these partitions at their beginning, as `seek` does. By default all assigned partitions."""
        self._seek(partitions, SeekTarget("beginning"))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue these partitions at their end, as `seek` does. By default all assigned partitions."""
        self._seek(partitions, SeekTarget("end"))

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue these partitions at the first record of this time or later, as `seek` does.

        The time is in milliseconds since the epoch. By default all assigned partitions are moved.
        """
        check_place("timestamp", timestamp)
        self._seek(partitions, SeekTarget("time", timestamp))

    def _seek(self, partitions: Iterable[TopicPartition] | None, place: SeekTarget) -> None:
        self._check_open()
        chosen = self.assignment() if partitions is None else self._chosen(partitions, None, None)
        self._fetching.seek(dict.fromkeys(chosen, place))
        self._wake.set()

    def request_commit(self) -> None:
        """Commit the completed records now, without waiting for the interval. Returns at once."""
        self._check_open()
        self._commits.request()
        self._wake.set()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions of all levels that are assigned to this consumer. Any thread can call it."""
        self._check_process()
        return self._levels.assignment()

    @property
    def work_remaining(self) -> int:
        """The number of records that were fetched and are not done."""
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
        """Use these credentials for all further logins. If a broker has refused the earlier ones, log in again at once.

        Open connections stay open. Any thread can call it. Raises `ConfigError` if librdkafka does not accept the
        credentials.
        """
        self._check_open()
        for level in self._levels:
            level.client.set_sasl_credentials(username, password)
        self._parts.set_sasl_credentials(username, password)
        change_credentials(self._settings.kafka, username, password)

    def forked(self) -> None:
        """Refuse further use: this is the copy in a forked process, which lacks the threads."""
        self._is_forked = True

    def _check_process(self) -> None:
        if self._is_forked:
            raise made_before_fork("consumer")

    def _check_open(self) -> None:
        self._check_process()
        if self._run.has_ended:
            raise ClosedError("The consumer is closed. Make a new one.")

    # The end

    def stop(self, *, drain: bool = True, timeout: float = DRAIN_WITHIN) -> None:
        """Make `run` end, and return at once. Handlers and signal handlers can call it.

        With `drain`, running handlers have `timeout` seconds to end, from 0 to `math.inf`. Without it, their records
        are repeated by the next run. The last commits and leaving the groups are part of the `timeout`, and take at
        most 10 seconds. Completed records are committed in any case. Fetched records that have not started are left in
        Kafka.
        """
        timeout = checked_timeout(timeout)
        if not self._is_forked:
            self._run.stop(drain, timeout)

    def _stop(self, drain: bool) -> None:
        self.stop(drain=drain)

    def close(self, *, drain: bool = True, timeout: float = DRAIN_WITHIN) -> None:
        """Stop, as `stop` does, and wait until `run` has ended.

        Do not call it in a handler: `run` waits for handlers. In a callback it raises `HeadwayError` for the same
        reason. In a forked process it does nothing.
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
        most_bytes=options.buffer_memory,
        size_of=_size,
        size_of_output=size_of_output,
        retry_share=options.all_retries.share,
        tenants=None if tenancy is None else tenancy.weights,
        tenant_rate=None if tenancy is None else tenancy.rates,
        key_rate=options.key_rate_limit,
    )


def _size(record: ConsumerRecord) -> int:
    """Return the bytes of a record without its headers, whose size is counted when they are read."""
    return RECORD_TAKES + len(record.raw_key or b"") + len(record.raw_value or b"")

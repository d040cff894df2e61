"""The class `ParallelConsumer`, which subscribes to topics and runs a handler for their records."""

import asyncio
import platform
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, Unpack, overload

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.suspects import Suspect
from headway.core.levels.naming import checked_topics, subscriptions
from headway.declarations import (
    called,
    check_above_zero,
    check_kind,
    check_place,
    check_whole,
    checked_timeout,
    is_coroutine_function,
    shown,
)
from headway.errors import ClosedError, ConfigError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.start_rate import StartRate
from headway.execution.gates.supervision import Supervision
from headway.execution.handler_calls import ResultReceiver
from headway.execution.handlers import BatchHandler, Handler
from headway.execution.metrics import ParallelMetrics
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.kafka.binding.known_settings import check_taken
from headway.kafka.consumer.commits import OnCommit
from headway.kafka.consumer.level_consumers import END_WITHIN, members_of
from headway.metrics.health import CheckHealth
from headway.metrics.samples import Measure
from headway.parallel.batches import Batches
from headway.parallel.callbacks import OnRebalance
from headway.parallel.consumer_samples import ConsumerSamples
from headway.parallel.control_loop import ControlLoop
from headway.parallel.edits import Edits
from headway.parallel.handler_output import size_of_output
from headway.parallel.handler_spec import HandlerSpec
from headway.parallel.health_watch import HealthWatch
from headway.parallel.held_failures import HeldFailures
from headway.parallel.observations import Observations
from headway.parallel.options import ParallelOptions, ParallelOptionsDict, shows_options
from headway.parallel.output_stream import AsyncOnOutput, OutputStream, OutputTasks
from headway.parallel.outputs import OnOutput
from headway.parallel.requests_follower import RequestsFollower
from headway.parallel.result_stream import BatchResult, Result, ResultStream
from headway.parallel.rules_follower import RulesFollower
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
from headway.settings.connection_settings import connection_of


class ParallelConsumer:
    """Handles records in parallel, in the order that `ordering` requires, and acknowledges each record individually.

    If records above an unfinished record are done, each commit has an offset map of them in its metadata, in addition
    to the offset. So a restart repeats only unfinished records. With the setting `levels`, a topic consists of several
    Kafka topics, such as `orders-0` and `orders-1`, whose records share the slots according to `policy`.
    `headway.settings.config` explains the settings. All other settings are passed to librdkafka.

    Args:
        config: The settings.
        ordering: Which records are handled in order: records with the same key, records of the same partition, or none.
        max_concurrency: The maximum number of records, or of batches, that are handled at a time.
        adaptive: True to start with few records at a time, to raise the number as long as the throughput rises, and to
            lower it if more records at a time only add latency.
        rate_limit: The maximum number of records that the whole group starts per second. Each member gets a share of
            this rate in proportion to its partitions.
        key_rate_limit: The maximum number of records with the same key that start per second, in each topic and level.
        tenant_rate_limit: The maximum number of records of one `tenant` that the whole group starts per second. The
            members share this rate as they share `rate_limit`. The value is a number that applies to each tenant, a
            mapping from names of tenants to numbers, with `"*"` for all other tenants, or a function that returns the
            number for a tenant and is called once a minute. If a tenant's number is None or missing, the tenant has no
            limit.
        time_limit: How long a call of the handler can take before the attempt fails, in seconds.
        executor: `thread` for plain functions, `async` for coroutine functions, or `process` for plain functions that
            need much CPU. By default `async` if the handler is a coroutine function, and otherwise `thread`. With
            `process`, the handler and the deserialisers must be importable.
        processes: The number of processes if `executor` is `process`. By default, the number of processors.
        policy: The rule by which levels share the slots: `fair` divides them by weight, `strict` prefers the highest
            level but limits how long the others wait, and `capacity_burst` uses the shares of the Java priority client.
        distributor: A function that returns the weights or shares of the levels. By default each level has twice the
            weight of the next lower level.
        retries: When and how often failed records are retried. By default forever, at most a minute apart.
        dead_letter_topic: The topic for records that are no longer retried. Without it, such a record ends the run with
            `HandlerError`.
        result_topic: The topic for the results of calls (`headway.calls`). If a record is a call, the handler's return
            value is stored there as JSON, or the error if the record failed for good. The topic is created if it does
            not exist. Only for handlers of single records.
        commit_mode: `async` to commit in the background, `sync` to fetch no records while a commit is pending, or
            `transactional` to commit outputs, dead letters and offsets in one transaction, by default every 100 ms.
        producer_config: Settings of the producer for outputs, such as serialisers or `transactional.id`. Its settings
            for the connection are taken from `config`.
        hand_over_timeout: How long a revoked partition is kept, in seconds, so that its running handlers can end and
            their records can be committed. Even if the handlers use up this time, the commit has at least one second.
        tenant: The tenant that a record belongs to: `header:NAME` for a header, `key` for the key, `key:/` for the part
            of the key before a separator, or a function of the record, which must be fast. Within a level, tenants take
            turns according to the handler time that they have used.
        queue_time_warning: A record is late if more than this many seconds pass between its fetch and its first
            attempt. Late records are counted in `metrics`, and their number is logged. By default no record is late.
        on_invalid_metadata: `warn` to log a warning if the metadata of a commit is not a valid offset map, and continue
            without the map, or `fail` to end the run with `OffsetMapError`.
        buffer_records: How many records of each level are kept ready in memory, so that no slot waits for a fetch. By
            default 1,000 or four times `max_concurrency`, whichever is more.
        buffer_memory: The maximum amount of memory for the records and uncommitted outputs of each level, in bytes.
        tenant_weights: A mapping from the names of tenants to their weights. All other tenants have the weight 1.
        expires_after: How long after its timestamp a record expires, in seconds, if it has not started by then. By
            default, a record expires only if its sender has set a limit with the argument `expires` of a producer's
            `send`.
        on_expired: What happens with a record that expires before it can start: `drop` to treat it as done, or
            `dead_letter` to send it to the `dead_letter_topic`. In both cases, `metrics` counts the record.
        circuit_breaker: When most attempts fail, run one probe at a time instead of failing every record. Off by
            default.
        lifespan: A function that makes a context manager, async or not, for objects that handlers share, such as a
            connection pool. If the function has a parameter, it gets the connection's settings. The context is entered
            before the first record and left after the last handler. Handlers get the yielded object as
            `context.state`. With `executor="process"`, each process enters a context of its own.
        steered: True to apply the rules that operators set with `headway rules` or `headway.rules.Rules`. This takes
            one more client and one more thread.
        latest_only: True to handle only the newest of the records of a key that were fetched and wait. The others are
            done without a call of the handler. Running records, and records without a key, are never skipped.
        tracing: A `Tracing` to make spans of handler calls, of the waits before them, of outputs and of commits.

    Raises `ConfigError` if a setting is outside its allowed range. Any thread can call `pause`, `resume`, `stop` and
    `close`.
    """

    @shows_options
    def __init__(self, config: Config, **options: Unpack[ParallelOptionsDict]) -> None:
        settings = self._settings = ParallelSettings.parse(config)
        checked = self._options = ParallelOptions.of(options)
        checked.check_with(settings)
        # The client for outputs is created only when the run starts, but a misspelt setting must raise an error now.
        check_taken(checked.outputs.kafka)
        self._is_forked = False
        self._handler_name = ""
        self._measuring = threading.Lock()  # protects the next two attributes
        self._samples: ConsumerSamples | None = None
        self._observations: Observations | None = None
        with construction(lambda: self.close(drain=False)):
            register_for_forks(self)
            # Transaction markers have offsets but are not delivered as records. Only librdkafka's end-of-partition
            # event shows that the position is past a marker. Without it, a marker's offset could never be committed.
            self._levels = members_of(settings, {"enable.partition.eof": True})
            self._wake = Wakeup()
            try:
                self._make_run()
            except BaseException:  # there is no run yet through which `close` could close the levels and the wake-up
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
        gates = checked.gates(rate, engine)
        circuit = next((gate for gate in gates if isinstance(gate, CircuitGate)), None)
        dispatch = self._dispatch = Dispatch(engine, checked.all_retries, checked.max_concurrency, self._wake, gates)
        rates = [each for each in (rate, engine.limits) if each is not None]
        self._parts = RunParts(checked, settings, dispatch, self._levels, self._wake)
        control = self._control = ControlLoop(
            dispatch, self._levels, self._wake, checked, settings, tenancy, rates, self._parts
        )
        if checked.all_retries.then == "hold":
            held = HeldFailures(dispatch, circuit)
            dispatch.add(held)
            control.watchers += (held,)
        self._callbacks, self._fetching, self._commits = control.callbacks, control.fetching, control.commits
        rules = requests = None
        self._edits: Edits | None = None
        if checked.steered:
            connection = connection_of(settings.kafka)
            rules = RulesFollower(
                connection,
                settings.group,
                dispatch,
                control.rate,
                circuit,
                has_dead_letters=checked.dead_letter_topic is not None,
                has_tenants=tenancy is not None,
            )
            member = f"{settings.kafka.get('client.id') or 'headway'}@{platform.node()}"
            edits = self._edits = Edits(connection, settings.group, member, dispatch, self._levels)
            requests = RequestsFollower(connection, edits, self.request_commit)
        self._run = Run(
            self._parts,
            control,
            dispatch,
            self._levels,
            self._wake,
            tenancy,
            rules,
            requests,
            joins_late=checked.lifespan is not None,
        )

    def subscribe(
        self,
        topics: str | Iterable[str] | Mapping[str, int],
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """Read these topics. Call this once, before `run`.

        The callbacks must be plain functions. They are called one after the other, in a separate thread. If
        `on_assign`, `on_revoke` or `on_lost` raises an error, the run ends with that error.

        Args:
            topics: The names of the topics. A name that starts with `^` is a regular expression. With `levels`, this
                can be a mapping from existing topics to their levels (KIP-349).
            on_assign: Called with the list of newly assigned partitions. Records of these partitions start only after
                the call has returned.
            on_revoke: Called with the list of partitions that are about to be revoked, once none of their records is
                running, and at the end of the run with all partitions. If the call returns within the
                `hand_over_timeout`, the completed records of these partitions are committed afterwards.
            on_lost: Called with the list of partitions that were lost and that another member might already own.
                Without an `on_lost`, `on_revoke` is called instead.
            on_commit: Called with (error, offsets) after each commit. The error is None if the commit succeeded. If
                `on_commit` itself raises an exception, the exception is only logged.
        """
        self._check_open()
        if self._run.has_begun:
            raise ConfigError(
                "subscribe was called after the consumer had started. Call it once, before run, with all topics. To "
                "read other topics, close this consumer and make a new one."
            )
        self._callbacks.subscribe(on_assign, on_revoke, on_lost, on_commit)
        self._run.subscribe(subscriptions(checked_topics(topics), self._settings.levels))

    def supervise(self, table: int, suspects: Iterable[Suspect]) -> Supervision | None:
        """Write a table of the running records into the file of this descriptor, for the supervisor of this process.

        Must be called before `run`. The suspects are records that were running in processes that died. The returned
        `Supervision` accepts further suspects later. With `executor="process"`, returns None, because a handler can
        then kill only the process that it runs in.
        """
        return (
            None
            if self._options.executor == "process"
            else self._parts.supervise(table, suspects, self._commits.request)
        )

    # Running

    def run(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> None:
        """Call `handler(record, context)` for each record, until `stop` or `close` is called.

        A consumer can run only once. Plain functions run on threads, and an `async def` runs on an event loop in a
        separate thread. A record is done when the handler returns. If the handler raises an exception, the attempt has
        failed. The record is then retried according to `retries`, but never after a `FatalError` or a
        `DeserializationError` (an unreadable key or value). Ctrl-C ends `run` at once: completed records are committed,
        and the next run handles the interrupted records again. SIGTERM drains the consumer, and a second SIGTERM ends
        it at once.

        With `batches`, `handler(records, contexts)` is called for batches of up to `max_size` records. Depending on
        `ordering`, a batch has records of one key in their order, records of one partition in their order, or any
        records. A record waits up to `linger` seconds for its batch to have `min_size` records. To name the records
        that failed, the handler raises `BatchError`. After any other exception, all records of the batch have failed.

        Raises:
            HandlerError: A record failed for good, and there is no `dead_letter_topic`.
            LifespanError: The lifespan failed at its start or at its end.
            AuthenticationError: The brokers refused the login of this client.
            AuthorizationError: This client was not permitted to read a topic or to join a group when the run started.
                If a permission is revoked later, the run continues. Until the permission is granted again, it is logged
                from time to time that it is missing, and `metrics` names it.
        """
        self._start(HandlerSpec(handler, batches))

    async def run_async(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> None:
        """Do what `run` does, but run an `async def` in the caller's event loop.

        If this coroutine is cancelled, the consumer stops without draining.
        """
        await self._start_async(HandlerSpec(handler, batches))

    def run_and_produce(
        self, handler: Handler | BatchHandler, on_output: OnOutput | None = None, *, batches: Batches | None = None
    ) -> None:
        """Do what `run` does, and send the records that the handler returns or yields.

        The handler can return or yield none, one or several outputs, which must be `ProducerRecord`s. A record is done
        when Kafka has stored all its outputs. If Kafka refuses an output, the attempt has failed. With
        `commit_mode="transactional"`, outputs are committed together with the offsets of their records. If Kafka
        refuses an output in a transaction, its record becomes a dead letter. `on_output(input, output, metadata)` is
        called for each stored output, in a thread of the consumer.

        With `batches`, the handler is called with batches, as in `run`, and each output belongs to all records of its
        batch.
        """
        self._start(HandlerSpec(handler, batches, sends=True, on_output=on_output))

    async def run_and_produce_async(
        self,
        handler: Handler | BatchHandler,
        on_output: OnOutput | AsyncOnOutput | None = None,
        *,
        batches: Batches | None = None,
    ) -> None:
        """Do what `run_and_produce` does, but run an `async def` in the caller's event loop.

        `on_output` can also be an `async def`. In that case it is called in the caller's loop, for one output at a
        time, and handlers do not wait for these calls. All of them have ended when this coroutine returns. If the
        coroutine is cancelled, the consumer stops without draining, and the running call of `on_output` is cancelled.
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
        """Do what `run` does, and return the handler's results as a stream for `for` or `async for`.

        The consumer runs while the caller iterates. A record is done when the caller requests the next result. If the
        caller leaves the loop before that, the next run handles the record again. Leaving the loop stops the consumer.
        With `batches`, the handler is called with batches, as in `run`, and each batch has one result.
        """
        spec = HandlerSpec(handler, batches)
        is_async = is_coroutine_function(self._parts.handler(spec))

        def run(receiver: ResultReceiver, owner: Owner) -> None:
            self._start(replace(spec, receiver=receiver), owner if is_async else None)

        return ResultStream(run, self._stop, self._dispatch, in_batches=batches is not None)

    def outputs(self, handler: Handler | BatchHandler, *, batches: Batches | None = None) -> OutputStream:
        """Do what `run_and_produce` does, and return the stored outputs as a stream for `for` or `async for`.

        The consumer runs while the caller iterates. Each item is a `StoredOutput`: the input, the output, and metadata
        with topic, partition, offset and timestamp. An output enters the stream once Kafka has stored it and, with
        transactions, once it is committed. The record is then done, even if the caller never takes the output. While
        1,000 outputs wait for the caller, no record starts. Leaving the loop stops the consumer.
        """
        spec = HandlerSpec(handler, batches, sends=True)
        self._parts.handler(spec)  # an invalid handler must raise an error now, not only when the iteration begins

        def produce(on_output: OnOutput, owner: Owner) -> None:
            self._start(replace(spec, on_output=on_output), owner)

        return OutputStream(produce, self._stop, self._dispatch)

    def _start(self, spec: HandlerSpec, owner: Owner = None) -> None:
        self._check_open()
        self._handler_name = called(spec.handler).rpartition("<locals>.")[2]
        self._run.run(spec, owner)

    async def _start_async(self, spec: HandlerSpec) -> None:
        owner = asyncio.current_task()
        # The loop's default executor is not used, because it has few threads, and the consumer would occupy one of them
        # during the whole run.
        running = asyncio.wrap_future(in_background(lambda: self._start(spec, owner)))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop(drain=False)
            await asyncio.shield(running)
            raise

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the run, or None."""
        return self._run.failure

    # Pauses

    def pause(
        self, partitions: Iterable[TopicPartition] | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Stop starting and fetching records of these partitions, of a topic, of a level, or of all partitions.

        Running handlers continue. A pause lasts until `resume` is called, even if partitions are reassigned in the
        meantime. A pause of a topic, of a level or of all partitions also applies to partitions that are assigned
        later.
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
        """End the pause that was begun with the same arguments. Without arguments, end all pauses."""
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
        """Return the assigned partitions that are paused."""
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
                f"{shown(partitions)} is not a collection of partitions. Pass a list of partitions, such as "
                '[TopicPartition("orders", partition=3)], or name a topic, as in topic="orders".'
            )
        chosen = list(partitions or ())
        for partition in chosen:
            check_kind(
                "A partition",
                partition,
                TopicPartition,
                'a TopicPartition, such as TopicPartition("orders", partition=3)',
            )
        for each in (*(partition.level for partition in chosen), *(() if level is None else (level,))):
            check_whole("level", each, 0)
            self._levels[each]  # raises if the level does not exist
        if topic is not None and not isinstance(topic, str):
            raise ConfigError(f"topic is {shown(topic)}; it must be the name of a topic, as a str.")
        return chosen

    # Seeks

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue an assigned partition at this offset. Returns at once. The next commit includes the offset.

        Records that are not committed when `seek` is called count as not done, even if their handlers have finished. No
        record of the partition starts until the running handlers have ended or the `hand_over_timeout` has passed. The
        results of those handlers are ignored. If the offset is outside the log, the partition continues at the
        beginning or at the end of the log, whichever is nearer. Raises `ConfigError` if the partition is not assigned
        to this consumer.
        """
        check_place("offset", offset)
        self._seek([partition], SeekTarget("offset", offset))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue these partitions, or all assigned partitions, at their first record, as `seek` does."""
        self._seek(partitions, SeekTarget("beginning"))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue these partitions, or all assigned partitions, at the end of their logs, as `seek` does."""
        self._seek(partitions, SeekTarget("end"))

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue these partitions at the first record with this or a later timestamp, as `seek` does.

        The timestamp is in milliseconds since the epoch. By default, this applies to all assigned partitions.
        """
        check_place("timestamp", timestamp)
        self._seek(partitions, SeekTarget("time", timestamp))

    def _seek(self, partitions: Iterable[TopicPartition] | None, place: SeekTarget) -> None:
        self._check_open()
        chosen = self.assignment() if partitions is None else self._chosen(partitions, None, None)
        self._fetching.seek(dict.fromkeys(chosen, place))
        self._wake.set()

    def request_commit(self) -> None:
        """Request that completed records are committed now instead of after the commit interval. Returns at once."""
        self._check_open()
        self._commits.request()
        self._wake.set()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions of all levels that are assigned to this consumer. Any thread can call this."""
        self._check_process()
        return self._levels.assignment()

    @property
    def work_remaining(self) -> int:
        """The number of records that were fetched and are not done."""
        self._check_process()
        return self._dispatch.work_remaining

    def metrics(self) -> ParallelMetrics:
        """Return the current metrics, such as the numbers of records that are done, running and waiting."""
        self._check_process()
        refused = next((level.client.refused for level in self._levels if level.client.refused), None)
        metrics = self._dispatch.metrics()
        return replace(
            metrics,
            refused=refused or self._commits.refused,
            moved=self._parts.moved,
            dropped=metrics.dropped + (self._edits.dropped if self._edits else 0),
            deleted_unread=sum(sum(level.membership.deleted_unread.values()) for level in self._levels),
        )

    def measure(self) -> Measure:
        """Measure this consumer from now on, and return a function that returns its samples.

        `METRICS` in `headway.metrics.table` describes the samples. The function sends no request to Kafka, any thread
        can call it, and it can be called after the consumer was closed. While a consumer is measured, it asks the
        leaders of its partitions every 5 seconds for the ends of their logs. A consumer that is not measured has no
        such costs. Further calls return the same function.
        """
        self._check_process()
        with self._measuring:
            if self._samples is None:
                self._samples = ConsumerSamples(
                    self._settings.group,
                    str(self._settings.kafka.get("client.id") or "headway"),
                    lambda: self._handler_name,
                    self.metrics,
                    *(self._dispatch, self._levels, self._fetching, self._commits, self._run),
                    self._observe(),
                )
            return self._samples.samples

    def watch_health(self, stalls_after: float = 60.0) -> CheckHealth:
        """Watch from now on whether this consumer works, and return a function that returns its `Health`.

        A partition that has not moved for `stalls_after` seconds although it could go on makes the consumer not live.
        Slow handlers, pauses, an open circuit and missing brokers do not. Any thread can call the function.
        """
        check_above_zero("stalls_after", stalls_after)
        self._check_process()
        with self._measuring:
            watch = HealthWatch(
                *(self._dispatch, self._levels, self._commits, self._run, self._observe()), stalls_after
            )
            self._control.watchers += (watch,)
        return watch.health

    def _observe(self) -> Observations:
        if self._observations is None:
            self._observations = Observations(self._dispatch, self._levels, self._fetching)
            self._control.watchers += (self._observations,)
        return self._observations

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for all further logins.

        If a broker has refused the previous credentials, log in again at once.

        Open connections stay open. Any thread can call this. Raises `ConfigError` if librdkafka does not accept the
        credentials.
        """
        self._check_open()
        for level in self._levels:
            level.client.set_sasl_credentials(username, password)
        self._parts.set_sasl_credentials(username, password)
        change_credentials(self._settings.kafka, username, password)

    def forked(self) -> None:
        """Make this copy of the consumer unusable, because its threads do not exist in a forked process."""
        self._is_forked = True

    def _check_process(self) -> None:
        if self._is_forked:
            raise made_before_fork("consumer")

    def _check_open(self) -> None:
        self._check_process()
        if self._run.has_ended:
            raise ClosedError("The consumer is closed. Make a new one.")

    # Stopping

    def stop(self, *, drain: bool = True, timeout: float = DRAIN_WITHIN) -> None:
        """Make `run` end, and return at once. Handlers and signal handlers can call this.

        With `drain`, running handlers have `timeout` seconds to end, from 0 to `math.inf`. Without `drain`, the
        consumer does not wait for running handlers, and the next run handles their records again. The `timeout`
        includes the time to commit and to leave the groups, which is at most 10 seconds. In both cases completed
        records are committed, and fetched records that have not started are left for the next run.
        """
        timeout = checked_timeout(timeout)
        if not self._is_forked:
            self._run.stop(drain, timeout)

    def _stop(self, drain: bool) -> None:
        self.stop(drain=drain)

    def close(self, *, drain: bool = True, timeout: float = DRAIN_WITHIN) -> None:
        """Stop the consumer, as `stop` does, and wait until `run` has ended.

        Do not call this in a handler, because `run` would wait for the handler and `close` would wait for `run`. In a
        callback of the consumer, `close` raises `HeadwayError` for the same reason. In a forked process, `close` does
        nothing.
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
        size_of_output=size_of_output,
        retry_share=options.all_retries.share,
        tenants=None if tenancy is None else tenancy.weights,
        tenant_rate=None if tenancy is None else tenancy.rates,
        key_rate=options.key_rate_limit,
        latest_only=options.latest_only,
    )

"""Makes the parts of a run: the executor, the lifespan, and the clients for outputs, dead letters and schedules."""

import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.engine.suspects import Suspect
from headway.core.levels.naming import LevelSubscription, unread_levels
from headway.core.permissions import Permission
from headway.declarations import is_coroutine_function
from headway.errors import AuthorizationError, ConfigError, HeadwayError, KafkaError
from headway.execution.dispatch import Dispatch
from headway.execution.event_loop import EventLoop
from headway.execution.executor import Executor, HandlerCalls
from headway.execution.failures import Letters
from headway.execution.gates.supervision import Supervision
from headway.execution.handler_calls import BatchCalls, RecordCalls, ResultReceiver
from headway.execution.handlers import WithContext
from headway.execution.lifespan import Life, with_state
from headway.execution.processes.messages import Deserializers
from headway.execution.running_table import RunningTable
from headway.execution.threads import Threads
from headway.kafka.admin import Admin
from headway.kafka.binding.time_limits import COMMIT_ANSWERED_WITHIN
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.transactional_writer import TransactionalWriter
from headway.kafka.result_topic import ensure_result_topic
from headway.parallel.batches import Batches
from headway.parallel.call_results import CallResults
from headway.parallel.dead_letters import DeadLetters, LetterTopic, most_bytes
from headway.parallel.delayed_retries import DelayedRetries
from headway.parallel.failed_calls import FailedCalls
from headway.parallel.handler_spec import HandlerSpec
from headway.parallel.moves import RecordMoves
from headway.parallel.options import ParallelOptions
from headway.parallel.outputs import HandlerOutputs, Sending, producer_for
from headway.parallel.stream import Owner
from headway.parallel.transactions import Transactions
from headway.runtime.deferred_signals import defer_signals
from headway.runtime.wakeup import Wakeup
from headway.settings.config import OutputSettings, ParallelSettings
from headway.settings.connection_settings import connection_of

if TYPE_CHECKING:
    from headway.execution.traced_calls import TracedCalls
    from headway.tracing.spans import Spans

log = logging.getLogger(__name__)


class ClosablePart(Protocol):
    """A part that must be closed at the end of the run."""

    def close(self, timeout: float) -> Any: ...


class ClosableClient(ClosablePart, Protocol):
    """A client of the run."""

    def set_sasl_credentials(self, username: str, password: str) -> None: ...


class RunParts:
    """Makes the parts of a run in the order of their dependencies, and lists the parts to close at its end."""

    def __init__(
        self,
        options: ParallelOptions,
        settings: ParallelSettings,
        dispatch: Dispatch,
        levels: LevelConsumers,
        wake: Wakeup,
    ) -> None:
        self._options = options
        self._settings = settings
        self._dispatch = dispatch
        self._levels = levels
        self._wake = wake
        self._executor: Executor | None = None
        self._supervision: Supervision | None = None
        self._life = Life(options.lifespan, connection_of(settings.kafka)) if options.lifespan else None
        self._clients: list[ClosableClient] = []
        self._moves: RecordMoves | None = None
        self.spans = options.tracing.spans() if options.tracing else None
        """Makes the spans of the run. None unless the run is traced."""
        self._traced_calls: TracedCalls | None = None
        self.transactions: Transactions | None = None
        """Commits the transactions of the run.

        None before the run starts. None in commit modes without transactions, until the first record is moved.
        """

    @property
    def group(self) -> str:
        """The consumer group, without the number of a level."""
        return self._settings.group

    def supervise(self, table: int, suspects: Iterable[Suspect], request_commit: Callable[[], None]) -> Supervision:
        """Write a table of running records into the file of this descriptor, and make suspects run alone."""
        running = RunningTable(table, self._options.max_concurrency)
        self._supervision = Supervision(running, suspects, request_commit)
        self._dispatch.add(self._supervision)
        return self._supervision

    def handler(self, spec: HandlerSpec) -> WithContext:
        """Return the handler in the form that executors call, with the lifespan's state in its context.

        Raises `ConfigError` if the handler cannot be called, or cannot be used with the lifespan or `latest_only`.
        """
        handler = spec.checked(self._options.executor)
        if spec.batches and self._options.latest_only:
            raise ConfigError(
                "latest_only leaves one waiting record of each key, so a batch of the records of a key would have one "
                "record. Leave out batches or latest_only."
            )
        if not self._life:
            return handler
        self._life.check(handler)
        if self._options.executor == "process":  # each process enters the lifespan and has a state of its own
            return handler
        return with_state(handler, self._life.state, in_batches=spec.batches is not None)

    def require_permissions(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Raise `AuthorizationError` if this client is not permitted to read a topic.

        Also logs a warning if Kafka has topics for levels that are not read. If no broker answers, a message is logged
        instead, so that the run can begin nevertheless. Permission for a group is checked by Kafka when the member
        joins.
        """
        topics = [topic for each in subscriptions for topic in each.topics if not topic.startswith("^")]
        try:
            admin = Admin(self._connection())
            admin.require([Permission("Read", "Topic", topic) for topic in topics])
            # Lists all topics, because brokers log a refused request for a topic that this client cannot describe.
            for topic in unread_levels(subscriptions, admin.topics().seen):
                log.warning(
                    "The Kafka topic %s exists, but this consumer does not read it, because levels is %d. Its records "
                    "are not handled until another consumer reads them.",
                    topic,
                    len(subscriptions),
                )
        except AuthorizationError:
            raise
        except KafkaError as unknown:
            log.info("It is not known yet whether this client is permitted to read the topics: %s", unknown)

    def start(self, spec: HandlerSpec, handler: WithContext, owner: Owner, is_stopping: Callable[[], bool]) -> None:
        """Make the clients and the executor, enter the lifespan, and let the dispatch start jobs.

        Args:
            spec: The declaration of the handler.
            handler: The handler in the form that executors call, as the method `handler` returns it.
            owner: The task in whose event loop coroutine handlers run.
            is_stopping: A function that returns whether the run was stopped. If so, this method no longer waits for
                start-ups.
        """
        options, settings = self._options, self._settings
        receiver: ResultReceiver | None = spec.receiver
        letters: Letters | None = None
        letter_topic = self._letter_topic()
        results = self._make_call_results(spec) if options.result_topic is not None else None
        if options.commit_mode == "transactional":
            transactions = self._make_transactions(spec, letter_topic, results)
            receiver = transactions if spec.sends or results else receiver
            letters = transactions if letter_topic else None
        elif spec.sends or results:
            client = self._make_producer(None)
            receiver = sending = Sending(client, self._make_outputs(client, spec, results), self._dispatch)
            self._clients.append(sending)
        if results:
            # A transaction stores the results of dead letters, but no dropped record is part of one.
            is_transactional = self.transactions is not None
            client = self._make_producer(None) if is_transactional else client
            self._dispatch.add(FailedCalls(results, client, only_dropped=is_transactional))
        if letter_topic:
            letter_topic.require_writable()
            letters = letters or self._make_dead_letters(letter_topic)
            if self.spans:
                letters = _traced_letters(letters, self.spans)
        schedules = DelayedRetries(settings.kafka, settings.group, settings.scheduler, self._dispatch)
        self._clients.append(schedules)
        moves = self._moves = self._make_moves(letter_topic)
        self._clients.append(moves)
        # A transaction commits the outputs of a batch together with the offsets of all its records. If the records
        # belonged to several partitions, one of these partitions could be lost or handed over before the commit.
        of_one_partition = spec.sends and options.commit_mode == "transactional"
        if spec.batches:
            self._fill_batches(spec.batches, of_one_partition)
        if self._life and options.executor != "process":
            self._life.start(handler, owner.get_loop() if owner else None, is_stopping, self._dispatch.give_up)
        with defer_signals():
            executor = self._executor = self._make_executor(spec, handler, receiver, owner)
        executor.wait_until_started(is_stopping)
        self._dispatch.begin(
            executor,
            letters=letters,
            schedules=schedules,
            moves=moves,
            is_supervised=self._supervision is not None,
            batch_size=spec.batches.max_size if spec.batches else None,
            of_one_partition=of_one_partition,
        )

    def _fill_batches(self, batches: Batches, of_one_partition: bool) -> None:
        """Configure the engine, and the table of running records, for batches of these sizes."""
        if self._supervision:
            self._supervision.expect_batches(self._options.max_concurrency, batches.max_size)
        self._dispatch.engine.let_batches_fill(batches.least, batches.linger, of_one_partition)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for all further logins of the run's clients."""
        for client in self._clients:
            client.set_sasl_credentials(username, password)

    @property
    def moves(self) -> RecordMoves:
        """Moves records to other topics. Exists once the run has started."""
        assert self._moves is not None  # noqa: S101 - for the type checker
        return self._moves

    @property
    def moved(self) -> int:
        """The number of records that were moved to other topics."""
        return self._moves.moved if self._moves else 0

    @property
    def can_begin_transactions(self) -> bool:
        """True if records wait until a run without transactions begins to commit in transactions."""
        return self._moves is not None and self._moves.is_ready

    def begin_transactions(self) -> None:
        """Commit in transactions from now on, because records must be moved. No plain commit must be pending."""
        if self._moves is not None and self._moves.is_ready:
            self.transactions = self._moves.begin_transactions()

    @property
    def failure(self) -> HeadwayError | None:
        """The error that the lifespan's shut-down raised, or None."""
        return self._life.failure if self._life else None

    def closing(self) -> Iterator[ClosablePart]:
        """Yield the parts that must be closed at the end of the run, in the right order."""
        if self._executor:
            yield self._executor
        if self._traced_calls:
            yield self._traced_calls
        if self._life:
            yield self._life
        yield from reversed(self._clients)

    def forget_running(self) -> None:
        """Clear the table of running records. Must be called only when the run has ended."""
        if self._supervision:
            self._supervision.clear()

    def _make_executor(
        self, spec: HandlerSpec, handler: WithContext, receiver: ResultReceiver | None, owner: Owner
    ) -> Executor:
        options = self._options
        kind = BatchCalls if spec.batches else RecordCalls
        calls: HandlerCalls = kind(handler, self._dispatch, receiver, self._supervision)
        if self.spans:
            calls = self._traced(calls, self.spans)
        if is_coroutine_function(handler):
            loop = owner.get_loop() if owner else self._life.loop if self._life else None
            return EventLoop(calls, loop, options.time_limit, owner)
        if options.executor == "process":
            from headway.execution.processes.pool import Processes  # noqa: PLC0415 - few runs need this import

            return Processes(
                calls,
                handler,
                self._dispatch,
                Deserializers(self._settings.key_deserializer, self._settings.value_deserializer),
                in_batches=spec.batches is not None,
                count=options.processes or os.cpu_count() or 1,
                slots=options.max_concurrency,
                time_limit=options.time_limit,
                life=self._life,
                carrier_of=self._traced_calls.carrier if self._traced_calls else None,
            )
        return Threads(calls, options.max_concurrency, options.time_limit)

    def _traced(self, calls: HandlerCalls, spans: "Spans") -> HandlerCalls:
        from headway.execution.traced_calls import TracedCalls  # noqa: PLC0415 - only a run that is traced needs this

        self._traced_calls = TracedCalls(calls, spans, self.group)
        return self._traced_calls

    def _letter_topic(self) -> LetterTopic | None:
        topic, settings = self._options.dead_letter_topic, self._settings
        if topic is None:
            return None
        return LetterTopic(
            topic, settings.kafka, settings.group, most_bytes(settings.kafka, self._options.outputs.kafka)
        )

    def _make_dead_letters(self, topic: LetterTopic) -> DeadLetters:
        with defer_signals():
            letters = DeadLetters(topic, self._dispatch)
            self._clients.append(letters)
        return letters

    def _make_call_results(self, spec: HandlerSpec) -> CallResults:
        topic = self._options.result_topic or ""
        if spec.batches or spec.receiver:
            raise ConfigError(
                f"result_topic is {topic!r}, but only handlers of single records whose results are not streamed can "
                "answer calls. Leave out result_topic, or use run or run_and_produce without batches."
            )
        return CallResults(topic, ensure_result_topic(Admin(self._connection()), topic))

    def _make_transactions(
        self, spec: HandlerSpec, letter_topic: LetterTopic | None, results: CallResults | None
    ) -> Transactions:
        client = self._make_producer(self._transactional_id())
        has_generated_id = "transactional.id" not in self._options.outputs.kafka
        outputs = self._make_outputs(client, spec, results)
        transactions = self._transactions(client, outputs, letter_topic, has_generated_id)
        transactions.fence()
        self._clients.append(transactions)
        self.transactions = transactions
        return transactions

    def _transactions(
        self, client: ProducerClient, outputs: HandlerOutputs, letter_topic: LetterTopic | None, has_generated_id: bool
    ) -> Transactions:
        return Transactions(
            TransactionalWriter(client, self._why_not_writable, COMMIT_ANSWERED_WITHIN),
            outputs,
            self._dispatch,
            self._levels,
            self._wake,
            letter_topic,
            has_generated_id=has_generated_id,
        )

    def _transactional_id(self) -> str:
        return f"{self._settings.group}-{uuid.uuid4().hex}"

    def _make_moves(self, letter_topic: LetterTopic | None) -> RecordMoves:
        def make() -> tuple[ProducerClient, Transactions]:
            if self._settings.kafka.get("isolation.level", "read_committed") != "read_committed":
                # The next owner of a partition would not wait for the offsets in an open transaction.
                raise ConfigError("Records can be moved only in transactions. Remove isolation.level.")
            # Settings of the handler's outputs, such as `acks`, might not be possible with transactions.
            settings, connection = OutputSettings.parse({}), self._connection()
            client = producer_for(settings, connection, self._transactional_id(), most_bytes(self._settings.kafka))
            outputs = HandlerOutputs(settings, client, None, connection, self._settings.scheduler)
            return client, self._transactions(client, outputs, letter_topic, has_generated_id=True)

        return RecordMoves(self._dispatch, self._settings.group, self._wake, make, self.transactions)

    def _make_outputs(self, client: ProducerClient, spec: HandlerSpec, results: CallResults | None) -> HandlerOutputs:
        make = _make_traced_outputs(self.spans) if self.spans else HandlerOutputs
        return make(
            self._options.outputs,
            client,
            spec.on_output,
            self._connection(),
            self._settings.scheduler,
            of_batches=spec.batches is not None,
            returns_outputs=spec.sends,
            results=results,
        )

    def _make_producer(self, transactional_id: str | None) -> ProducerClient:
        outputs = self._options.outputs
        most = most_bytes(self._settings.kafka, outputs.kafka)
        with defer_signals():  # if an interrupt came between the next two lines, nothing would close the client
            client = producer_for(outputs, self._connection(), transactional_id, most)
            self._clients.append(client)
        return client

    def _why_not_writable(self, topic: str) -> str | None:
        return Admin(self._connection()).why_not_writable(topic)

    def _connection(self) -> dict[str, Any]:
        return connection_of(self._settings.kafka)  # computed again for each use, because credentials can change


# Only a run that is traced needs these imports.


def _traced_letters(letters: Letters, spans: "Spans") -> Letters:
    from headway.parallel.traced_parts import TracedLetters  # noqa: PLC0415

    return TracedLetters(letters, spans)


def _make_traced_outputs(spans: "Spans") -> Callable[..., HandlerOutputs]:
    from headway.parallel.traced_parts import TracedOutputs  # noqa: PLC0415

    return partial(TracedOutputs, spans)

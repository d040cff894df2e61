"""The parts of one run: the executor of its handlers, and the clients for outputs, dead letters and later retries."""

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headway.core.engine.circuit import Circuit, CircuitBreaker
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering, OrderingName
from headway.core.engine.rate_limits import RateLimits
from headway.core.engine.slot_policies import SlotPolicy
from headway.core.levels.naming import LevelSubscription, unread_levels
from headway.core.record_size import RECORD_TAKES
from headway.core.rights import Right
from headway.declarations import is_coroutine_function
from headway.errors import AuthorizationError, HeadwayError, KafkaError
from headway.execution.dispatch import Dispatch
from headway.execution.event_loop import EventLoop
from headway.execution.failures import Letters
from headway.execution.handlers import Handlers, Settle, WithContext
from headway.execution.lifespan import Life, Lifespan, with_state
from headway.execution.processes.messages import Deserializers
from headway.execution.supervision import Supervision
from headway.execution.threads import Threads
from headway.kafka.admin import Admin
from headway.kafka.consumer.level_consumers import LevelConsumers, members_of
from headway.kafka.consumer.member_names import as_member
from headway.kafka.producer.client import ProducerClient
from headway.kafka.serialization import key_reader, value_reader
from headway.parallel.batches import Batches
from headway.parallel.commits import CommitMode, Commits
from headway.parallel.control_loop import Executor
from headway.parallel.dead_letters import DeadLetters, most_bytes, require_writable, why_not_stored
from headway.parallel.delayed_retries import DelayedRetries
from headway.parallel.outputs import OnOutput, Outputs, Sending, producer_for, size_of_output
from headway.parallel.tenancy import Tenancy
from headway.parallel.transactions import Transactions
from headway.records.record_types import ConsumerRecord
from headway.runtime.deferred_signals import defer_signals
from headway.runtime.wakeup import Wakeup
from headway.settings.config import OutputSettings, ParallelSettings
from headway.settings.connection_settings import connection_of

log = logging.getLogger(__name__)

ExecutorName = Literal["thread", "async", "process"]
OnExpired = Literal["drop", "dead_letter"]


class Sends(Protocol):
    """A client that sends for a consumer and is closed at the end of a run; `timeout` is in seconds."""

    def close(self, timeout: float) -> Any: ...
    def set_sasl_credentials(self, username: str, password: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The checked options of a consumer by which its run is made; see `ParallelConsumer`."""

    settings: ParallelSettings
    outputs: OutputSettings
    max_concurrency: int
    time_limit: float | None
    executor: ExecutorName | None
    processes: int | None
    dead_letter_topic: str | None
    commit_mode: CommitMode
    on_expired: OnExpired
    circuit_breaker: CircuitBreaker | None
    lifespan: Lifespan | None
    limits: RateLimits[ConsumerRecord] | None


class RunParts:
    """The maker of a run's parts, which closes them in the end."""

    def __init__(
        self, options: RunOptions, dispatch: Dispatch, levels: LevelConsumers, committing: Commits, wake: Wakeup
    ) -> None:
        self._options = options
        self._dispatch = dispatch
        self._levels = levels
        self._committing = committing
        self._wake = wake
        self._executor: Executor | None = None
        self._batch_size: int | None = None
        self._of_one_partition = False
        self.clients: list[Sends] = []
        self.supervision: Supervision | None = None
        shared = connection_of(options.settings.kafka)
        self.life = None if options.lifespan is None else Life(options.lifespan, shared)

    def require_rights(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Raise `AuthorizationError` for a topic that may not be read; a group's coordinator refuses the group itself.

        It warns of levels that nobody reads. A run also begins while the brokers are away.
        """
        topics = [topic for each in subscriptions for topic in each.topics if not topic.startswith("^")]
        try:
            admin = Admin(self._connection())
            admin.require([Right("Read", "Topic", topic) for topic in topics])
            for topic in unread_levels(subscriptions, admin.topics().seen):
                log.warning(
                    "The Kafka topic %s exists, and this consumer does not read it: it has levels=%d. Without another "
                    "consumer its records wait for ever.",
                    *(topic, len(subscriptions)),
                )
        except AuthorizationError:
            raise
        except KafkaError as unknown:
            log.info("Whether the topics may be read is not known yet: %s", unknown)

    def begin(
        self, calls: Handlers, owner: "asyncio.Task[Any] | None", is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """Make what the run needs, what handlers share last of all, and let the dispatch start jobs."""
        if self._options.commit_mode == "transactional" and not self._committing.transactions:
            self._make_transactions(None)
        letters = self._make_letters()
        settings = self._options.settings
        schedules = DelayedRetries(settings.kafka, settings.group, settings.scheduler, self._dispatch)
        self.clients.append(schedules)
        if self.life and self._options.executor != "process":
            loop = owner.get_loop() if owner else None
            self.life.start(calls.handler, loop, is_stopping, self._dispatch.give_up)
        with defer_signals():
            executor = self._executor = self._make_executor(calls, owner)
        if self.life and self._options.executor == "process":
            executor.wait_until_started(is_stopping)  # type: ignore[attr-defined]
        self._dispatch.begin(
            executor.start,
            letters=letters,
            schedules=schedules,
            supervision=self.supervision,
            batch_size=self._batch_size,
            of_one_partition=self._of_one_partition,
            limits=self._options.limits,
            keeps_expired=self._options.on_expired == "dead_letter",
            circuit=Circuit(self._options.circuit_breaker) if self._options.circuit_breaker else None,
        )

    def handle_in_batches(self, batches: Batches, *, with_outputs: bool) -> None:
        """Have jobs be batches, for which records wait.

        The outputs of a batch are committed with all its offsets. In transactions a batch is therefore of one
        partition: other partitions may be lost, or handed over, at another time.
        """
        of_one = with_outputs and self._options.commit_mode == "transactional"
        engine = self._dispatch.engine
        if self.supervision:
            self.supervision.expect_batches(self._options.max_concurrency, batches.max_size)
        engine.let_batches_fill(batches.least, batches.linger, of_one)
        self._batch_size, self._of_one_partition = batches.max_size, of_one

    def settle_outputs(self, on_output: OnOutput | None, *, of_batches: bool) -> Settle:
        """Return the function that takes what handlers return, to be sent."""
        if self._options.commit_mode == "transactional":
            return self._make_transactions(on_output, of_batches=of_batches).settle
        client = self._make_producer(None)
        sending = Sending(client, self._make_outputs(client, on_output, of_batches=of_batches), self._dispatch)
        self.clients.append(sending)
        return sending.settle

    def _make_outputs(self, client: ProducerClient, on_output: OnOutput | None, *, of_batches: bool) -> Outputs:
        options = self._options
        scheduler = options.settings.scheduler
        return Outputs(options.outputs, client, on_output, self._connection(), scheduler, of_batches=of_batches)

    def with_state(self, handler: WithContext, *, in_batches: bool) -> WithContext:
        """Return a handler whose context has the state of the lifespan; other processes have their own.

        Raises `ConfigError` for a lifespan that does not go with the handler.
        """
        if self.life is None:
            return handler
        life = self.life
        life.check(handler)
        if self._options.executor == "process":
            return handler
        return with_state(handler, lambda: life.state, in_batches=in_batches)

    @property
    def failure(self) -> HeadwayError | None:
        """The error of the shut-down of what handlers share."""
        return self.life.failure if self.life else None

    def closing(self) -> Sequence[Sends | Executor | Life]:
        """Return what is to be closed at the end, the last first."""
        closing: list[Sends | Executor | Life] = [*self.clients]
        closing += [self.life] if self.life else []
        closing += [self._executor] if self._executor else []
        return closing

    def _make_executor(self, calls: Handlers, owner: "asyncio.Task[Any] | None") -> Executor:
        options = self._options
        if self.supervision:
            calls = calls._replace(call=self.supervision.fail_as_before(calls.call))
        if is_coroutine_function(calls.handler):
            loop = owner.get_loop() if owner else self.life.loop if self.life else None
            return EventLoop(calls, loop, options.time_limit, owner)
        if options.executor == "process":
            from headway.execution.processes.pool import Processes  # noqa: PLC0415 - most runs have none

            return Processes(
                calls,
                self._dispatch,
                Deserializers(options.settings.key_deserializer, options.settings.value_deserializer),
                count=options.processes or os.cpu_count() or 1,
                slots=options.max_concurrency,
                time_limit=options.time_limit,
                life=self.life,
            )
        return Threads(calls, options.max_concurrency, options.time_limit)

    def _make_letters(self) -> Letters | None:
        topic = self._options.dead_letter_topic
        if topic is None:
            return None
        require_writable(topic, self._connection())
        if self._committing.transactions:
            return self._committing.transactions
        settings = self._options.settings
        most = self._most_bytes()
        with defer_signals():
            letters = DeadLetters(topic, settings.kafka, settings.group, self._dispatch, most)
            self.clients.append(letters)
        return letters

    def _make_transactions(self, on_output: OnOutput | None, *, of_batches: bool = False) -> Transactions:
        outputs = self._options.outputs
        client = self._make_producer(f"{self._options.settings.group}-{uuid.uuid4().hex}")
        transactions = Transactions(
            client,
            self._make_outputs(client, on_output, of_batches=of_batches),
            self._dispatch,
            self._levels,
            self._wake,
            dead_letter_topic=self._options.dead_letter_topic,
            own_id="transactional.id" not in outputs.kafka,
            group=self._options.settings.group,
            most_bytes=self._most_bytes(),
            why_not=lambda topic: Admin(self._connection()).why_not_writable(topic),
            why_no_letters=lambda topic: why_not_stored(topic, self._connection()),
        )
        transactions.begin()
        self.clients.append(transactions)
        self._committing.transactions = transactions
        return transactions

    def _make_producer(self, transactional_id: str | None) -> ProducerClient:
        most = self._most_bytes()
        with defer_signals():  # nobody would end the threads of a client that is not in the list
            client = producer_for(self._options.outputs, self._connection(), transactional_id, most)
            self.clients.append(client)
        return client

    def _most_bytes(self) -> int:
        return most_bytes(self._options.settings.kafka, self._options.outputs.kafka)

    def _connection(self) -> dict[str, Any]:
        return connection_of(self._options.settings.kafka)  # its credentials may have changed


def make_levels(settings: ParallelSettings) -> LevelConsumers:
    """Return the consumers of the levels, which commit only what they are told to."""
    readers = key_reader(settings.key_deserializer), value_reader(settings.value_deserializer)
    # An end that is reached tells the position behind transaction markers, which are no records.
    own = {"enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": True}
    kafka = as_member(settings.kafka) | own
    per_level = settings.group_per_level
    return LevelConsumers(members_of(settings.group, settings.levels, kafka, readers, per_level=per_level))


def make_engine(
    ordering: Ordering | OrderingName,
    levels: int,
    slots: SlotPolicy,
    buffer: int,
    room: int,
    retry_share: float,
    tenancy: Tenancy | None,
    limits: RateLimits[ConsumerRecord] | None,
) -> Engine[ConsumerRecord]:
    """Return the engine, which knows how much memory records and outputs take."""
    return Engine(
        Ordering(ordering),
        levels=levels,
        slots=slots,
        buffer=buffer,
        room=room,
        size_of=_size,
        size_of_output=size_of_output,
        retry_share=retry_share,
        tenants=None if tenancy is None else tenancy.weights,
        limits=limits,
    )


def _size(record: ConsumerRecord) -> int:
    """Return the bytes of a record without its headers, which are added where they are read."""
    return RECORD_TAKES + len(record.raw_key or b"") + len(record.raw_value or b"")

"""The producer: it returns a future for each record, and offers flow control, levels, transactions and due times."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from headway.core.levels.capacity import Distributor
from headway.core.outgoing_record import OutgoingRecord
from headway.core.producer.accumulator import Accumulator, Limits
from headway.core.producer.turn_policies import make_turn_policy
from headway.core.record_size import RECORD_TAKES
from headway.declarations import checked_timeout
from headway.delay.due_time import When, with_expiry
from headway.delay.schedule_encoder import check_later
from headway.delay.scheduler import Scheduler
from headway.errors import ClosedError, ConfigError, KafkaError
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.error_causes import is_fenced
from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.kafka.producer.delivery import DeliveryFuture, Destination, OnDelivery
from headway.kafka.producer.headers import header_list
from headway.kafka.producer.sendable import Offered
from headway.kafka.producer.sender import Sender
from headway.kafka.serialization import key_writer, value_writer
from headway.metrics.samples import Measure
from headway.priority.destinations import Destinations
from headway.priority.producer_samples import ProducerSamples
from headway.priority.producer_transactions import ProducerTransactions
from headway.priority.producers_scheduler import ProducersScheduler
from headway.priority.record_fields import fields_of, fields_of_now
from headway.records.record_types import Header, ProducerRecord, TopicPartition
from headway.runtime.end_steps import EndSteps, construction
from headway.runtime.lifecycle import Closable, time_left_of
from headway.settings.config import Config, ProducerSettings
from headway.tracing.tracing import Tracing, checked_spans

if TYPE_CHECKING:
    from headway.priority.consumer import PriorityConsumer
    from headway.tracing.spans import Spans

REQUEST_TIMEOUT = 30.0
"""How long a call waits for Kafka by default, in seconds."""

OnFull = Literal["block", "raise"]


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """The counts of a producer since its start. Each list has one count for each level, lowest level first.

    `queued` is the number of records, of all levels, that have no delivery report yet. `queued_bytes` is the total size
    of these records, which `buffer.memory` limits.
    """

    sent: list[int]
    delivered: list[int]
    failed: list[int]
    queued: int
    queued_bytes: int


class Producer(Closable):
    """A producer that returns a future for each record it sends.

    With the setting `levels` each record goes to its level's topic: a record of level i for `orders` goes to
    `orders-i`. Without that setting records go to topics of exactly the given names.

    The settings are listed in `headway.settings.config`; all other keys are passed to librdkafka. Records with a key go
    to the partition that Java's producer would choose (murmur2). Records without a key fill a batch for one partition,
    then for another. When the buffer is full, `send` waits, or raises `BufferFullError` with `on_full="raise"`. If
    records of several levels are waiting, the `policy` decides which level sends next. `fair` gives each level twice
    the share of the level below it, or the shares of the `distributor`. `strict` always takes the highest level first,
    unless a record has waited for `strict.max.wait.ms`. Raises `ConfigError` if a setting is not valid.

    Thread-safe. `close`, or the end of the `with` block, delivers all records that were sent. `after_reports` is called
    after each batch of delivery reports, on the thread that processed them. With a `tracing`, each record that is sent
    has a span.
    """

    def __init__(
        self,
        config: Config,
        *,
        policy: Literal["fair", "strict"] = "fair",
        distributor: Distributor | None = None,
        on_full: OnFull = "block",
        after_reports: Callable[[], None] = lambda: None,
        tracing: Tracing | None = None,
    ) -> None:
        if on_full not in ("block", "raise"):
            raise ConfigError(f"on_full is {on_full!r}; it must be 'block' or 'raise'.")
        settings = ProducerSettings.parse(config)
        spans = checked_spans(tracing)
        self.max_block = settings.max_block
        self._raises = on_full == "raise"
        self._memory = settings.memory
        self._client_name = str(settings.kafka.get("client.id") or "headway")
        levels = settings.levels or 1
        limits = Limits(settings.memory, settings.reserve, settings.window, settings.delivery_timeout)
        turns = make_turn_policy(policy, distributor, levels, max_wait=settings.max_wait)
        with construction(lambda: self.close(0)):
            self.sender = Sender(
                settings.kafka,
                Accumulator(levels, turns, limits),
                RECORD_TAKES,
                settings.least_size,
                key_writer(settings.key_serializer),
                value_writer(settings.value_serializer),
                after_reports,
                settings.partitioner,
            )
            self.destinations = Destinations(self.sender, settings.levels)
            self._samples: ProducerSamples | None = None
            self._transactions = ProducerTransactions(self.sender, self.destinations)
            # The scheduler's own client is not transactional, because it stores the schedules that are sent outside
            # transactions. The delay topics limit the size of the schedules, so this client does not need
            # message.max.bytes.
            kafka = {
                key: value
                for key, value in settings.kafka.items()
                if not key.startswith("transaction") and key != "message.max.bytes"
            }
            serializers = {"key.serializer": settings.key_serializer, "value.serializer": settings.value_serializer}
            self._scheduler_config = kafka | {key: function for key, function in serializers.items() if function}
            self._scheduler_name = settings.scheduler
            self._tracing = tracing
            self._scheduler: Scheduler | None = None
            self._making_scheduler = threading.Lock()
            self.is_closed = self._is_forked = False
            self._steps_to_end = EndSteps(lambda: [self._close_sender, self._close_scheduler])
            self._closing_within = time_left_of(None)
            self._undelivered = 0  # the number of records that were not delivered when the producer was closed
            register_for_forks(self)
        if spans:
            _trace_sends(self, spans)

    # Sending

    def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        level: int | None = None,
        due: When | None = None,
        expires: When | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        id: str | None = None,
        if_pending: Literal["replace", "keep"] = "replace",
    ) -> DeliveryFuture:
        """Send a record. Returns a future that resolves to its `RecordMetadata`, or raises `DeliveryError`.

        Instead of a topic you can pass a `ProducerRecord`, which contains all fields of the record: `send(record,
        on_delivery=...)`. The `level` is 0, the lowest, by default. `timestamp` is in milliseconds since the epoch, and
        the current time by default.

        With a `due` time a relay delivers the record at that time, and the future resolves once the record is stored in
        its delay topic. The first call with a `due` time asks Kafka for the scheduler's topics and may create them.
        With a `due` time, the serialisers run on the caller's thread, and the call raises the errors of
        `Scheduler.send_later`. `id` and `if_pending` have the same meaning as for `send_later`, but `refuse` is not
        available. While a transaction of this producer is open, the schedule is part of the transaction.

        `expires` is a time, or a number of seconds from now, after which a `ParallelConsumer` no longer starts the
        record.

        `on_delivery(error, metadata)` is called on a thread of the producer, or during any call that sends, flushes or
        waits for a result. So the callback must not wait for a lock that a thread may hold during such a call.

        Without `due` the call waits only for buffer space, for up to `max.block.ms`. Raises `ConfigError` and sends
        nothing if the level does not exist. If a record fails later, for example in its serialiser, the future raises
        the error.

        Do not call `send` in a signal handler, because the signal may have interrupted another `send`. Let the handler
        pass the record to a thread instead.
        """
        if topic.__class__ is not str and isinstance(topic, ProducerRecord):  # faster for str than `isinstance` alone
            given = (value, key, headers, partition, timestamp, level, due, expires, id)
            return self.send(**fields_of(topic, self.destinations.has_levels, *given), on_delivery=on_delivery)
        if due is not None or id is not None:
            return self._send_later(
                topic, value, key, headers, partition, timestamp, level, due, expires, on_delivery, id, if_pending
            )
        if expires is not None:
            headers = with_expiry(headers, expires)
        try:
            destination = self.destinations.open[level][topic]
        except KeyError:
            destination = self.destination(topic, level)
        if headers is not None:
            headers = header_list(headers)
        future = DeliveryFuture.of(destination, on_delivery)
        if not self.sender.offer(future, destination, value, key, partition, timestamp, headers):
            self._wait_for_space(future, (future, destination, value, key, partition, timestamp, headers))
        return future

    def try_send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        level: int | None = None,
        expires: When | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture | None:
        """Send a record as `send` does if the buffer has space now. Otherwise send nothing and return None."""
        if isinstance(topic, ProducerRecord):
            given = (value, key, headers, partition, timestamp, level, expires)
            return self.try_send(**fields_of_now(topic, self.destinations.has_levels, *given), on_delivery=on_delivery)
        if expires is not None:
            headers = with_expiry(headers, expires)
        destination = self.destination(topic, level)
        future = DeliveryFuture.of(destination, on_delivery)
        headers = None if headers is None else header_list(headers)
        taken = self.sender.offer(future, destination, value, key, partition, timestamp, headers)
        return future if taken else None

    def destination(self, topic: str, level: int | None) -> Destination:
        """Return the destination of the records for a topic at a level.

        Raises `ConfigError` for a level that does not exist, and `ClosedError` if the producer is closed.
        """
        self.destinations.check_level(level, topic)
        self.check_open()
        return self.destinations.find(topic, level)

    def _wait_for_space(self, future: DeliveryFuture, offered: Offered) -> None:
        """Wait for buffer space and then send the record. Raises an error at once if the producer must not wait."""
        destination = offered[1]
        if self._raises:
            raise self.destinations.buffer_full(destination)
        began = time.monotonic()
        taken = self.sender.offer_patiently(self.max_block, offered)
        self.count_wait(began)
        if not taken:
            error = self.destinations.buffer_full(destination, f" within max.block.ms={self.max_block * 1000:.0f}")
            future.tally = destination.count_unsent()
            future.fail(error)

    def count_wait(self, began: float) -> None:
        """Count a call that has waited for buffer space since this monotonic time, if the producer is measured."""
        if self._samples:
            self._samples.waited(time.monotonic() - began)

    # Records with a due time

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that stores records with a due time. The scheduler is created when it is first used."""
        with self._making_scheduler:
            self.check_open()
            if self._scheduler is None:
                self._scheduler = ProducersScheduler(
                    self._scheduler_config,
                    self._scheduler_name,
                    self._transactions,
                    self._send_serialised,
                    self._tracing,
                )
            return self._scheduler

    def _send_later(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Sequence[Header] | None,
        partition: int | None,
        timestamp: int | None,
        level: int | None,
        due: When | None,
        expires: When | None,
        on_delivery: OnDelivery | None,
        id_: str | None,
        if_pending: Literal["replace", "keep"],
    ) -> DeliveryFuture:
        self.destinations.check_level(level, topic)
        check_later(topic, due, timestamp, id_, if_pending)
        if level is None and self.destinations.has_levels:
            level = 0
        return self.scheduler.send_later(
            key,
            value,
            topic,
            due,  # type: ignore[arg-type] # `check_later` has checked that `due` is not None
            headers=() if headers is None else headers,
            level=level,
            partition=partition,
            id=id_,
            if_pending=if_pending,
            expires=expires,
            on_stored=on_delivery,
        ).future

    def _send_serialised(self, record: OutgoingRecord, on_stored: OnDelivery | None) -> DeliveryFuture:
        """Send a schedule that is part of a transaction, using the buffer space of the lowest level."""
        self.check_open()
        destination = self.destinations.delay_topic(record.topic)
        future = DeliveryFuture.of(destination, on_stored)
        offered = future, destination, record.value, record.key, record.partition, None, record.headers
        if not self.sender.offer(*offered):
            self._wait_for_space(future, offered)
        return future

    # Flushing and purging

    def flush(self, timeout: float | None = None, *, topic: str | None = None, level: int | None = None) -> int:
        """Wait until the records sent before this call are delivered or have failed.

        By default, this waits for the records of all topics and levels. It does not wait for records that other threads
        send in the meantime. Returns the number of records that are still under way after `timeout` seconds.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        if self._is_forked:
            raise made_before_fork("producer")
        left_over = time_left_of(timeout)
        tallies = [tally for each in self.destinations.those(topic, level) for tally in each.unfinished()]
        left = self.sender.flush(lambda: sum(each.under_way for each in tallies), timeout)
        if self._scheduler is None or topic is not None or level is not None:
            return left
        return left + self._scheduler.flush(left_over())

    def purge(self, *, topic: str | None = None, level: int | None = None) -> int:
        """Drop the waiting records of all topics and levels, or only those of a topic or level.

        The futures of the dropped records raise `DeliveryError`.

        Returns the number of dropped records. Records that librdkafka already has are still sent.
        """
        if self._is_forked:
            raise made_before_fork("producer")
        return self.sender.purge(self.destinations.queues(topic, level), "it was purged")

    # Transactions

    def init_transactions(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Fence off earlier producers with the same `transactional.id`; call it once, before the first transaction."""
        timeout = checked_timeout(timeout)
        self.check_open()
        self._transactions.init(timeout)

    def begin_transaction(self) -> None:
        """Start a transaction. Consumers read either all records that are sent in it, or none of them."""
        self.check_open()
        self._transactions.begin()

    def send_offsets(self, consumer: "PriorityConsumer", timeout: float = REQUEST_TIMEOUT) -> None:
        """Commit the offsets after the consumer's last returned records as part of the transaction.

        The offsets are committed for the consumer groups of all levels.
        """
        timeout = checked_timeout(timeout)
        self.check_open()
        self._transactions.send_offsets(consumer, timeout)

    def commit_transaction(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Commit the transaction. Raises `KafkaError` if the transaction must be aborted."""
        timeout = checked_timeout(timeout)
        self.check_open()
        self._transactions.commit(timeout)

    def abort_transaction(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Abort the transaction."""
        timeout = checked_timeout(timeout)
        self.check_open()
        self._transactions.abort(timeout)

    @contextmanager
    def transaction(self, timeout: float = REQUEST_TIMEOUT) -> Iterator[None]:
        """Run a `with` block as a transaction, which is committed at the end or aborted after an error."""
        timeout = checked_timeout(timeout)
        self.begin_transaction()
        try:
            yield
            self.commit_transaction(timeout)
        except BaseException as error:
            self.abort_after(error, timeout)
            raise

    def abort_after(self, error: BaseException, timeout: float) -> None:
        """Abort the transaction after an error. If the abort fails, a note about the failure is added to the error."""
        try:
            self.abort_transaction(timeout)
        except ClosedError:
            pass  # the block closed the producer, which has ended the transaction
        except KafkaError as refused:
            if not is_fenced(refused):  # a newer producer that fenced this one has already aborted the transaction
                error.add_note(f"The transaction could not be aborted: {refused}")

    # Information

    def partitions_for(self, topic: str, timeout: float = REQUEST_TIMEOUT) -> list[TopicPartition]:
        """Return the partitions of a topic at all levels."""
        timeout = checked_timeout(timeout)
        self.check_open()
        return [
            TopicPartition(topic, partition=partition, level=level)
            for level in self.destinations.levels
            for partition in range(self.sender.client.partitions(self.destinations.kafka_topic(topic, level), timeout))
        ]

    def metrics(self) -> ProducerMetrics:
        """Return the counts of records: sent, delivered and failed since the start, and queued now."""
        levels = [
            [each.counts() for each in self.destinations.those(level=level)] for level in self.destinations.levels
        ]
        return ProducerMetrics(
            sent=[sum(each.sent for each in level) for level in levels],
            delivered=[sum(each.delivered for each in level) for level in levels],
            failed=[sum(each.failed for each in level) for level in levels],
            queued=self.destinations.queued(),
            queued_bytes=self.sender.queued_bytes,
        )

    def measure(self) -> Measure:
        """Measure this producer from now on, and return a function that returns its samples.

        `METRICS` in `headway.metrics` describes the samples. The function sends no request to Kafka, any thread can
        call it, and after the producer was closed it returns the last totals. Further calls return the same function.
        """
        self.check_open()
        if self._samples is None:
            self._samples = ProducerSamples(self._client_name, self._memory, self.sender, self.destinations)
        return self._samples.samples

    # Credentials and closing

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for each new login, and log in at once if a broker has refused the earlier ones.

        Open connections stay open. Raises `ConfigError` for credentials that librdkafka does not accept.
        """
        self.check_open()
        self.sender.client.set_sasl_credentials(username, password)
        with self._making_scheduler:
            change_credentials(self._scheduler_config, username, password)
            if self._scheduler:
                self._scheduler.set_sasl_credentials(username, password)

    def forked(self) -> None:
        """Disable this copy in a forked process, because the producer's threads do not exist there."""
        self.is_closed = self._is_forked = True
        self.destinations.close()
        self._making_scheduler = threading.Lock()

    def check_open(self) -> None:
        """Raise an error if the producer is closed, or is the copy of a producer in a forked process."""
        if self._is_forked:
            raise made_before_fork("producer")
        if self.is_closed:
            raise ClosedError("The producer is closed. Create a new one to continue.")

    def __enter__(self) -> Self:
        self.check_open()
        return super().__enter__()

    def close(self, timeout: float | None = None) -> int:
        """Deliver all sent records, then close.

        Records that are not delivered within `timeout` seconds fail. Returns the number of these records.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        if self._is_forked or self._steps_to_end.is_over or (self.is_closed and self.sender.calls_back_here):
            return 0
        self.sender.check_may_close()
        if self._scheduler:
            self._scheduler.check_may_close()
        self._closing_within = time_left_of(timeout)
        self._steps_to_end.take()
        return self._undelivered

    def _close_sender(self) -> None:
        with self._making_scheduler:
            self.is_closed = True
            self.destinations.close()
        self._undelivered += self.sender.close(self.destinations.queued, self._patience(), self.destinations.queues())

    def _close_scheduler(self) -> None:
        if self._scheduler:
            self._undelivered += self._scheduler.close(self._patience())

    def _patience(self) -> float | None:
        return 0 if self._steps_to_end.hurries else self._closing_within()


def _trace_sends(producer: Producer, spans: "Spans") -> None:
    from headway.priority.traced_producer import trace_sends  # noqa: PLC0415 - only programs that trace need this

    trace_sends(producer, producer.destinations, spans)

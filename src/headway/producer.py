"""The priority producer: a level topic for each priority, a future for each record."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headway.config import Config, ProducerSettings, no_such_priority
from headway.core.topics import level_topic
from headway.delay.scheduler import Scheduler
from headway.delay.times import When
from headway.delivery import DeliveryFuture, Destination, OnDelivery
from headway.errors import ClosedError, ConfigError, DeliveryError, SerializationError
from headway.kafka.producer_client import ProducerClient
from headway.kafka.serialization import key_writer, value_writer
from headway.records import Header, TopicPartition

if TYPE_CHECKING:
    from headway.consumer import PriorityConsumer

_REQUEST_TIMEOUT = 30.0
_ANY_PARTITION = -1
_A_MOMENT = 0.01


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """What a producer has done since its start; lists are by level, lowest first, `queued` is of all."""

    sent: list[int]
    delivered: list[int]
    failed: list[int]
    queued: int


class PriorityProducer:
    """Sends each record to the topic of its level: priority i of `orders` goes to the Kafka topic `orders-i`.

    For the settings see `headway.config`; the other keys go to librdkafka. Records with a key go to the partition
    that Java's producer would choose (murmur2). Raises `ConfigError` for settings out of bounds.

    Thread-safe. Closing it, or leaving its `with` block, delivers what was sent. `after_reports` is called after each
    batch of delivery reports, on the thread that took them.
    """

    def __init__(self, config: Config, *, after_reports: Callable[[], None] = lambda: None) -> None:
        settings = ProducerSettings.parse(config)
        self._levels: list[dict[str, Destination]] = [{} for _ in range(settings.levels)]
        self._write_key = key_writer(settings.key_serializer)
        self._write_value = value_writer(settings.value_serializer)
        self._serializes = self._write_key is not None or self._write_value is not None
        self._client = ProducerClient({"partitioner": "murmur2_random", **settings.kafka}, after_reports)
        # A schedule is stored on its own, in no transaction.
        kafka = {key: value for key, value in settings.kafka.items() if not key.startswith("transaction")}
        serializers = {"key.serializer": settings.key_serializer, "value.serializer": settings.value_serializer}
        self._scheduler_config = kafka | {key: function for key, function in serializers.items() if function}
        self._scheduler: Scheduler | None = None
        self._making_scheduler = threading.Lock()
        self.max_block = settings.max_block
        self._closed = False

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        priority: int = 0,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        due: When | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture:
        """Send a record; the future resolves to its `RecordMetadata`, or raises `DeliveryError`.

        With a `due` time (see `Scheduler.send_later`) a relay delivers it then, and the future is about its delay line.
        `timestamp` is in milliseconds since the epoch, now by default. `on_delivery(error, metadata)` is called on
        the producer's own thread. Waits for room in a full queue, up to `max.block.ms`. Raises `ConfigError` for a
        priority that is not a level, and nothing is sent; what fails later, serialisation too, fails the future.
        """
        if due is not None:
            return self._send_later(topic, value, key, due, priority, headers, partition, timestamp, on_delivery)
        future = self._future(topic, priority, on_delivery)
        try:
            self._hand_over(future, value, key, headers, partition, timestamp)
        except BufferError:
            self._wait_for_room(future, value, key, headers, partition, timestamp)
        except (DeliveryError, SerializationError) as error:
            future.fail(error)
        return future

    def _send_later(
        self,
        topic: str,
        value: Any,
        key: Any,
        due: When,
        priority: int,
        headers: Sequence[Header] | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: OnDelivery | None,
    ) -> DeliveryFuture:
        if not 0 <= priority < len(self._levels):
            raise no_such_priority(priority, len(self._levels))
        if timestamp is not None:
            raise ConfigError("A record with a due time gets the time of its delivery. Leave out timestamp or due.")
        return self.scheduler.send_later(
            key, value, topic, due, headers=headers or (), priority=priority, partition=partition, on_stored=on_delivery
        ).future

    @property
    def scheduler(self) -> Scheduler:
        """Where records with a due time go; it is made when it is first asked for."""
        with self._making_scheduler:
            if self._closed:
                raise ClosedError("The producer is closed. Make a new one to go on.")
            if self._scheduler is None:
                self._scheduler = Scheduler(self._scheduler_config)
            return self._scheduler

    def _future(self, topic: str, priority: int, on_delivery: OnDelivery | None) -> DeliveryFuture:
        if not 0 <= priority < len(self._levels):
            raise no_such_priority(priority, len(self._levels))
        if self._closed:
            raise ClosedError("The producer is closed. Make a new one to go on.")
        destination = self._levels[priority].get(topic) or self._new_destination(topic, priority)
        destination.sent += 1
        return DeliveryFuture(destination, on_delivery)

    def _hand_over(
        self,
        future: DeliveryFuture,
        value: Any,
        key: Any,
        headers: Sequence[Header] | None,
        partition: int | None,
        timestamp: int | None,
    ) -> None:
        """Give a record to the client; raises `BufferError` when it has no room."""
        if self._serializes:
            key, value, headers = self._serialize(future.destination, key, value, headers)
        self._client.produce(
            future.destination.kafka_topic,
            value,
            key,
            _ANY_PARTITION if partition is None else partition,
            future,
            timestamp or 0,
            headers,
        )

    def _wait_for_room(self, future: DeliveryFuture, *record: Any) -> None:
        deadline = time.monotonic() + self.max_block
        while (left := deadline - time.monotonic()) > 0:
            self._client.serve(min(_A_MOMENT, left))
            try:
                self._hand_over(future, *record)
                return
            except BufferError:
                continue
            except (DeliveryError, SerializationError) as error:
                future.fail(error)
                return
        future.fail(self._no_room(future))

    def _no_room(self, future: DeliveryFuture) -> DeliveryError:
        return DeliveryError(
            f"No room for a record for {future.destination.topic} within max.block.ms={self.max_block * 1000:.0f}: "
            f"{self._client.queued()} records wait. Send more slowly, or raise queue.buffering.max.messages."
        )

    def _new_destination(self, topic: str, priority: int) -> Destination:
        new = Destination(topic, priority, level_topic(topic, priority), self._client.serve_until)
        return self._levels[priority].setdefault(topic, new)

    def _serialize(
        self, destination: Destination, key: Any, value: Any, headers: Sequence[Header] | None
    ) -> tuple[Any, Any, list[Header]]:
        fields = list(headers or ())
        if self._write_key is not None:
            key = self._write_key(key, destination.kafka_topic, fields)
        if self._write_value is not None:
            value = self._write_value(value, destination.kafka_topic, fields)
        return key, value, fields

    def flush(self, timeout: float | None = None) -> int:
        """Wait until all that was sent is delivered or failed; how many records are not, after `timeout` seconds."""
        left = self._client.flush(timeout)
        return left + self._scheduler.flush(timeout) if self._scheduler else left

    def partitions_for(self, topic: str, timeout: float = _REQUEST_TIMEOUT) -> list[TopicPartition]:
        """The partitions of a topic, of all levels."""
        return [
            TopicPartition(topic, partition, level)
            for level in range(len(self._levels))
            for partition in range(self._client.partitions(level_topic(topic, level), timeout))
        ]

    def metrics(self) -> ProducerMetrics:
        """What was done so far."""
        destinations = [level.values() for level in map(dict.copy, self._levels)]
        return ProducerMetrics(
            sent=[sum(each.sent for each in level) for level in destinations],
            delivered=[sum(each.delivered for each in level) for level in destinations],
            failed=[sum(each.failed for each in level) for level in destinations],
            queued=self._client.queued(),
        )

    # Transactions (KIP-98); they need a `transactional.id`

    def init_transactions(self, timeout: float = _REQUEST_TIMEOUT) -> None:
        """Fence off earlier producers with the same `transactional.id`, once before the first transaction."""
        self._client.init_transactions(timeout)

    def begin_transaction(self) -> None:
        """Start a transaction: what is sent from now on is read all or not at all."""
        self._client.begin_transaction()

    def send_offsets(self, consumer: "PriorityConsumer", timeout: float = _REQUEST_TIMEOUT) -> None:
        """Commit with the transaction what the consumer has returned, in the groups of all its levels."""
        for offsets, group_metadata in consumer.transaction_offsets():
            self._client.send_offsets(offsets, group_metadata, timeout)

    def commit_transaction(self, timeout: float = _REQUEST_TIMEOUT) -> None:
        """Make the transaction readable; raises `KafkaError` when it must be aborted."""
        self._client.commit_transaction(timeout)

    def abort_transaction(self, timeout: float = _REQUEST_TIMEOUT) -> None:
        """Drop the transaction."""
        self._client.abort_transaction(timeout)

    @contextmanager
    def transaction(self, timeout: float = _REQUEST_TIMEOUT) -> Iterator[None]:
        """A transaction for the length of a `with` block: committed at its end, aborted on an error."""
        self.begin_transaction()
        try:
            yield
            self.commit_transaction(timeout)
        except BaseException:
            self.abort_transaction(timeout)
            raise

    # Life

    def close(self, timeout: float | None = None) -> int:
        """Deliver what was sent and let go; how many records were not, after `timeout` seconds: their futures fail."""
        if self._closed:
            return 0
        with self._making_scheduler:
            self._closed = True
            scheduler = self._scheduler
        return self._client.close(timeout) + (scheduler.close(timeout) if scheduler else 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

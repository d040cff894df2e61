"""The producers: `Producer`, and `PriorityProducer` with a topic for each level."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from headway.core.levels.capacity import Distributor
from headway.core.levels.naming import level_topic
from headway.delay.due_time import When, with_expiry
from headway.errors import ConfigError
from headway.kafka.producer.delivery import DeliveryFuture, OnDelivery
from headway.priority.base_producer import OnFull
from headway.priority.transactional_producer import TransactionalProducer
from headway.records.record_types import Header, ProducerRecord
from headway.settings.config import Config, ProducerSettings


class PriorityProducer(TransactionalProducer):
    """A producer that sends each record to its level's topic: level i of `orders` goes to `orders-i`.

    For the settings see `headway.settings.config`; the other keys go to librdkafka. Records with a key go to the
    partition that Java's producer would choose (murmur2). Others fill a batch for one partition after the other.
    If buffer space has run out `send` waits, or with `on_full="raise"` raises `NoRoomError`. The `policy` decides which
    waiting level is sent next. `fair` gives each level twice the share of the level below, or as the `distributor`
    says; the other policy is `strict`.
    Raises `ConfigError` for settings out of bounds.

    Thread-safe. `close`, or the end of the `with` block, delivers what was sent. `after_reports` is called after each
    batch of delivery reports, on the thread that took them.
    """

    def __init__(
        self,
        config: Config,
        *,
        policy: Literal["fair", "strict"] = "fair",
        distributor: Distributor | None = None,
        on_full: OnFull = "block",
        after_reports: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(ProducerSettings.parse(config), policy, distributor, on_full, after_reports)

    _has_levels = True

    def _kafka_topic(self, topic: str, level: int) -> str:
        if topic == "":
            raise ConfigError("The topic is ''; its name must be a string of at least one character.")
        return level_topic(topic, level)

    def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        level: int = 0,
        due: When | None = None,
        expires: When | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        id: str | None = None,
        if_pending: Literal["replace", "keep"] = "replace",
    ) -> DeliveryFuture:
        """Send a record; the future resolves to its `RecordMetadata`, or raises `DeliveryError`.

        A `ProducerRecord` in place of the topic says all of it: `send(record, on_delivery=...)`.

        With a `due` time a relay delivers the record then, and the future is about its delay line. The first such call
        asks Kafka for the scheduler's topics and may create them. Serialisers then run on the caller's thread, and what
        `Scheduler.send_later` raises, this call raises. `id` and `if_pending` are as there, but that nothing can be
        refused. While a transaction of this producer is open, the schedule is part of it. `timestamp` is in
        milliseconds since the epoch, now by default.

        When a record `expires`, at a time or after this many seconds, a `ParallelConsumer` does not start it any more.

        `on_delivery(error, metadata)` is called on a thread of the producer's, or on one that sends, flushes or waits
        for a result, within that call. `on_delivery` must therefore not wait for a lock that such a thread holds.

        Without `due` it waits for nothing but room, up to `max.block.ms`. Raises `ConfigError` for a level that does
        not exist, and sends nothing then. A later failure, serialisation included, fails the future.

        Do not call `send` from a signal handler, which may have interrupted a `send`: let the signal handler tell a
        thread.
        """
        if topic.__class__ is not str and isinstance(topic, ProducerRecord):  # quicker than `isinstance` alone
            fields = self.fields_of(topic, value, key, headers, partition, timestamp, due, expires, level or None, id)
            return self.send(**fields, on_delivery=on_delivery)
        if due is not None or id is not None:
            return self._send_later(
                *(topic, value, key, due, level, headers, partition, timestamp, id, if_pending, expires, on_delivery)
            )
        if expires is not None:
            headers = with_expiry(headers, expires)
        try:
            destination = self._open[level][topic]
        except KeyError:
            destination = self.destination(topic, level)
        future = DeliveryFuture.of(destination, on_delivery)
        if headers is None and self.offer(future, destination, value, key, partition, timestamp, None):
            return future
        return self._send_on(future, destination, value, key, partition, timestamp, headers)

    def try_send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        level: int = 0,
        expires: When | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture | None:
        """Send a record as `send` does if there is room now; otherwise send nothing and return None."""
        if isinstance(topic, ProducerRecord):
            fields = self.fields_of_now(topic, value, key, headers, partition, timestamp, expires, level or None)
            return self.try_send(**fields, on_delivery=on_delivery)
        if expires is not None:
            headers = with_expiry(headers, expires)
        destination = self.destination(topic, level)
        return self._try(destination, on_delivery, value, key, partition, timestamp, headers)


class Producer(TransactionalProducer):
    """A producer that sends records to topics as they are, without levels; in all else as `PriorityProducer`."""

    def __init__(
        self, config: Config, *, on_full: OnFull = "block", after_reports: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(ProducerSettings.parse(config, with_levels=False), "fair", None, on_full, after_reports)

    def _kafka_topic(self, topic: str, level: int) -> str:
        return topic

    def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        due: When | None = None,
        expires: When | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        id: str | None = None,
        if_pending: Literal["replace", "keep"] = "replace",
    ) -> DeliveryFuture:
        """Send a record; see `PriorityProducer.send`."""
        if topic.__class__ is not str and isinstance(topic, ProducerRecord):  # quicker than `isinstance` alone
            fields = self.fields_of(topic, value, key, headers, partition, timestamp, due, expires, id)
            return self.send(**fields, on_delivery=on_delivery)
        if due is not None or id is not None:
            return self._send_later(
                *(topic, value, key, due, None, headers, partition, timestamp, id, if_pending, expires, on_delivery)
            )
        if expires is not None:
            headers = with_expiry(headers, expires)
        try:
            destination = self._open[0][topic]
        except KeyError:
            destination = self.destination(topic, 0)
        future = DeliveryFuture.of(destination, on_delivery)
        if headers is None and self.offer(future, destination, value, key, partition, timestamp, None):
            return future
        return self._send_on(future, destination, value, key, partition, timestamp, headers)

    def try_send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        expires: When | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture | None:
        """Send a record as `send` does if there is room now; otherwise send nothing and return None."""
        if isinstance(topic, ProducerRecord):
            fields = self.fields_of_now(topic, value, key, headers, partition, timestamp, expires)
            return self.try_send(**fields, on_delivery=on_delivery)
        if expires is not None:
            headers = with_expiry(headers, expires)
        return self._try(self.destination(topic, 0), on_delivery, value, key, partition, timestamp, headers)

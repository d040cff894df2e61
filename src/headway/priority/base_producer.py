"""The base of the producers: a future for each record, flow control, and records with a due time."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, Self

from headway.core.levels.capacity import Distributor
from headway.core.outgoing_record import OutgoingRecord
from headway.core.producer.accumulator import Accumulator, Limits
from headway.core.producer.turn_policies import make_turn_policy
from headway.core.record_size import RECORD_TAKES
from headway.declarations import checked_timeout
from headway.delay.due_time import When
from headway.delay.schedule_encoder import check_later
from headway.delay.scheduler import Scheduler
from headway.errors import ClosedError, ConfigError, NoRoomError
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.forks import made_before_fork, tell_of_forks
from headway.kafka.producer.delivery import DeliveryFuture, Destination, OnDelivery
from headway.kafka.producer.headers import header_list
from headway.kafka.producer.sendable import Offer, Offered
from headway.kafka.producer.sender import Sender
from headway.kafka.serialization import key_writer, value_writer
from headway.priority.producers_scheduler import ProducersScheduler
from headway.records.record_types import Header, ProducerRecord, TopicPartition
from headway.runtime.end_steps import EndSteps
from headway.runtime.lifecycle import Closable, time_left_of
from headway.settings.config import ProducerSettings, no_such_level

REQUEST_TIMEOUT = 30.0
"""The seconds that a call waits for Kafka by default."""
# The bytes of a record besides its own: its future, its place at librdkafka and here.

OnFull = Literal["block", "raise"]


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """The counts of a producer since its start: lists are by level, lowest first.

    `queued` is the number of records of all levels that are not reported on yet, and `queued_bytes` is their size, of
    which `buffer.memory` is the bound.
    """

    sent: list[int]
    delivered: list[int]
    failed: list[int]
    queued: int
    queued_bytes: int


class BaseProducer(Closable):
    """The base of the producers: destinations, flow control, and the sender behind them."""

    def __init__(
        self,
        settings: ProducerSettings,
        policy: Literal["fair", "strict"],
        distributor: Distributor | None,
        on_full: OnFull,
        after_reports: Callable[[], None],
    ) -> None:
        if on_full not in ("block", "raise"):
            raise ConfigError(f"on_full is {on_full!r}; it must be 'block' or 'raise'.")
        self.max_block = settings.max_block
        self._raises = on_full == "raise"
        self._destinations: dict[int, dict[str, Destination]] = {level: {} for level in range(settings.levels)}
        self._open = self._destinations  # empty once the producer is closed
        self._lines: dict[str, Destination] = {}  # and a scheduler's commands, for schedules in transactions
        self._write_key = key_writer(settings.key_serializer)
        self._write_value = value_writer(settings.value_serializer)
        limits = Limits(settings.memory, settings.reserve, settings.window, settings.delivery_timeout)
        turns = make_turn_policy(policy, distributor, settings.levels, max_wait=settings.max_wait)
        self._sender = Sender(
            settings.kafka,
            Accumulator(settings.levels, turns, limits),
            RECORD_TAKES,
            settings.least_size,
            self._serialize if self._write_key or self._write_value else None,
            after_reports,
            settings.partitioner,
        )
        self.client = self._sender.client
        self.offer = self._sender.offer
        # Outside a transaction a schedule is stored on its own, and the delay lines limit its size.
        kafka = {
            key: value
            for key, value in settings.kafka.items()
            if not key.startswith("transaction") and key != "message.max.bytes"
        }
        serializers = {"key.serializer": settings.key_serializer, "value.serializer": settings.value_serializer}
        self._scheduler_config = kafka | {key: function for key, function in serializers.items() if function}
        self._scheduler_name = settings.scheduler
        self._scheduler: Scheduler | None = None
        self._making_scheduler = threading.Lock()
        self.is_closed = self._is_forked = False
        self._steps_to_end = EndSteps(lambda: [self._close_sender, self._close_scheduler])
        self._closing_within = time_left_of(None)
        self._undelivered = 0  # by the end
        tell_of_forks(self)

    _has_levels = False

    def _kafka_topic(self, topic: str, level: int) -> str:
        raise NotImplementedError

    def _send_later(
        self,
        topic: str,
        value: Any,
        key: Any,
        due: When | None,
        level: int | None,
        headers: Sequence[Header] | None,
        partition: int | None,
        timestamp: int | None,
        id_: str | None,
        if_pending: Literal["replace", "keep"],
        expires: When | None,
        on_delivery: OnDelivery | None,
    ) -> DeliveryFuture:
        self._check(level or 0)
        check_later(topic, due, timestamp, id_, if_pending)
        return self.scheduler.send_later(
            key,
            value,
            topic,
            due,  # type: ignore[arg-type]  # it was checked
            headers=() if headers is None else headers,
            level=level,
            partition=partition,
            id=id_,
            if_pending=if_pending,
            expires=expires,
            on_stored=on_delivery,
        ).future

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that stores records with a due time; made at the first use."""
        with self._making_scheduler:
            self.check_open()
            if self._scheduler is None:
                self._scheduler = ProducersScheduler(
                    self._scheduler_config, self._scheduler_name, self._is_in_transaction, self._send_as_it_is
                )
            return self._scheduler

    def _is_in_transaction(self) -> bool:
        return False

    def _send_as_it_is(self, record: OutgoingRecord, on_stored: OnDelivery | None) -> DeliveryFuture:
        """Send a record whose topic is Kafka's, and whose key and value are serialised; as the lowest level's."""
        self.check_open()
        topic = record.topic
        destination = self._lines.get(topic)
        if destination is None:
            queues = self._sender.topic(topic, 0)
            new = Destination(topic, 0, topic, self.client.serve_until, queues, self.client)
            destination = self._lines.setdefault(topic, new)
        future = DeliveryFuture.of(destination, on_stored)
        offered = (future, destination, record.value, record.key, record.partition, None, record.headers)
        offer = self._sender.offer_serialised
        return future if offer(*offered) else self._send_patiently(offer, future, offered)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on, at once if a broker has refused the earlier ones.

        Open connections go on. Raises `ConfigError` for credentials that librdkafka does not take.
        """
        self.check_open()
        self.client.set_sasl_credentials(username, password)
        with self._making_scheduler:
            change_credentials(self._scheduler_config, username, password)
            if self._scheduler:
                self._scheduler.set_sasl_credentials(username, password)

    def destination(self, topic: str, level: int) -> Destination:
        """Return where records of a topic and level go; raises `ConfigError` for a level that does not exist."""
        self._check(level)
        self.check_open()
        if known := self._destinations[level].get(topic):
            return known
        kafka_topic = self._kafka_topic(topic, level)
        queues = self._sender.topic(kafka_topic, level)
        new = Destination(topic, level, kafka_topic, self.client.serve_until, queues, self.client)
        return self._destinations[level].setdefault(topic, new)

    def fields_of(self, record: ProducerRecord, *given: Any) -> dict[str, Any]:
        """Return a record's fields as arguments of `send`.

        Raises `ConfigError` if further fields were given beside the record, or for a level that its topic cannot have.
        """
        if any(field is not None for field in given):
            raise _not_alone(record)
        if record.level is None and self._has_levels:
            raise ConfigError(
                f"The ProducerRecord for {record.topic} has no level, which means the topic of that very name. Give it "
                "one, as level=0, or send it with a Producer. Nothing was sent."
            )
        if record.level is not None and not self._has_levels:
            raise ConfigError(
                f"The ProducerRecord for {record.topic} has level={record.level}, and a Producer has no levels. Leave "
                "it out, or send the record with a PriorityProducer. Nothing was sent."
            )
        fields: dict[str, Any] = {
            "topic": record.topic,
            "value": record.value,
            "key": record.key,
            "headers": record.headers or None,
            "partition": record.partition,
            "timestamp": record.timestamp,
            "expires": record.expires,
        }
        if self._has_levels:
            fields["level"] = record.level
        if record.due is not None or record.id is not None or record.if_pending != "replace":
            check_later(record.topic, record.due, record.timestamp, record.id, record.if_pending)
            fields |= {"due": record.due, "id": record.id, "if_pending": record.if_pending}
        return fields

    def fields_of_now(self, record: ProducerRecord, *given: Any) -> dict[str, Any]:
        """Return a record's fields as `fields_of` does; raise `ConfigError` for a record with a due time."""
        fields = self.fields_of(record, *given)
        if "due" in fields:
            raise ConfigError(
                f"The ProducerRecord for {record.topic} is due later. It may have to wait for the scheduler's topics, "
                "which try_send does not: call send. Nothing was sent."
            )
        return fields

    def forked(self) -> None:
        """Do nothing any more: this object is the copy in a forked process, without threads."""
        self.is_closed = self._is_forked = True
        self._open = {}
        self._making_scheduler = threading.Lock()

    def check_open(self) -> None:
        """Raise `ClosedError` if the producer is closed, or is the copy in a forked process."""
        if self._is_forked:
            raise made_before_fork("producer")
        if self.is_closed:
            raise ClosedError("The producer is closed. Make a new one to go on.")

    def _check(self, level: int) -> None:
        try:
            exists = 0 <= index(level) < len(self._destinations)
        except TypeError:
            exists = False
        if not exists:
            raise no_such_level(level, len(self._destinations))

    def _send_on(
        self,
        future: DeliveryFuture,
        destination: Destination,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Sequence[Header] | None,
    ) -> DeliveryFuture:
        """Send a record with headers, or one that found no room: wait for some, or refuse the record."""
        if headers is not None:
            headers = header_list(headers)
            if self.offer(future, destination, value, key, partition, timestamp, headers):
                return future
        record = (future, destination, value, key, partition, timestamp, headers)
        return self._send_patiently(self.offer, future, record)

    def _send_patiently(self, offer: Offer, future: DeliveryFuture, record: Offered) -> DeliveryFuture:
        """Send a record that found no room: wait for some, or refuse the record."""
        destination = record[1]
        if self._raises:
            raise self.no_room(destination)
        if not self._sender.offer_patiently(offer, self.max_block, *record):
            error = self.no_room(destination, f" within max.block.ms={self.max_block * 1000:.0f}")
            future.tally = destination.count_unsent()
            future.fail(error)
        return future

    def _try(
        self,
        destination: Destination,
        on_delivery: OnDelivery | None,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Sequence[Header] | None,
    ) -> DeliveryFuture | None:
        """Send a record only if there is room now."""
        future = DeliveryFuture.of(destination, on_delivery)
        headers = None if headers is None else header_list(headers)
        return future if self.offer(future, destination, value, key, partition, timestamp, headers) else None

    def no_room(self, destination: Destination, within: str = "") -> NoRoomError:
        """Return the error for a record that found no room."""
        return NoRoomError(
            f"No room for a record for {destination.topic}{within}: {self._queued()} records wait. Send more "
            "slowly, or raise buffer.memory or queue.buffering.max.messages."
        )

    def _serialize(self, future: Any) -> None:
        """Serialise a record's key and value, on the sender's thread."""
        kafka_topic, headers = future.destination.kafka_topic, future.headers
        headers = list(headers or ())
        if self._write_key is not None:
            future.key = self._write_key(future.key, kafka_topic, headers)
        if self._write_value is not None:
            future.value = self._write_value(future.value, kafka_topic, headers)
        future.headers = headers

    # Waiting, and giving up

    def flush(self, timeout: float | None = None, *, topic: str | None = None, level: int | None = None) -> int:
        """Wait until all records sent before, to all topics and levels or to one, are delivered or failed.

        Returns how many are neither after `timeout` seconds. Records that other threads send meanwhile are not waited
        for.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        if self._is_forked:
            raise made_before_fork("producer")
        left_over = time_left_of(timeout)
        tallies = [tally for each in self._those(topic, level) for tally in each.unsettled()]
        left = self._sender.flush(lambda: sum(each.under_way for each in tallies), timeout)
        if self._scheduler is None or topic is not None or level is not None:
            return left
        return left + self._scheduler.flush(left_over())

    def purge(self, *, topic: str | None = None, level: int | None = None) -> int:
        """Give up the waiting records, all or those for a topic or a level, and return how many: their futures fail.

        Records that librdkafka has already are still sent.
        """
        if self._is_forked:
            raise made_before_fork("producer")
        return self._sender.purge([each.queues for each in self._those(topic, level)], "it was purged")

    def _queued(self) -> int:
        return sum(each.counts().under_way for each in self._those())

    def _those(self, topic: str | None = None, level: int | None = None) -> list[Destination]:
        if level is not None:
            self._check(level)
        of_levels = [each for destinations in self._destinations.values() for each in list(destinations.values())]
        return [
            each
            for each in (*of_levels, *list(self._lines.values()))
            if level in (None, each.level) and topic in (None, each.topic)
        ]

    def partitions_for(self, topic: str, timeout: float = REQUEST_TIMEOUT) -> list[TopicPartition]:
        """Return the partitions of a topic, of all levels."""
        timeout = checked_timeout(timeout)
        self.check_open()
        return [
            TopicPartition(topic, partition=partition, level=level)
            for level in self._destinations
            for partition in range(self.client.partitions(self._kafka_topic(topic, level), timeout))
        ]

    def metrics(self) -> ProducerMetrics:
        """Return the counts since the start."""
        levels = [[each.counts() for each in self._those(level=level)] for level in self._destinations]
        return ProducerMetrics(
            sent=[sum(each.sent for each in level) for level in levels],
            delivered=[sum(each.delivered for each in level) for level in levels],
            failed=[sum(each.failed for each in level) for level in levels],
            queued=self._queued(),
            queued_bytes=self._sender.queued_bytes,
        )

    # Life

    def __enter__(self) -> Self:
        self.check_open()
        return super().__enter__()

    def close(self, timeout: float | None = None) -> int:
        """Deliver what was sent and let go; return how many records were not in time, whose futures fail.

        `timeout` is in seconds.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        if self._is_forked or self._steps_to_end.is_over or (self.is_closed and self._sender.calls_back_here):
            return 0
        self._sender.check_may_close()
        if self._scheduler:
            self._scheduler.check_may_close()
        self._closing_within = time_left_of(timeout)
        self._steps_to_end.take()
        return self._undelivered

    def _close_sender(self) -> None:
        with self._making_scheduler:
            self.is_closed = True
            self._open = {}
        self._undelivered += self._sender.close(self._queued, self._patience(), [each.queues for each in self._those()])

    def _close_scheduler(self) -> None:
        if self._scheduler:
            self._undelivered += self._scheduler.close(self._patience())

    def _patience(self) -> float | None:
        return 0 if self._steps_to_end.hurries else self._closing_within()


def _not_alone(record: ProducerRecord) -> ConfigError:
    return ConfigError(
        f"A ProducerRecord for {record.topic} was given beside other fields of a record, or a due time. Say all of it "
        "in the ProducerRecord, or give the topic's name first. Nothing was sent."
    )

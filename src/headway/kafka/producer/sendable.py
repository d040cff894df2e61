"""A record between `send` and librdkafka, and the errors for a record that cannot be sent."""

from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

import confluent_kafka as ck

from headway.core.producer.queues import Waiting
from headway.core.record_size import HEADER_TAKES, Field, bytes_of
from headway.declarations import shown
from headway.errors import DeliveryError, SerializationError
from headway.kafka.producer.headers import check_headers, check_timestamp
from headway.records.record_types import Header

if TYPE_CHECKING:
    from headway.core.producer.queues import Queue
    from headway.kafka.producer.delivery import Destination, Report, Tally


class Sendable(Waiting, Protocol):
    """A record to send, which is called with its delivery report. Fields up to `timestamp` are set only if it waits."""

    key: Any  # a `Field`; before serialisation, the object for the serialiser
    value: Any
    headers: list[Header] | None
    partition: int | None
    timestamp: int
    queue: "Queue[Sendable]"
    tally: "Tally"  # counts the record as sent, and then as delivered or failed

    def __call__(self, error: "ck.KafkaError | None", message: "Report") -> None: ...
    def fail(self, error: Exception) -> None: ...


Prepare = Callable[[Sendable], None]
"""A function that replaces a record's key and value by their serialised bytes."""


Offered = tuple[Sendable, "Destination", Any, Any, int | None, int | None, list[Header] | None]
"""The arguments of `Sender.offer`: record, destination, value, key, partition, timestamp, headers.

They are passed by position, which is quicker.
"""


Failed = list[tuple[Sendable, Exception]]
"""Records that cannot be sent, each with the error."""


def size_of_rest(headers: list[Header] | None, timestamp: int | None, topic: str) -> int:
    """Return the size of the headers in bytes. Raises `SerializationError` if they or the timestamp cannot be sent."""
    check_timestamp(timestamp, topic)
    return 0 if headers is None else HEADER_TAKES * len(headers) + check_headers(headers, topic)


def not_sent(record: Sendable, why: str, kind: type[DeliveryError] = DeliveryError) -> DeliveryError:
    """Return the error for a record that is given up before it reaches librdkafka."""
    return kind(f"A record for {record.queue.topic.kafka_topic} was not delivered: {why}.")


def not_serialised(record: Sendable, error: BaseException) -> SerializationError:
    """Return the error for a record whose serialiser raised `error`."""
    return SerializationError(f"A record for {record.queue.topic.kafka_topic} could not be serialised: {error!r}.")


def too_large(value: Field, key: Field, topic: str, most: int) -> DeliveryError | None:
    """Return the error for a record that librdkafka will refuse for its size, however long it waits; otherwise None."""
    size = bytes_of(value) + bytes_of(key)
    if size <= most:
        return None
    error = DeliveryError(
        f"A record for {topic} was refused: Message size too large. Its key and value have {size:,} bytes, and "
        f"message.max.bytes allows {most:,}. Send less, or raise message.max.bytes here and max.message.bytes of the "
        "topic."
    )
    error.__cause__ = ck.KafkaException(ck.KafkaError(ck.KafkaError.MSG_SIZE_TOO_LARGE))
    return error


def is_partition(partition: Any) -> bool:
    """Return whether a value can be a partition. -1, librdkafka's number for any partition, is refused as a mistake."""
    return hasattr(partition, "__index__") and index(partition) >= 0


def no_partition(partition: object, topic: str) -> DeliveryError:
    """Return the error for a value that cannot be a partition."""
    return DeliveryError(
        f"A record for {topic} has partition={shown(partition)}; partitions are numbered from 0. Leave it out to let "
        "the key decide."
    )


def no_such_partition(partition: int, count: int) -> str:
    """Return the reason for giving up a record for a partition that does not exist."""
    return f"it is for partition {partition}, but the topic has only {count}"

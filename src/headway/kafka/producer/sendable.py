"""A record on its way from `send` to librdkafka, and the errors for records that cannot be sent."""

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
    """A record to send.

    The object is called with the record's delivery report. The fields up to `timestamp` are set only while the record
    waits.
    """

    key: Any  # bytes or text, or the object that is still to be serialised
    value: Any
    headers: list[Header] | None
    partition: int | None
    timestamp: int
    queue: "Queue[Sendable]"
    tally: "Tally"  # counts the record as sent, and later as delivered or failed

    def __call__(self, error: "ck.KafkaError | None", message: "Report") -> None: ...
    def fail(self, error: Exception) -> None: ...


Offered = tuple[Sendable, "Destination", Any, Any, int | None, int | None, list[Header] | None]
"""The type of `Sender.offer`: (record, destination, value, key, partition, timestamp, headers).

The arguments are passed by position, because that is faster.
"""


Failed = list[tuple[Sendable, Exception]]
"""Records that cannot be sent, each with its error."""


def size_of_rest(headers: list[Header] | None, timestamp: int | None, topic: str) -> int:
    """Return the size of the headers in bytes.

    Raises `SerializationError` if the headers or the timestamp cannot be sent.
    """
    check_timestamp(timestamp, topic)
    return 0 if headers is None else HEADER_TAKES * len(headers) + check_headers(headers, topic)


def not_sent(record: Sendable, why: str, kind: type[DeliveryError] = DeliveryError) -> DeliveryError:
    """Return the error for a record that fails before it is passed to librdkafka."""
    return kind(f"A record for {record.queue.topic.kafka_topic} was not delivered: {why}.")


def not_serialised(record: Sendable, error: BaseException) -> SerializationError:
    """Return the error for a record whose serialiser raised `error`."""
    return SerializationError(f"A record for {record.queue.topic.kafka_topic} could not be serialised: {error!r}.")


def too_large(value: Field, key: Field, topic: str, most: int) -> DeliveryError | None:
    """Return the error for a record that librdkafka would refuse because of its size, or None if it is small enough."""
    size = bytes_of(value) + bytes_of(key)
    if size <= most:
        return None
    error = DeliveryError(
        f"A record for {topic} was refused: Message size too large. Its key and value have {size:,} bytes, and "
        f"message.max.bytes allows {most:,}. Send a smaller record, or raise message.max.bytes of this producer and "
        "max.message.bytes of the topic."
    )
    error.__cause__ = ck.KafkaException(ck.KafkaError(ck.KafkaError.MSG_SIZE_TOO_LARGE))
    return error


def is_partition(partition: Any) -> bool:
    """Return whether a value is a possible partition number.

    -1, librdkafka's number for any partition, is refused as a mistake.
    """
    return hasattr(partition, "__index__") and index(partition) >= 0


def no_partition(partition: object, topic: str) -> DeliveryError:
    """Return the error for a value that is not a possible partition number."""
    return DeliveryError(
        f"A record for {topic} has partition={shown(partition)}; partitions are numbered from 0. Leave partition out "
        "to let the key decide."
    )


def no_such_partition(partition: int, count: int) -> str:
    """Return the reason why a record whose partition does not exist has failed."""
    return f"it is for partition {partition}, but the topic has only {count}"

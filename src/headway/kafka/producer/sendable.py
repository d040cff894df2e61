"""A record on its way from `send` to librdkafka, and the errors for one that cannot be sent."""

from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

import confluent_kafka as ck

from headway.core.producer.queues import Waiting
from headway.core.record_size import HEADER_TAKES, bytes_of
from headway.declarations import shown
from headway.errors import DeliveryError, SerializationError
from headway.kafka.producer.headers import check_timestamp, size_of_headers
from headway.records.record_types import Header

if TYPE_CHECKING:
    from headway.core.producer.queues import Queue
    from headway.kafka.producer.delivery import Destination, Report, Tally

Field = str | bytes | None
"""A key or value as librdkafka takes it."""


class Sendable(Waiting, Protocol):
    """A record that is sent, and told its outcome. The fields down to `timestamp` are set if it has to wait."""

    key: Any  # a `Field`, or what a serialiser takes until it was called
    value: Any
    headers: list[Header] | None
    partition: int | None
    timestamp: int
    queue: "Queue[Sendable]"
    tally: "Tally"  # the tally that counts it as sent, delivered or failed

    def __call__(self, error: "ck.KafkaError | None", message: "Report") -> None: ...
    def fail(self, error: Exception) -> None: ...


Prepare = Callable[[Sendable], None]
"""A function that turns a record's key and value into bytes, in place."""


Offered = tuple[Sendable, "Destination", Any, Any, int | None, int | None, list[Header] | None]
"""What is offered: record, destination, value, key, partition, timestamp, headers. By position, which is quicker."""


Failed = list[tuple[Sendable, Exception]]
"""Records that are not sent, each with the reason."""


def size_of_rest(headers: list[Header] | None, timestamp: int | None, topic: str) -> int:
    """Return the bytes that headers take; raises `SerializationError` for headers or times that cannot be sent."""
    check_timestamp(timestamp, topic)
    return 0 if headers is None else HEADER_TAKES * len(headers) + size_of_headers(headers, topic)


def not_delivered(record: Sendable, why: str, kind: type[DeliveryError] = DeliveryError) -> DeliveryError:
    """Return the error for a record that is given up before librdkafka has it."""
    return kind(f"A record for {record.queue.topic.kafka_topic} was not delivered: {why}.")


def not_serialised(record: Sendable, error: BaseException) -> SerializationError:
    """Return the error for a record whose serialiser raised this."""
    return SerializationError(f"A record for {record.queue.topic.kafka_topic} could not be serialised: {error!r}.")


def too_large(value: Field, key: Field, topic: str, most: int) -> DeliveryError | None:
    """Return the error for a record that librdkafka will not take: to wait for room would be in vain."""
    size = bytes_of(value) + bytes_of(key)
    if size <= most:
        return None
    error = DeliveryError(
        f"A record for {topic} was refused: Message size too large. Its key and value have {size:,} bytes, and "
        f"message.max.bytes allows {most:,}. Send less, or raise it here, and max.message.bytes of the topic."
    )
    error.__cause__ = ck.KafkaException(ck.KafkaError(ck.KafkaError.MSG_SIZE_TOO_LARGE))
    return error


def is_partition(partition: Any) -> bool:
    """Return whether this can be a partition: librdkafka would take -1 for any, and nobody means that by it."""
    return hasattr(partition, "__index__") and index(partition) >= 0


def no_partition(partition: object, topic: str) -> DeliveryError:
    """Return the error for what cannot be a partition."""
    return DeliveryError(
        f"A record for {topic} has partition={shown(partition)}; partitions count from 0. Leave it out to have the key "
        "decide."
    )


def no_such_partition(partition: int, count: int) -> str:
    """Return why a record for a missing partition is given up."""
    return f"it is for partition {partition}, and the topic has {count}"

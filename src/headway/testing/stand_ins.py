"""Creates records and contexts without Kafka, so that a test can call a handler as a plain function."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from headway.core.engine.attempt import FailedAttempts
from headway.core.levels.naming import level_topic
from headway.declarations import check_number, check_place, check_whole, shown
from headway.errors import ConfigError
from headway.execution.context import Context
from headway.execution.processes.messages import SentMessage
from headway.kafka.serialization import key_reader, value_reader
from headway.records.record_types import ConsumerRecord, DeserializedRecord, Header, RecordSource
from headway.workers.worker import Worker, worker_of


class _MadeAttempt(NamedTuple):
    number: int
    failure: FailedAttempts | None
    level: int
    arrived: float


def record(
    value: Any = None,
    key: Any = None,
    *,
    worker: Callable[..., Any] | None = None,
    topic: str | None = None,
    level: int | None = None,
    partition: int = 0,
    offset: int = 0,
    headers: Sequence[Header] = (),
    timestamp: int | None = None,
) -> ConsumerRecord:
    """Create a record like those that a handler gets. Text becomes bytes, as when a producer sends it.

    If `worker` (a handler declared with `@worker`) is given, the record has the value and key that this worker would
    get: bytes are deserialised by the worker's `value=`, and any other value is first encoded as JSON. Without
    `worker`, a value that is neither text nor bytes stays unchanged.

    Args:
        value: The value.
        key: The key: text or bytes.
        worker: The worker that the record is for. It determines the default topic and the type of the value.
        topic: The topic. By default it is the worker's first topic.
        level: The level, for a topic with levels. By default it is 0 if the worker has levels.
        partition: The record's partition.
        offset: The record's offset.
        headers: The headers.
        timestamp: The timestamp in milliseconds since the epoch. By default it is the current time.

    Raises `ConfigError` for a value that cannot be encoded as JSON, and for a function that is not a worker.

    >>> order = record("book 7", key="customer 3", topic="orders", level=2)
    >>> order.value, order.key, order.level, order.kafka_topic, str(order.origin)
    (b'book 7', b'customer 3', 2, 'orders-2', 'orders-2-0-0')
    """
    declared = None if worker is None else declaration_of(worker)
    check_whole("partition", partition, 0)
    check_place("offset", offset)
    if timestamp is not None:
        check_place("timestamp", timestamp)
    if topic is None:
        topic = "topic" if declared is None else next(iter(declared.topics))
    if level is None and declared is not None and declared.levels is not None:
        level = 0
    if topic.startswith("^"):
        raise ConfigError(f"The worker reads topics that match the pattern {topic!r}. Name one topic with topic=.")
    raw = _raw(value)
    config = {} if declared is None else declared.config
    reader = None if declared is None else declared.reader or config.get("value.deserializer")
    kafka_topic = topic if level is None else level_topic(topic, level)
    at = round(time.time() * 1000) if timestamp is None else timestamp
    message = SentMessage((kafka_topic, partition, offset, _raw(key), raw, list(headers), at, None))
    source = RecordSource(
        level or 0,
        kafka_topic[len(topic) :],
        key_reader(config.get("key.deserializer"), SentMessage.key),
        value_reader(reader, SentMessage.value),
    )
    if reader is not None:
        return DeserializedRecord(message, source, raw)
    return ConsumerRecord(message, source, value if declared is None and not isinstance(value, str) else raw)


def context(
    attempt: int = 1,
    *,
    last_error: BaseException | None = None,
    level: int = 0,
    queue_time: float = 0.0,
    state: Any = None,
) -> Context:
    """Create a context like those that a handler gets.

    Args:
        attempt: The number of the attempt, counted from 1.
        last_error: The error of the previous attempt.
        level: The record's level.
        queue_time: How many seconds the record waited in this process before the attempt started.
        state: The object that the worker's lifespan yields.

    >>> context(2, last_error=TimeoutError("the bank"), state={"pool": 1}).last_error
    TimeoutError('the bank')
    """
    check_whole("attempt", attempt, 1)
    check_whole("level", level, 0)
    check_number("queue_time", queue_time, 0)
    now = time.monotonic()
    failure = FailedAttempts(last_error, now, now, attempt - 1, 0, last_error) if last_error else None
    made = Context(_MadeAttempt(attempt, failure, level, now - queue_time))
    made.state = state
    return made


def declaration_of(handler: Any) -> Worker:
    """Return the declaration of a worker. Raises `ConfigError` if the handler was not declared with `@worker`."""
    declared = worker_of(handler)
    if declared is None:
        raise ConfigError(
            f'{shown(handler)} is not a worker. Decorate it, for example with @worker("orders", group="billing").'
        )
    return declared


def _raw(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return msgspec.json.encode(value)
    except Exception as error:
        raise ConfigError(
            f"The value or key {shown(value)} cannot be encoded as JSON: {error}. Give bytes instead."
        ) from error

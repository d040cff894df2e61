"""The topic for records that failed for good, each with the story of its failures in its headers."""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

from headway.config import Config
from headway.core.work import Work
from headway.errors import DeliveryError
from headway.kafka.producer_client import ProducerClient
from headway.parallel.context import wall_time
from headway.parallel.dispatch import RecordWork
from headway.records import ConsumerRecord, Header

log = logging.getLogger(__name__)

PREFIX = "headway.error."

_ANY_PARTITION = -1
_NOW = 0
# The consumer's settings that say how to reach the brokers; the others would be refused, or mean something else.
_REACH = "bootstrap. metadata.broker.list security. sasl. ssl. enable.ssl. https. socket. broker. client. reconnect. "
_REACH += "api.version. log_level log. oauth_cb"
_CONNECTION = tuple(_REACH.split())


class Letter(NamedTuple):
    """A record as the client takes it."""

    topic: str
    value: Any
    key: Any
    partition: int
    timestamp: int
    headers: list[Header]

    @classmethod
    def of(cls, topic: str, record: ConsumerRecord, headers: list[Header]) -> Self:
        """A copy of a record with other headers."""
        # The time is now: with the record's own, retention could delete the letter before anybody has read it.
        return cls(topic, record.raw_value, record.raw_key, _ANY_PARTITION, _NOW, headers)


class Failed(Protocol):
    """A record that failed for good: a `Work`, or what is like one."""

    @property
    def record(self) -> ConsumerRecord: ...
    @property
    def attempt(self) -> int: ...
    @property
    def first_failed_at(self) -> float | None: ...


class DeadLetters:
    """Sends dead letters, and tells `stored(work, error)` when Kafka has acknowledged, or refused, one."""

    def __init__(self, topic: str, config: Config, stored: Callable[[RecordWork, BaseException | None], None]) -> None:
        self._topic = topic
        self._stored = stored
        settings = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        self._client = ProducerClient(connection_of(config) | settings)

    def send(self, work: Work[ConsumerRecord], error: BaseException, reason: str) -> None:
        """Send a work's letter: key, value and headers as they came, and what went wrong."""
        letter = Letter.of(self._topic, work.record, letter_headers(work, error, reason))
        try:
            self._client.produce(
                letter.topic,
                letter.value,
                letter.key,
                letter.partition,
                lambda refused, _: self._report(work, error, refused),
                letter.timestamp,
                letter.headers,
            )
        except (BufferError, DeliveryError) as refused:
            self._report(work, error, refused)

    def _report(self, work: Work[ConsumerRecord], error: BaseException, refused: Any) -> None:
        if refused:
            log.warning("A dead letter for %s was not stored, its record is handled again: %s", self._topic, refused)
        self._stored(work, error if refused else None)

    def close(self, timeout: float) -> None:
        """Send what is on its way, within `timeout` seconds; the record of what is not stays undone."""
        self._client.close(timeout)


def connection_of(config: Config) -> dict[str, Any]:
    """Of a consumer's settings those that a producer needs to reach the same brokers."""
    return {key: value for key, value in config.items() if key.startswith(_CONNECTION)}


def letter_headers(work: Failed, error: BaseException, reason: str) -> list[Header]:
    """The record's own headers and what went wrong; of an earlier life as a dead letter nothing is kept."""
    record, now, first_failed_at = work.record, time.time(), work.first_failed_at
    first = now if first_failed_at is None else wall_time(first_failed_at)
    story = {
        "exception": f"{type(error).__module__}.{type(error).__qualname__}",
        "message": _message(error),
        "reason": reason,
        "attempts": str(work.attempt),
        "topic": record.kafka_topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "first.time": str(round(first * 1000)),
        "last.time": str(round(now * 1000)),
    }
    own = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    return own + [(PREFIX + name, text.encode(errors="replace")) for name, text in story.items()]


def _message(error: BaseException) -> str:
    with contextlib.suppress(Exception):  # an error's text is a user's own code
        return str(error)
    return ""

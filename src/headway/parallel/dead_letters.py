"""The topic for records that failed for good, each with the story of its failures in its headers."""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

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
# The consumer's settings that say how to reach the brokers; the others would be refused, or mean something else.
_REACH = "bootstrap. metadata.broker.list security. sasl. ssl. enable.ssl. https. socket. broker. client. reconnect. "
_REACH += "api.version. log_level log. oauth_cb"
_CONNECTION = tuple(_REACH.split())


class DeadLetters:
    """Sends dead letters, and tells `stored(work, error)` when Kafka has acknowledged, or refused, one."""

    def __init__(self, topic: str, config: Config, stored: Callable[[RecordWork, BaseException | None], None]) -> None:
        self._topic = topic
        self._stored = stored
        connection = {key: value for key, value in config.items() if key.startswith(_CONNECTION)}
        settings = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        self._client = ProducerClient(connection | settings)

    def send(self, work: Work[ConsumerRecord], error: BaseException, reason: str) -> None:
        """Send a work's letter: key, value and headers as they came, and what went wrong."""
        record = work.record
        try:
            self._client.produce(
                self._topic,
                record.raw_value,
                record.raw_key,
                _ANY_PARTITION,
                lambda refused, _: self._report(work, error, refused),
                max(0, record.timestamp),
                letter_headers(work, error, reason),
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


def letter_headers(work: Work[ConsumerRecord], error: BaseException, reason: str) -> list[Header]:
    """The record's own headers and what went wrong; of an earlier life as a dead letter nothing is kept."""
    record, now = work.record, time.time()
    first = now if work.first_failed_at is None else wall_time(work.first_failed_at)
    story = {
        "exception": f"{type(error).__module__}.{type(error).__qualname__}",
        "message": _message(error),
        "reason": reason,
        "attempts": str(work.attempt),
        "topic": record.kafka_topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "first.time": str(round(first * 1000)),
        "last.time": str(round(now * 1000)),
    }
    own = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    return own + [(PREFIX + name, text.encode(errors="replace")) for name, text in story.items()]


def _message(error: BaseException) -> str:
    with contextlib.suppress(Exception):  # an error's text is a user's own code
        return str(error)
    return ""

"""The topic for records that failed for good, each with the story of its failures in its headers."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from headway.config import Config
from headway.core.work import Work
from headway.kafka.producer_client import ProducerClient
from headway.letters import MOST_BYTES, Parts, connection_of, letter_headers, shortened, size_of
from headway.parallel.dispatch import RecordWork
from headway.records import ConsumerRecord, Header

log = logging.getLogger(__name__)

_ANY_PARTITION = -1
_NOW = 0


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
        """A copy of a record with other headers; the beginning of one that is larger than any client here may send."""
        # The time is now: with the record's own, retention could delete the letter before anybody has read it.
        parts = Parts(record.raw_value, record.raw_key, headers)
        if size_of(*parts) > MOST_BYTES:  # it was compressed
            parts = shortened(parts, MOST_BYTES)
        return cls(topic, parts.value, parts.key, _ANY_PARTITION, _NOW, parts.headers)


class DeadLetters:
    """Sends dead letters, and tells `stored(work, error)` when Kafka has acknowledged, or refused, one."""

    def __init__(self, topic: str, config: Config, stored: Callable[[RecordWork, BaseException | None], None]) -> None:
        self._topic = topic
        self._stored = stored
        settings = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        settings["message.max.bytes"] = config.get("message.max.bytes", MOST_BYTES)
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
        except Exception as refused:  # whatever it is, the letter is not stored
            self._report(work, error, refused)

    def _report(self, work: Work[ConsumerRecord], error: BaseException, refused: Any) -> None:
        if refused:
            log.warning("A dead letter for %s was not stored, its record is handled again: %s", self._topic, refused)
        self._stored(work, error if refused else None)

    def close(self, timeout: float) -> None:
        """Send what is on its way, within `timeout` seconds; the record of what is not stays undone."""
        self._client.close(timeout)

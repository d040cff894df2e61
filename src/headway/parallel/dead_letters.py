"""The topic for records that failed for good, each with the story of its failures in its headers."""

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from headway.config import Config
from headway.core.work import Work
from headway.kafka.producer_client import ProducerClient, is_too_large
from headway.letters import MOST_BYTES, Parts, connection_of, halved, letter_headers, shortened, size_of
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

    def smaller(self) -> Self | None:
        """Return its first half, for a topic that refuses it for its size; None where nothing can be left out."""
        parts = halved(Parts(self.value, self.key, self.headers))
        return parts and self._replace(value=parts.value, key=parts.key, headers=parts.headers)


class DeadLetters:
    """Sends dead letters, and tells `stored(work, error)` when Kafka has acknowledged, or refused, one."""

    def __init__(self, topic: str, config: Config, stored: Callable[[RecordWork, BaseException | None], None]) -> None:
        self._topic = topic
        self._stored = stored
        settings = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        settings["message.max.bytes"] = config.get("message.max.bytes", MOST_BYTES)
        self._settings = connection_of(config) | settings
        self._client = ProducerClient(self._settings)
        self._single: ProducerClient | None = None
        self._closed = False

    def send(self, work: Work[ConsumerRecord], error: BaseException, reason: str) -> None:
        """Send a work's letter: key, value and headers as they came, and what went wrong."""
        self._produce(
            self._client, Letter.of(self._topic, work.record, letter_headers(work, error, reason)), work, error
        )

    def _produce(self, client: ProducerClient, letter: Letter, work: RecordWork, error: BaseException) -> None:
        def report(refused: Any, _: Any) -> None:
            if refused and is_too_large(refused) and not self._closed:
                self._produce_smaller(client, letter, work, error, refused)
            else:
                self._report(work, error, refused)

        try:
            client.produce(
                letter.topic, letter.value, letter.key, letter.partition, report, letter.timestamp, letter.headers
            )
        except Exception as refused:  # whatever it is, the letter is not stored
            self._report(work, error, refused)

    def _produce_smaller(
        self, client: ProducerClient, letter: Letter, work: RecordWork, error: BaseException, refused: Any
    ) -> None:
        """Send by itself what was refused with others, as Kafka refuses whole batches; what was by itself is halved."""
        if client is not self._single:
            self._single = self._single or ProducerClient({**self._settings, "batch.num.messages": 1})
            self._produce(self._single, letter, work, error)
        elif smaller := letter.smaller():
            self._produce(client, smaller, work, error)
        else:
            self._report(work, error, refused)

    def _report(self, work: Work[ConsumerRecord], error: BaseException, refused: Any) -> None:
        if refused:
            log.warning("A dead letter for %s was not stored, its record is handled again: %s", self._topic, refused)
        self._stored(work, error if refused else None)

    def close(self, timeout: float) -> None:
        """Send what is on its way, within `timeout` seconds; the record of what is not stays undone."""
        deadline = time.monotonic() + timeout
        self._client.close(timeout)
        self._closed = True
        if self._single:
            self._single.close(max(0.0, deadline - time.monotonic()))

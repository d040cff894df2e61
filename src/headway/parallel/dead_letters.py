"""Sends records that failed for good to their topic, each with its failures in its headers."""

import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headway.core.outgoing_record import OutgoingRecord
from headway.dead_letters import MOST_BYTES, fitting, halved, letter_headers, why_not_kept
from headway.errors import ConfigError, HeadwayError, KafkaError
from headway.execution.jobs import RecordWork
from headway.kafka.admin import Admin
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.error_causes import is_invalid, is_of_a_batch, is_too_large
from headway.kafka.binding.time_limits import MISSING_TOPIC_COMES_WITHIN, PARTITIONS_TOLD_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.parallel.postponement import Postponement, Reports
from headway.records.record_types import ConsumerRecord, Header
from headway.settings.config import Config, whole_number
from headway.settings.connection_settings import connection_of

log = logging.getLogger(__name__)

_MISSING_AFTER = 1_000  # milliseconds
_WITHOUT_KEY = ". A compacted topic (cleanup.policy=compact) refuses records without a key: set it to delete"


def letter_of(topic: str, record: ConsumerRecord, headers: list[Header], most: int) -> OutgoingRecord:
    """Copy a record with other headers, shortened if it has more than `most` bytes."""
    # Its timestamp is now: with the record's own, retention could delete the letter before anyone reads it.
    letter = OutgoingRecord(topic, record.raw_value, record.raw_key, headers=headers)
    return fitting(letter, most)


def most_bytes(*settings: Config) -> int:
    """Return `message.max.bytes` for a client that sends dead letters: ours, or a larger one in these settings."""
    key = "message.max.bytes"
    return max(MOST_BYTES, *(whole_number(key, each[key]) for each in settings if key in each), 0)


class LetterTopic:
    """The topic for dead letters of a group: makes the letters, and finds out why the topic would refuse them.

    Args:
        name: The topic's name.
        config: The settings of the connection, whose credentials may change.
        group: The group, which the letters name.
        most: The most bytes of a letter.
    """

    def __init__(self, name: str, config: Config, group: str, most: int = MOST_BYTES) -> None:
        self.name = name
        self.most = most
        self._config = config
        self._group = group

    def connection(self) -> dict[str, Any]:
        """Return the settings of the connection, with the current credentials."""
        return connection_of(self._config)

    def letter(self, work: RecordWork, error: BaseException, reason: str) -> OutgoingRecord:
        """Make a work's letter: key, value and headers as they came, and what went wrong."""
        headers = letter_headers(self.name, work, error, reason, group=self._group)
        return letter_of(self.name, work.record, headers, self.most)

    def why_not_stored(self, known_within: float = 0.0) -> str | None:
        """Return a sentence on why letters cannot be stored, or None if the brokers see no reason.

        For a missing topic it asks again for `known_within` seconds. Raises `KafkaError` if no broker answers.
        """
        admin = Admin(self.connection())
        return admin.why_not_writable(self.name, known_within) or why_not_kept(
            self.name, admin.topic_settings(self.name)
        )

    def require_writable(self) -> None:
        """Raise `ConfigError` if the topic does not exist, is not writable, or would not keep letters.

        If no broker answers, the run begins all the same.
        """
        try:
            reason = self.why_not_stored(MISSING_TOPIC_COMES_WITHIN)
        except KafkaError as unknown:
            log.info("It is not known yet whether dead letters can be stored in %s: %s", self.name, unknown)
        else:
            if reason:
                raise ConfigError(f"Dead letters cannot be stored. {reason}")


class DeadLetters:
    """Sends dead letters, and reports each one that Kafka has acknowledged or refused.

    After a refusal no letter is sent until the topic was checked again, at growing intervals, because librdkafka needs
    half a minute to give up on a missing topic. A thread of its own checks the topic, then sends the waiting letters.
    """

    def __init__(self, topic: LetterTopic, reports: Reports) -> None:
        self._topic = topic
        self._reports = reports
        settings: dict[str, Any] = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        settings["topic.metadata.propagation.max.ms"] = _MISSING_AFTER  # by default 30 s, each with a slot
        settings["message.max.bytes"] = topic.most
        self._settings = topic.connection() | settings
        self._client = ProducerClient(self._settings)
        self._single: ProducerClient | None = None
        self._pause = Postponement(reports, self._tell)
        self._is_refused = False
        self._looking = ThreadPoolExecutor(1, "headway-dead-letters")
        self._closed = False

    def send(self, work: RecordWork, error: BaseException, reason: str) -> None:
        """Send a work's letter."""
        if not self._is_refused:
            self._send(work, error, reason)
            return
        try:
            self._looking.submit(self._look_and_send, work, error, reason)
        except RuntimeError:  # closed: the record is not done
            self._not_stored(work, "the consumer ends")

    def _look_and_send(self, work: RecordWork, error: BaseException, reason: str) -> None:
        if self._is_refused and self._pause.is_over():
            if (refusal := self._why_not()) is not None:
                self._not_stored(work, refusal)
                return
            self._is_refused = False
        if self._is_refused:
            self._pause.postpone(work)
        else:
            self._send(work, error, reason)

    def _why_not(self) -> str | None:
        """Return why letters cannot be written now, or None if no reason is known."""
        try:
            # Asking makes the client notice that the topic exists again.
            self._client.partitions(self._topic.name, PARTITIONS_TOLD_WITHIN)
            return self._topic.why_not_stored()
        except HeadwayError as error:
            return str(error)

    def _send(self, work: RecordWork, error: BaseException, reason: str) -> None:
        self._produce(self._client, self._topic.letter(work, error, reason), work)

    def _produce(self, client: ProducerClient, letter: OutgoingRecord, work: RecordWork) -> None:
        def report(refused: Any, _: Any) -> None:
            if not refused:
                self._reports.stored(work)
            elif is_of_a_batch(refused) and not self._closed:
                self._produce_alone(client, letter, work, refused)
            else:
                self._not_stored(work, refused.str())

        try:
            client.produce(letter, report)
        except Exception as refused:  # whatever the reason, the letter is not stored
            self._not_stored(work, str(refused))

    def _produce_alone(self, client: ProducerClient, letter: OutgoingRecord, work: RecordWork, refused: Any) -> None:
        """Send a refused letter alone, as Kafka refuses whole batches; halve it if it is still too large."""
        if client is not self._single:
            self._single = self._single or ProducerClient({**self._settings, "batch.num.messages": 1})
            self._produce(self._single, letter, work)
        elif is_too_large(refused) and (smaller := halved(letter)):
            self._produce(client, smaller, work)
        else:
            self._not_stored(work, refused.str() + (_WITHOUT_KEY if is_invalid(refused) else ""))

    def _not_stored(self, work: RecordWork, reason: str) -> None:
        self._is_refused = True
        self._pause.refused(work, reason)

    def _tell(self, reason: str) -> None:
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._looking.submit(self._warn, reason)  # checking the topic can take a while

    def _warn(self, reason: str) -> None:
        if self._closed:
            return
        reason = self._why_not() or reason
        log.warning(
            "Dead letters cannot be stored in %s: %s. Their records wait, and are not handled again during this run; "
            "the letters are sent as soon as the topic accepts them.",
            self._topic.name,
            reason.rstrip("."),
        )

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on."""
        change_credentials(self._settings, username, password)
        for client in filter(None, (self._client, self._single)):
            client.set_sasl_credentials(username, password)

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for letters under way. A record whose letter is not stored is not done."""
        deadline = time.monotonic() + timeout
        self._looking.shutdown(wait=False, cancel_futures=True)
        self._client.close(timeout)
        self._closed = True
        if self._single:
            self._single.close(max(0.0, deadline - time.monotonic()))

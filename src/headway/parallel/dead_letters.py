"""Sends records that failed for good to the dead-letter topic. Headers of each dead letter describe the failure."""

import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headway.core.outgoing_record import OutgoingRecord
from headway.dead_letters import MOST_BYTES, fitting, halved, letter_headers, why_not_kept
from headway.errors import ConfigError, HeadwayError, KafkaError
from headway.execution.jobs import RecordAttempt
from headway.kafka.admin import Admin
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.error_causes import is_invalid, is_of_a_batch, is_too_large
from headway.kafka.binding.time_limits import MISSING_TOPIC_COMES_WITHIN, PARTITIONS_TOLD_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.parallel.postponement import Postponement, Reports
from headway.settings.config import Config, whole_number
from headway.settings.connection_settings import connection_of

log = logging.getLogger(__name__)

# How long a topic must be missing before librdkafka reports that it does not exist, in milliseconds. The default of
# librdkafka is half a minute.
_MISSING_AFTER = 1_000
_WITHOUT_KEY = (
    ". If the topic is compacted (cleanup.policy=compact), it refuses records without a key. Set cleanup.policy to "
    "delete"
)


def most_bytes(*settings: Config) -> int:
    """Return the value of `message.max.bytes` for a client that sends dead letters, which is at least `MOST_BYTES`."""
    key = "message.max.bytes"
    return max(MOST_BYTES, *(whole_number(key, each[key]) for each in settings if key in each), 0)


class LetterTopic:
    """The dead-letter topic of a group. Makes dead letters, and finds the reasons why they cannot be stored.

    Args:
        name: The name of the topic.
        config: The settings of the connection, in which the credentials can change.
        group: The name of the consumer group, which is stored in the headers of each dead letter.
        most: The maximum number of bytes of a dead letter.
    """

    def __init__(self, name: str, config: Config, group: str, most: int = MOST_BYTES) -> None:
        self.name = name
        self.most = most
        self._config = config
        self._group = group

    def connection(self) -> dict[str, Any]:
        """Return the settings of the connection, with the current credentials."""
        return connection_of(self._config)

    def letter(self, attempt: RecordAttempt, error: BaseException, reason: str) -> OutgoingRecord:
        """Make a dead letter with the key, value and headers of the record, and with headers about the failure."""
        headers = letter_headers(self.name, attempt, error, reason, group=self._group)
        record = attempt.record
        # The record's timestamp is not copied, because retention could delete an old record before anyone reads it.
        return fitting(OutgoingRecord(self.name, record.raw_value, record.raw_key, headers=headers), self.most)

    def why_not_stored(self, known_within: float = 0.0) -> str | None:
        """Return a sentence that explains why dead letters cannot be stored, or None if no reason is known.

        If the topic does not exist, the lookup is repeated for `known_within` seconds, because a broker might not have
        the metadata of a topic that was created a moment ago. Raises `KafkaError` if no broker answers.
        """
        admin = Admin(self.connection())
        return admin.why_not_writable(self.name, known_within) or why_not_kept(
            self.name, admin.topic_settings(self.name)
        )

    def require_writable(self) -> None:
        """Raise `ConfigError` if the topic does not exist, cannot be written to, or would not keep dead letters.

        If no broker answers, a message is logged instead, so that the run can begin nevertheless.
        """
        try:
            reason = self.why_not_stored(MISSING_TOPIC_COMES_WITHIN)
        except KafkaError as unknown:
            log.info("It is not known yet whether dead letters can be stored in %s: %s", self.name, unknown)
        else:
            if reason:
                raise ConfigError(f"Dead letters cannot be stored. {reason}")


class DeadLetters:
    """Sends dead letters, and reports whether Kafka has stored or refused them.

    After a refusal, a thread checks the topic at growing intervals, and no dead letter is sent until a check succeeds.
    Without these checks, each dead letter could occupy its slot for as long as librdkafka waits for a missing topic.
    """

    def __init__(self, topic: LetterTopic, reports: Reports) -> None:
        self._topic = topic
        self._reports = reports
        settings: dict[str, Any] = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        settings["topic.metadata.propagation.max.ms"] = _MISSING_AFTER
        settings["message.max.bytes"] = topic.most
        self._settings = topic.connection() | settings
        self._client = ProducerClient(self._settings)
        self._single: ProducerClient | None = None  # sends each letter in a batch of its own
        self._pause = Postponement(reports, self._warn_later)
        self._is_refused = False
        self._checking = ThreadPoolExecutor(1, "headway-dead-letters")
        self._closed = False

    def send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        """Send the record of a failed attempt as a dead letter."""
        if not self._is_refused:
            self._send(attempt, error, reason)
            return
        try:
            self._checking.submit(self._check_and_send, attempt, error, reason)
        except RuntimeError:  # `close` has shut down the thread
            self._not_stored(attempt, "the consumer is closing")

    def _check_and_send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        if self._is_refused and self._pause.is_over():
            if (refusal := self._why_not()) is not None:
                self._not_stored(attempt, refusal)
                return
            self._is_refused = False
        if self._is_refused:
            self._pause.postpone(attempt)
        else:
            self._send(attempt, error, reason)

    def _why_not(self) -> str | None:
        """Return a sentence that explains why dead letters cannot be stored now, or None if no reason is known."""
        try:
            # With this request, the client notices if a topic that was missing exists now.
            self._client.partitions(self._topic.name, PARTITIONS_TOLD_WITHIN)
            return self._topic.why_not_stored()
        except HeadwayError as error:
            return str(error)

    def _send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        self._produce(self._client, self._topic.letter(attempt, error, reason), attempt)

    def _produce(self, client: ProducerClient, letter: OutgoingRecord, attempt: RecordAttempt) -> None:
        def report(refused: Any, _: Any) -> None:
            if not refused:
                self._reports.stored(attempt)
            elif is_of_a_batch(refused) and not self._closed:
                self._produce_alone(client, letter, attempt, refused)
            else:
                self._not_stored(attempt, refused.str())

        try:
            client.produce(letter, report)
        except Exception as refused:  # whatever the error is, the dead letter has not been stored
            self._not_stored(attempt, str(refused))

    def _produce_alone(
        self, client: ProducerClient, letter: OutgoingRecord, attempt: RecordAttempt, refused: Any
    ) -> None:
        """Send a letter again in a batch of its own, because one bad record makes Kafka refuse the whole batch.

        If the letter is still too large, it is shortened.
        """
        if client is not self._single:
            self._single = self._single or ProducerClient({**self._settings, "batch.num.messages": 1})
            self._produce(self._single, letter, attempt)
        elif is_too_large(refused) and (smaller := halved(letter)):
            self._produce(client, smaller, attempt)
        else:
            self._not_stored(attempt, refused.str() + (_WITHOUT_KEY if is_invalid(refused) else ""))

    def _not_stored(self, attempt: RecordAttempt, reason: str) -> None:
        self._is_refused = True
        self._pause.refused(attempt, reason)

    def _warn_later(self, reason: str) -> None:
        """Log the warning in the thread that checks the topic, because finding the reason can take a while."""
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # `close` has shut down the thread
                self._checking.submit(self._warn, reason)

    def _warn(self, reason: str) -> None:
        if self._closed:
            return
        reason = self._why_not() or reason
        log.warning(
            "Dead letters cannot be stored in %s: %s. Their records wait and are not handled again. The dead letters "
            "will be sent as soon as the topic accepts them.",
            self._topic.name,
            reason.rstrip("."),
        )

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for all further logins."""
        change_credentials(self._settings, username, password)
        for client in filter(None, (self._client, self._single)):
            client.set_sasl_credentials(username, password)

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for dead letters in flight, and close the clients.

        If a dead letter has not been stored by then, its record is not done, so the next run handles the record again.
        """
        deadline = time.monotonic() + timeout
        self._checking.shutdown(wait=False, cancel_futures=True)
        self._client.close(timeout)
        self._closed = True
        if self._single:
            self._single.close(max(0.0, deadline - time.monotonic()))

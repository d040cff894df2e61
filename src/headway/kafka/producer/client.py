"""A producer's client: it hands records to librdkafka, serves their delivery reports, and asks for their topics."""

import asyncio
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import confluent_kafka as ck

from headway.core.levels.naming import what_there_is
from headway.core.rights import right_for
from headway.errors import DeliveryError, DeliveryRefusedError, HeadwayError, SerializationError
from headway.kafka.binding.capi import await_online
from headway.kafka.binding.time_limits import ONLINE_WITHIN
from headway.kafka.producer.headers import size_of_headers
from headway.kafka.producer.transaction import TransactionalClient
from headway.records.record_types import Header
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata

OnReport = Callable[[ck.KafkaError | None, ck.Message], None]
"""The callback for a record's report: (error or None, message)."""

SERVE_AFTER = 100
"""The number of records after which a thread that calls `produce` serves the reports."""

_IN_DOUBT = ck.KafkaError(ck.KafkaError._INCONSISTENT, "Kafka has not acknowledged it, but later ones")

# Asking for such a topic again does not help.
_REFUSED_TOPIC = {ck.KafkaError.TOPIC_EXCEPTION}


class ProducerClient(TransactionalClient):
    """A client that hands records to librdkafka, and serves its delivery reports; any thread may use it.

    Args:
        config: librdkafka's settings.
        after_reports: Called after each batch of reports, on the thread that took them.
        on_refused: Called with the reason while no broker lets the client in, on the same thread.
        serving: The lock that the thread which takes the reports holds, by default a new one.
    """

    def __init__(
        self,
        config: Config,
        after_reports: Callable[[], None] = lambda: None,
        on_refused: Callable[[str], None] = lambda reason: None,
        serving: "threading.Lock | None" = None,
    ) -> None:
        super().__init__(config, after_reports, on_refused, serving)
        self.is_idempotent = str(config.get("enable.idempotence", "")).lower() == "true" or "transactional.id" in config
        self._produced = 0
        self._missing: dict[str, str] = {}  # topics, with what there is in place of each

    def produce(
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        on_delivery: OnReport,
        timestamp: int,
        headers: list[Header] | None,
    ) -> None:
        """Queue a record.

        A report without an offset becomes one with an error, as librdkafka then only takes the record for stored.

        Raises `BufferError` if the queue is full, and `DeliveryError` or `SerializationError` for a record that cannot
        be sent.
        """
        self._check_process()
        self._produced += 1
        if self.is_idempotent:
            on_delivery = _doubting(on_delivery)
        if headers:
            size_of_headers(headers, topic)
        try:
            if self._produced % SERVE_AFTER == 0:
                self.serve_in_stream()
            # By position, which is quicker; None is the second name that the binding has for the callback.
            self.raw_produce(topic, value, key, partition, on_delivery, None, timestamp, headers)
        except BufferError:
            raise
        # A value that no field can hold raises errors of many kinds, and a closed producer one of its own.
        except Exception as error:
            raise self.refusal(topic, error) from error

    def refusal(self, topic: str, error: Exception) -> HeadwayError:
        """Return what `produce` raised, in our words."""
        if isinstance(error, ck.KafkaException) and (right := self.missing_right(error.args[0], topic)):
            return DeliveryRefusedError(f"A record for {topic} was refused. {right.missing(self._config)}")
        return refusal(topic, error)

    # Reports: see `ReportPump`

    @property
    def serves_here(self) -> bool:
        """True if called from within a report: no other thread would take the next ones meanwhile."""
        return self._reports.serves_here

    def serve_in_stream(self) -> None:
        """Take the reports that are there, on a thread that sends without a pause."""
        self._reports.serve_in_stream()

    def serve(self, timeout: float) -> None:
        """Take the reports that are there, or come within `timeout` seconds; that makes room."""
        self._reports.serve(timeout)

    def serve_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take reports until `done`, unless another thread takes them: for a thread that would only wait.

        Raises `ClosedError` in a forked process, to which no reports come.
        """
        self._check_process()
        self._reports.serve_until(done, timeout)

    def serve_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this loop, which is running here, take the reports from now on, in place of a thread."""
        self._reports.serve_in(loop)

    def leave_loop(self) -> None:
        """Leave the reports to the callers from now on; called in the loop, unless the loop is closed."""
        self._reports.leave_loop()

    # Topics

    def partitions(self, topic: str, timeout: float) -> int:
        """Return how many partitions a Kafka topic has; 0 for one that does not exist.

        Raises `DeliveryRefusedError` for a topic that this client may not see, and `KafkaError` if no broker answers.
        """
        about = self._ask(topic, timeout)
        self._raise_if_refused(topic, about.error)
        if about.error is not None:
            return 0
        self.await_online(topic, with_leader(about))
        return len(about.partitions)

    def await_online(self, topic: str, partitions: Collection[int]) -> None:
        """Wait until the leaders of partitions take records for them, or for half a second.

        If a leader refuses the first records for a new partition and takes the next, which are on their way already,
        librdkafka 2.16 takes the first ones for stored, in transactions too: Kafka checks the sequence of a producer
        only behind its first record in a partition.
        """
        with self._asking:  # another thread may `renew`
            await_online(self._producer, [(topic, number) for number in partitions], ONLINE_WITHIN)

    def leaders(self, topic: str, timeout: float) -> tuple[int, list[int]]:
        """Return how many partitions a Kafka topic has, and those with a leader; none if it does not exist yet.

        Raises `KafkaError` if no broker answers, and `DeliveryError` if the topic's name or access is refused.
        """
        about = self._ask(topic, timeout)
        if about.error is not None and about.error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._missing.setdefault(topic, "")
        else:
            self._missing.pop(topic, None)
        self._raise_if_refused(topic, about.error)
        if about.error is not None and about.error.code() in _REFUSED_TOPIC:
            raise DeliveryError(f"The topic {topic} was refused: {about.error.str()}.")
        if about.error is not None and about.error.code() != ck.KafkaError.LEADER_NOT_AVAILABLE:
            return 0, []
        return len(about.partitions), with_leader(about)

    def is_missing(self, topic: str) -> bool:
        """Return whether Kafka had no such topic when it was asked for `leaders` last."""
        return topic in self._missing

    def look_instead_of(self, topic: str, timeout: float) -> None:
        """Look for levels of a missing topic, or for a topic of which it would be a level, for `instead_of`.

        Raises `KafkaError` if no broker answers.
        """
        with self._asking:
            listing: ClusterMetadata = self._in_slices(
                lambda within: self._producer.list_topics(timeout=within), timeout
            )
        if topic in self._missing:
            self._missing[topic] = what_there_is(topic, listing.topics)

    def instead_of(self, topic: str) -> str:
        """Return a sentence about what Kafka has in place of a missing topic; empty if nothing was found."""
        return self._missing.get(topic, "")

    def _raise_if_refused(self, topic: str, error: ck.KafkaError | None) -> None:
        if error is not None and (right := right_for(error.name(), "Write", topic=topic)):
            raise DeliveryRefusedError(right.missing(self._config)) from ck.KafkaException(error)

    def _ask(self, topic: str, timeout: float) -> "TopicMetadata":
        with self._asking:  # another thread may `renew`
            try:
                listing: ClusterMetadata = self._in_slices(partial(self._producer.list_topics, topic), timeout)
                return listing.topics[topic]
            except (TypeError, ValueError, RuntimeError) as error:  # no string, not UTF-8, or too long
                raise DeliveryError(f"Kafka cannot be asked for the topic {topic!r}: {error}.") from error


def _doubting(on_delivery: OnReport) -> OnReport:
    def report(error: ck.KafkaError | None, message: ck.Message) -> None:
        on_delivery(_IN_DOUBT if error is None and message.offset() is None else error, message)

    return report


def with_leader(about: "TopicMetadata") -> list[int]:
    """Return a topic's partitions that have a leader now."""
    return [number for number, each in about.partitions.items() if each.leader >= 0]


def closed_in_callback(client: str) -> HeadwayError:
    """Return the error for a `close` in a callback."""
    return HeadwayError(
        f"close() was called in a callback of this {client}, on a thread that it would wait for; the {client} stays "
        "open. Note in the callback that it is due, and call close() elsewhere."
    )


def refusal(topic: str, error: Exception) -> HeadwayError:
    """Return the error of librdkafka's `produce` in our words."""
    if isinstance(error, ck.KafkaException):
        if right := right_for(error.args[0].name(), "Write", topic=topic):
            return DeliveryRefusedError(f"A record for {topic} was refused. {right.missing()}")
        return DeliveryError(f"A record for {topic} was refused: {error.args[0].str()}.")
    if isinstance(error, TypeError):
        return SerializationError(
            f"A record for {topic} has a field that is not bytes or a string ({error}). Convert it, or set "
            "key.serializer or value.serializer."
        )
    return DeliveryError(f"A record for {topic} could not be handed over: {error!r}.")

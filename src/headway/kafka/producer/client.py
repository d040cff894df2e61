"""The Kafka client of a producer: it passes records on, takes delivery reports, and replaces a failed producer."""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.levels.naming import what_there_is
from headway.core.outgoing_record import OutgoingRecord
from headway.core.permissions import Permission, permission_for
from headway.errors import (
    AuthenticationError,
    DeliveryError,
    DeliveryRefusedError,
    HeadwayError,
    KafkaError,
    SerializationError,
)
from headway.kafka.binding.capi import await_online, fatal_error, wake_on_events, was_connected
from headway.kafka.binding.connection import Connection, change_credentials
from headway.kafka.binding.error_causes import NO_ANSWER, is_purged, is_retriable, is_unanswered, refused
from headway.kafka.binding.factory import FLUSH_SLICE, close_producer, make_client
from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.kafka.binding.statistics import Statistics
from headway.kafka.binding.time_limits import ONLINE_WITHIN
from headway.kafka.missing_permissions import is_refusal
from headway.kafka.producer.headers import check_headers
from headway.kafka.producer.report_pump import ReportPump
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import heed_signals
from headway.runtime.end_steps import EndSteps, construction
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

OnReport = Callable[[ck.KafkaError | None, ck.Message], None]
"""A callback for a delivery report. The arguments are the error (or None) and the message."""

SERVE_AFTER = 100
"""A thread that calls `produce` takes the delivery reports after this many records."""
SLICE = 0.5
"""The longest single wait inside librdkafka, in seconds, because Python cannot handle Ctrl-C during such a wait."""

_CLOSE_WITHIN = 10.0
_CHECK_INTERVAL = 0.05
# The shortest time in seconds between two renewals, because each new producer costs threads and connections.
_MIN_RENEWAL_INTERVAL = 1.0
_SPACE_WITHIN = 0.1  # `send` waits this many seconds for reports, which free space in the queue, before it tries again

# At its default log level, librdkafka warns of requests that it retries. In a new cluster, this includes every
# producer's first request for a producer id.
_DEFAULTS = {"log_level": 3}

_GAPLESS = "enable.gapless.guarantee"
_BATCHES_OF_ONE = {"batch.num.messages": 1}

IN_DOUBT = ck.KafkaError(ck.KafkaError._INCONSISTENT, "Kafka has acknowledged later records, but not this one")
"""The error of a record that librdkafka reports as stored without an offset, which means that it only assumes so."""


class ClientOwner:
    """The owner of a client. The client calls these methods on the thread that took the delivery reports."""

    def reports_taken(self) -> None:
        """Act on a batch of delivery reports."""

    def login_refused(self, reason: str) -> None:
        """Act on the refusal of this client's login. All queued records have already failed when this is called."""


class ProducerClient:
    """A producer of librdkafka, with a thread that takes its delivery reports.

    All methods are thread-safe. Locks must be acquired in this order: `ReportPump.serving`, then `_renewing`. To close
    librdkafka's producer, acquire its `calling` lock, and then `_asking`.

    While the brokers refuse this client's login, all records that are queued fail every few seconds, and calls that
    need a broker raise `AuthenticationError`.

    After a fatal error, librdkafka's producer sends no more records. One cause of a fatal error is a sequence number on
    which the broker and the client disagree. Another cause is that the client gets no producer id, because it is not
    permitted to write to any topic; that error remains even if the permission is granted later. After a fatal error,
    the waiting records fail, and a new producer sends later records. With a `transactional.id`, the producer is
    replaced only when the owner calls `renew`. With `enable.gapless.guarantee`, it is never replaced.

    Args:
        config: The settings of librdkafka.
        owner: The object whose methods are called after each batch of reports, and when the brokers refuse the login.
        serving: The lock that a thread holds while it takes reports. By default, a new lock is created.
    """

    def __init__(
        self,
        config: Config,
        owner: ClientOwner | None = None,
        serving: "threading.Lock | None" = None,
    ) -> None:
        self.config = {**_DEFAULTS, **config}
        self.is_idempotent = str(config.get("enable.idempotence", "")).lower() == "true" or "transactional.id" in config
        self._connection = Connection()
        self.statistics = Statistics(config)
        self._refusal: AuthenticationError | None = None
        self._produced = 0
        self._missing: dict[str, str] = {}  # for each missing topic, a sentence that names similar existing topics
        self._renews_itself = "transactional.id" not in config and str(config.get(_GAPLESS, "")).lower() != "true"
        self._renewed_at = -math.inf
        self._is_renewing = False
        self._ended_with: ck.KafkaError | None = None  # the fatal error of the previous producer
        self._ended = False
        self._renewing = threading.Lock()
        # A thread that waits for brokers holds this lock, so that no other thread closes the producer.
        self._asking = threading.Lock()
        self._is_forked = False
        with construction(lambda: self.close(0)):
            self._make_producer()
            register_for_forks(self)
            self.owner = owner or ClientOwner()
            self.reports = ReportPump(self._take_reports, serving)
            self.reports.watch(self.producer)
            self._steps_to_end = EndSteps(
                lambda: [self._stop_renewing, self.reports.stop, self._release_current, self.reports.close]
            )
            self.reports.start()

    def _make_producer(self, batches_of_one: bool = False) -> None:
        self.batches_of_one = batches_of_one
        settings = {**self.config, **self.statistics.settings, **(_BATCHES_OF_ONE if batches_of_one else {})}
        self.producer = make_client(cimpl.Producer, settings, self._connection)
        """librdkafka's producer. It is replaced by `renew` and after a fatal error."""
        self.calling = threading.Lock()
        """A lock that is held during a call that might never return.

        Each producer of librdkafka has a lock of its own.
        """
        self.fatal: ck.KafkaException | None = None
        """The fatal error of librdkafka's current producer, or None."""

    def produce(self, record: OutgoingRecord, on_delivery: OnReport, checks_offset: bool = False) -> None:
        """Queue a record.

        If this client is idempotent, a report of success without an offset is turned into the error `IN_DOUBT`. With
        `checks_offset`, the callback does this itself, which is faster.

        Raises `BufferError` if the queue is full, and `DeliveryError` or `SerializationError` if the record cannot be
        sent.
        """
        self._check_process()
        self._produced += 1
        topic, headers = record.topic, record.headers
        if self.is_idempotent and not checks_offset:
            on_delivery = _doubting(on_delivery)
        if headers:
            check_headers(headers, topic)
        try:
            if self._produced % SERVE_AFTER == 0:
                self.reports.serve_in_stream()
            # Positional arguments are faster. The None takes the place of the binding's second name for the callback.
            self.producer.produce(
                topic, record.value, record.key, record.partition, on_delivery, None, record.timestamp, headers
            )
        except BufferError:
            raise
        # The binding raises various errors for values that do not fit a field, and a different error if the producer is
        # closed.
        except Exception as error:
            raise self.refusal(topic, error) from error

    def send(self, record: OutgoingRecord, on_delivery: OnReport) -> None:
        """Queue a record as `produce` does, but wait while the queue is full."""
        while True:
            try:
                self.produce(record, on_delivery)
                return
            except BufferError:
                self.reports.serve(_SPACE_WITHIN)

    def refusal(self, topic: str, error: Exception) -> HeadwayError:
        """Turn an error of librdkafka's `produce` into an error of Headway."""
        if isinstance(error, ck.KafkaException) and (permission := self.missing_permission(error.args[0], topic)):
            return DeliveryRefusedError(f"A record for {topic} was refused. {permission.missing(self.config)}")
        return refusal(topic, error)

    # Delivery reports

    def serve_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take reports until `done()` returns True, unless another thread is taking them.

        A thread that would otherwise only wait can call this method. Raises `ClosedError` in a forked process, where no
        reports arrive.
        """
        self._check_process()
        self.reports.serve_until(done, timeout)

    def _take_reports(self, timeout: float) -> None:
        """Take reports. The caller holds `ReportPump.serving`."""
        try:
            if self.producer.poll(max(0.0, timeout)):
                self.owner.reports_taken()
            self._purge_if_refused()
            self._purge_if_ended()
        except ck.KafkaException as error:
            self._note_end(error)

    def _note_end(self, error: ck.KafkaException) -> None:
        """Note that librdkafka's producer has failed.

        From now on, reports and the calls that need the producer give the reason.
        """
        self._remember(error)
        log.debug("A producer of librdkafka failed with a fatal error: %s", error)
        self.reports.wake()  # librdkafka does not signal again for reports that are queued behind this error

    def _remember(self, error: ck.KafkaException) -> None:
        if error.args[0].fatal():
            self.fatal = error

    def _purge_if_ended(self) -> None:
        """Fail the records that a producer with a fatal error has not sent.

        librdkafka does this itself, except for a record that is queued just as the error occurs. Without this purge,
        such a record would wait until its delivery timeout.
        """
        if self.fatal:
            if self.queued():
                self.producer.purge(in_flight=False, blocking=False)
            self._renew_soon()

    def _purge_if_refused(self) -> None:
        """Fail all queued records if brokers have never accepted this client's login.

        In this case, no record is in flight.
        """
        refusal = self._connection.never_let_in(self.producer)
        if refusal is None:
            return
        self._refusal = refusal
        self.producer.purge()
        self.owner.login_refused(_as_clause(refusal))
        self.reports.wake()  # the purge does not set the wake-up

    def queued(self) -> int:
        """Return the number of records without a delivery report."""
        return len(self.producer)

    def flush(self, timeout: float | None) -> int:
        """Wait for the reports of all records, and return the number of records without a report.

        A call in a callback does not wait.
        """
        self._check_process()
        timeout = math.inf if timeout is None else timeout
        deadline = time.monotonic() + timeout
        with self.reports.try_hold(timeout) as is_held:
            if not is_held:
                return self.queued()
            left = self._flush(min(FLUSH_SLICE, deadline - time.monotonic()))
            while left and time.monotonic() < deadline:
                heed_signals()
                left = self._flush(min(FLUSH_SLICE, deadline - time.monotonic()))
            return left

    def _flush(self, timeout: float) -> int:
        """Call librdkafka's flush. The caller holds `ReportPump.serving`."""
        try:
            left = self.producer.flush(max(0.0, timeout))
            self._purge_if_refused()
            self._purge_if_ended()
            return left
        except ck.KafkaException as error:
            self._note_end(error)
            return self.queued()
        finally:
            self.owner.reports_taken()

    def await_reports(self, over: Callable[[], bool], within: float) -> None:
        """Wait for the reports of all records, or until `over()` returns True.

        Raises `KafkaError` after `within` seconds. After an error in a transaction, librdkafka may keep a batch that it
        will never send, until the batch times out.
        """
        deadline = time.monotonic() + within
        while self.flush(_CHECK_INTERVAL) and not over():
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"Kafka did not acknowledge all records within {within:g} s. Check that its brokers are up, and "
                    "try again."
                )

    # The causes of errors

    def because(self) -> str:
        """Return the reason why the last connection ended, as the end of a sentence.

        Returns an empty string if no reason is known.
        """
        return self._connection.because()

    def reason_of(self, error: ck.KafkaError) -> str:
        """Return the text of an error in a delivery report, with its cause if that is known."""
        if is_purged(error) and (refusal := self._still_refused()):
            return _as_clause(refusal)
        return error.str() + (self.because() if error.code() in NO_ANSWER or is_purged(error) else "")

    def missing_permission(self, error: ck.KafkaError, topic: str) -> Permission | None:
        """Return the missing permission that caused a record to be refused or purged.

        Returns None if the cause is different.
        """
        if (is_purged(error) or error.code() == ck.KafkaError._FATAL) and self._renews_itself and not self._is_forked:
            fatal = fatal_error(self.producer)
            if fatal:
                self._renew_soon()
            elif not is_purged(error):
                # This error was reported by the previous producer; the current one has no fatal error.
                fatal = self._ended_with
            if is_refusal(fatal):  # without the permission, the client got no producer id
                return Permission("Write", "Topic", topic)
        return permission_for(error.name(), "Write", topic=topic)

    def _still_refused(self) -> AuthenticationError | None:
        return self._refusal if self._refusal and not was_connected(self.producer) else None

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for all logins from now on. Raises `ConfigError` if librdkafka does not accept them."""
        with self._asking:  # another thread might replace the producer with `renew`
            self._connection.set_credentials(self.producer, username, password)
            change_credentials(self.config, username, password)
            self._refusal = None

    # Calls that need a broker

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of librdkafka, and turn its exception into a `KafkaError`."""
        try:
            return function(*args, **kwargs)
        except ck.KafkaException as error:
            self._remember(error)
            because = self.because() if error.args[0].code() in NO_ANSWER else ""
            raise refused(error, because) from error

    def call_in_slices(self, ask: Callable[[float], T], timeout: float) -> T:
        """Call a function of librdkafka in short slices until a broker answers.

        Raises `AuthenticationError` if the brokers refuse the login.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return self.call(ask, max(0.0, min(SLICE, left)))
            except KafkaError as error:
                if refusal := self._still_refused():
                    raise AuthenticationError(str(refusal)) from error
                if left <= SLICE or not (is_retriable(error) or is_unanswered(error)):
                    raise

    # Requests for topics

    def partitions(self, topic: str, timeout: float) -> int:
        """Return the number of partitions of a Kafka topic, or 0 if it does not exist.

        Raises `DeliveryRefusedError` if this client is not permitted to see the topic, and `KafkaError` if no broker
        answers.
        """
        about = self._ask(topic, timeout)
        self._raise_if_refused(topic, about.error)
        if about.error is not None:
            return 0
        self.await_online(topic, with_leader(about))
        return len(about.partitions)

    def await_online(self, topic: str, partitions: Collection[int]) -> None:
        """Wait until the leaders of these partitions are ready to accept records, for at most half a second.

        A leader may refuse the first records for a new partition and accept the next ones, which are already in flight.
        librdkafka 2.16 then reports the refused records as stored, even in a transaction, because Kafka checks a
        producer's sequence numbers only after its first accepted record in a partition.
        """
        with self._asking:  # another thread might replace the producer with `renew`
            await_online(self.producer, [(topic, number) for number in partitions], ONLINE_WITHIN)

    def leaders(self, topic: str, timeout: float) -> tuple[int, list[int]]:
        """Return the number of partitions of a Kafka topic, and the partitions that have a leader.

        For a topic that does not exist yet, the result is 0 and an empty list. Raises `KafkaError` if no broker
        answers, and `DeliveryError` if Kafka refuses the topic's name, or does not permit access to it.
        """
        about = self._ask(topic, timeout)
        if about.error is not None and about.error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._missing.setdefault(topic, "")
        else:
            self._missing.pop(topic, None)
        self._raise_if_refused(topic, about.error)
        # The topic's name is not valid.
        if about.error is not None and about.error.code() == ck.KafkaError.TOPIC_EXCEPTION:
            raise DeliveryError(f"The topic {topic} was refused: {about.error.str()}.")
        if about.error is not None and about.error.code() != ck.KafkaError.LEADER_NOT_AVAILABLE:
            return 0, []
        return len(about.partitions), with_leader(about)

    def is_missing(self, topic: str) -> bool:
        """Return whether the topic was missing when `leaders` was last called for it."""
        return topic in self._missing

    def find_alternative(self, topic: str, timeout: float) -> None:
        """Look for topics that were probably meant instead of a missing topic, for `alternative_to`.

        These are the levels of the missing topic or, if the missing topic is a level, the topic without levels. Raises
        `KafkaError` if no broker answers.
        """
        with self._asking:
            listing: ClusterMetadata = self.call_in_slices(
                lambda within: self.producer.list_topics(timeout=within), timeout
            )
        if topic in self._missing:
            self._missing[topic] = what_there_is(topic, listing.topics)

    def alternative_to(self, topic: str) -> str:
        """Return a sentence that names the topics that `find_alternative` has found, or an empty string."""
        return self._missing.get(topic, "")

    def _raise_if_refused(self, topic: str, error: ck.KafkaError | None) -> None:
        if error is not None and (permission := permission_for(error.name(), "Write", topic=topic)):
            raise DeliveryRefusedError(permission.missing(self.config)) from ck.KafkaException(error)

    def _ask(self, topic: str, timeout: float) -> "TopicMetadata":
        with self._asking:  # another thread might replace the producer with `renew`
            try:
                listing: ClusterMetadata = self.call_in_slices(partial(self.producer.list_topics, topic), timeout)
                return listing.topics[topic]
            # The name is not a string, cannot be encoded in UTF-8, or is too long.
            except (TypeError, ValueError, RuntimeError) as error:
                raise DeliveryError(f"The topic {topic!r} cannot be looked up: {error}. Correct the name.") from error

    # Replacing and closing the producer

    def _renew_soon(self) -> None:
        now = time.monotonic()
        if self._renews_itself and not self._is_renewing and now - self._renewed_at >= _MIN_RENEWAL_INTERVAL:
            self._renewed_at, self._is_renewing = now, True
            # This runs in the background because the caller may hold locks that the thread that takes reports needs.
            in_background(self._renew_when_reported)

    def _renew_when_reported(self) -> None:
        """Replace a producer that has a fatal error, once all of its records have been reported."""
        try:
            while not self._ended:
                with self.reports.hold(), self._renewing:
                    before, calling = self.producer, self.calling
                    fatal = fatal_error(before)
                    if self._ended or fatal is None:
                        return
                    if not len(before):
                        self._ended_with = fatal
                        self._make_producer(self.batches_of_one)
                        self.reports.watch(self.producer)
                        break
                time.sleep(_CHECK_INTERVAL)
            else:
                return
        finally:
            self._is_renewing = False
        if not is_refusal(fatal):  # if a permission is missing, the error of each record already names it
            log.warning(
                "The Kafka client of a producer failed with a fatal error, and a new client replaces it: %s. Each "
                "record that had not been delivered has failed with an error of its own.",
                fatal.str().rstrip("."),
            )
        self._release(before, calling)

    def renew(self, batches_of_one: bool = False) -> None:
        """Replace librdkafka's producer with a new one that has the same settings.

        Records that were already handed to the old producer get no more reports.

        With `batches_of_one`, each batch consists of one record, so that an error concerns exactly that record. With
        larger batches, the cause can be another record of the batch, or the size of the whole batch.
        """
        with self.reports.hold():
            before, calling = self.producer, self.calling
            self._make_producer(batches_of_one)
            self.reports.watch(self.producer)
            self._release(before, calling)

    def close(self, timeout: float | None) -> int:
        """Wait for reports, fail the remaining records, and close.

        Returns the number of records that were not delivered.

        In a forked process, this call does nothing, because the client belongs to the parent process.
        """
        if self._is_forked or self._steps_to_end.is_over:
            return 0
        try:
            left = self.flush(timeout)
            if left:
                self.producer.purge()
                self.flush(1.0)
        finally:
            self._steps_to_end.take()
        return left

    def forked(self) -> None:
        """Disable this copy of the object in a forked process, which has none of its threads."""
        self._is_forked = True

    def _check_process(self) -> None:
        if self._is_forked:
            raise made_before_fork("client")

    def _stop_renewing(self) -> None:
        with self._renewing:
            self._ended = True

    def _release_current(self) -> None:
        self._release(self.producer, self.calling)

    def _release(self, producer: cimpl.Producer, calling: threading.Lock) -> None:
        def close() -> None:
            with calling, self._asking:
                # After an error, a batch may be stuck, and closing the producer without a purge would wait for this
                # batch.
                producer.purge()
                try:
                    close_producer(producer)
                except ck.KafkaException as error:  # for example because the broker has no such transaction
                    log.debug("A producer that had failed was closed: %s", error)

        wake_on_events(producer, None)
        is_in_call = calling.locked()
        closing = in_background(close)
        # Do not wait, because the thread in that call may be waiting for `ReportPump.serving`, which this thread may
        # hold.
        if is_in_call:
            return
        try:
            # Closing a producer aborts its open transaction, and waits until the brokers answer.
            closing.result(_CLOSE_WITHIN)
        except TimeoutError:
            log.warning(
                "The brokers have not confirmed within %g s that the open transaction was aborted. The producer "
                "closes anyway. The brokers will abort the transaction after its transaction.timeout.ms.",
                _CLOSE_WITHIN,
            )


def _doubting(on_delivery: OnReport) -> OnReport:
    def report(error: ck.KafkaError | None, message: ck.Message) -> None:
        on_delivery(IN_DOUBT if error is None and message.offset() is None else error, message)

    return report


def with_leader(about: "TopicMetadata") -> list[int]:
    """Return the numbers of a topic's partitions that currently have a leader."""
    return [number for number, each in about.partitions.items() if each.leader >= 0]


def closed_in_callback(client: str) -> HeadwayError:
    """Return the error for a call of `close` in a callback."""
    return HeadwayError(
        f"close() was called in a callback of this {client}, on a thread that close() would have to wait for. The "
        f"{client} stays open. Set a flag in the callback, and call close() on another thread."
    )


def refusal(topic: str, error: Exception) -> HeadwayError:
    """Turn an error of librdkafka's `produce` into an error of Headway."""
    if isinstance(error, ck.KafkaException):
        return DeliveryError(f"A record for {topic} was refused: {error.args[0].str()}.")
    if isinstance(error, TypeError):
        return SerializationError(
            f"A record for {topic} has a field that is not bytes or a string ({error}). Convert it, or set "
            "key.serializer or value.serializer."
        )
    return DeliveryError(f"A record for {topic} could not be passed to librdkafka: {error!r}.")


def _as_clause(refusal: AuthenticationError) -> str:
    """Return an error's text as a clause that fits into the middle of a sentence."""
    sentence = str(refusal).rstrip(".")
    return sentence[0].lower() + sentence[1:]

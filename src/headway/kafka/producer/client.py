"""The client of a producer: it hands records to librdkafka, takes delivery reports, and replaces a failed producer."""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import confluent_kafka as ck

from headway.core.levels.naming import what_there_is
from headway.core.outgoing_record import OutgoingRecord
from headway.core.rights import Right, right_for
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
from headway.kafka.binding.time_limits import ONLINE_WITHIN
from headway.kafka.missing_rights import is_refusal
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
"""A callback for a delivery report: (error or None, message)."""

SERVE_AFTER = 100
"""A thread that calls `produce` takes the delivery reports after every 100 records."""
SLICE = 0.5
"""The longest single wait inside librdkafka, in seconds, because Ctrl-C is not noticed there."""

_CLOSE_WITHIN = 10.0
_CHECK_INTERVAL = 0.05
_MIN_RENEWAL_INTERVAL = 1.0  # seconds; each new producer costs threads and connections
_SPACE_WITHIN = 0.1  # seconds for which `send` waits for reports, which free space, before it tries again

# At its default level librdkafka warns of requests that it retries. In a new cluster each producer's first request for
# a producer id is one of these.
_DEFAULTS = {"log_level": 3}

_GAPLESS = "enable.gapless.guarantee"
_BATCHES_OF_ONE = {"batch.num.messages": 1}

_IN_DOUBT = ck.KafkaError(ck.KafkaError._INCONSISTENT, "Kafka has acknowledged later records, but not this one")


class ProducerClient:
    """librdkafka's producer, with a thread that takes its delivery reports.

    Every method can be called from any thread. Locks are taken in this order: `ReportPump.serving`, then `_renewing`.
    When a producer is closed: its own `calling`, then `_asking`.

    While the brokers refuse this client's login, all queued records fail every few seconds, and calls that ask brokers
    raise `AuthenticationError`.

    A fatal error ends librdkafka's producer. One cause is a sequence number on which broker and client disagree.
    Another is that the client has no right to write to any topic and so gets no producer id; this error stays even if
    the right is granted later. The waiting records then fail, and a new producer takes over for later records. With a
    `transactional.id` this happens only when the owner calls `renew`; with `enable.gapless.guarantee` it never happens.

    Args:
        config: librdkafka's settings.
        after_reports: Called after each batch of reports, on the thread that took them.
        on_refused: Called with the reason when the brokers refuse the login, on the same thread.
        serving: The lock that a thread holds while it takes reports; by default a new one.
    """

    def __init__(
        self,
        config: Config,
        after_reports: Callable[[], None] = lambda: None,
        on_refused: Callable[[str], None] = lambda reason: None,
        serving: "threading.Lock | None" = None,
    ) -> None:
        self.config = {**_DEFAULTS, **config}
        self.is_idempotent = str(config.get("enable.idempotence", "")).lower() == "true" or "transactional.id" in config
        self._connection = Connection()
        self._on_refused = on_refused
        self._refusal: AuthenticationError | None = None
        self._produced = 0
        self._missing: dict[str, str] = {}  # missing topics, each with a hint at existing ones
        self._renews_itself = "transactional.id" not in config and str(config.get(_GAPLESS, "")).lower() != "true"
        self._renewed_at = -math.inf
        self._is_renewing = False
        self._ended_with: ck.KafkaError | None = None  # the fatal error of the producer before this one
        self._ended = False
        self._renewing = threading.Lock()
        self._asking = threading.Lock()  # held while any thread asks brokers, so that the producer is not closed then
        self._is_forked = False
        with construction(lambda: self.close(0)):
            self._make_producer()
            register_for_forks(self)
            self.after_reports = after_reports
            self.reports = ReportPump(self._take_reports, serving)
            self.reports.watch(self.producer)
            self._steps_to_end = EndSteps(
                lambda: [self._stop_renewing, self.reports.stop, self._release_current, self.reports.close]
            )
            self.reports.start()

    def _make_producer(self, batches_of_one: bool = False) -> None:
        self.batches_of_one = batches_of_one
        settings = {**self.config, **(_BATCHES_OF_ONE if batches_of_one else {})}
        self.producer = make_client(ck.Producer, settings, self._connection)
        """librdkafka's producer. `renew`, or a fatal error, replaces it."""
        self.calling = threading.Lock()
        """Held during a call that might never return. Each producer has its own lock."""
        self.fatal: ck.KafkaException | None = None
        """The error that ended librdkafka's producer."""

    def produce(self, record: OutgoingRecord, on_delivery: OnReport) -> None:
        """Queue a record.

        If this client is idempotent, a report without an offset is turned into an error, because librdkafka then only
        assumes that the record was stored.

        Raises `BufferError` if the queue is full, and `DeliveryError` or `SerializationError` if the record cannot be
        sent.
        """
        self._check_process()
        self._produced += 1
        topic, headers = record.topic, record.headers
        if self.is_idempotent:
            on_delivery = _doubting(on_delivery)
        if headers:
            check_headers(headers, topic)
        try:
            if self._produced % SERVE_AFTER == 0:
                self.reports.serve_in_stream()
            # Positional arguments are quicker. The None stands for the binding's second name for the callback.
            self.producer.produce(
                topic, record.value, record.key, record.partition, on_delivery, None, record.timestamp, headers
            )
        except BufferError:
            raise
        # The binding raises many kinds of errors for values that do not fit a field, and another for a closed producer.
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
        """Return Headway's error for an error that librdkafka's `produce` raised."""
        if isinstance(error, ck.KafkaException) and (right := self.missing_right(error.args[0], topic)):
            return DeliveryRefusedError(f"A record for {topic} was refused. {right.missing(self.config)}")
        return refusal(topic, error)

    # Reports

    def serve_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take reports until `done()`, unless another thread is taking them. For a thread that would only wait.

        Raises `ClosedError` in a forked process, where no reports arrive.
        """
        self._check_process()
        self.reports.serve_until(done, timeout)

    def _take_reports(self, timeout: float) -> None:
        """Take reports. The caller holds `ReportPump.serving`."""
        try:
            if self.producer.poll(max(0.0, timeout)):
                self.after_reports()
            self._purge_if_refused()
            self._purge_if_ended()
        except ck.KafkaException as error:
            self._note_end(error)

    def _note_end(self, error: ck.KafkaException) -> None:
        """Remember that librdkafka's producer failed. The reports, and the calls that need the producer, say why."""
        self._remember(error)
        log.debug("Kafka's producer cannot go on: %s", error)
        self.reports.wake()  # the reports queued behind this error will not signal again

    def _remember(self, error: ck.KafkaException) -> None:
        if error.args[0].fatal():
            self.fatal = error

    def _purge_if_ended(self) -> None:
        """Fail the records that a producer with a fatal error has not sent.

        librdkafka does this itself, except for a record that was queued just as the error occurred. Without this purge
        that record would wait until its delivery timeout.
        """
        if self.fatal:
            if self.queued():
                self.producer.purge(in_flight=False, blocking=False)
            self._renew_soon()

    def _purge_if_refused(self) -> None:
        """Fail all queued records if brokers have never accepted this client's login: none of them is in flight."""
        refusal = self._connection.never_let_in(self.producer)
        if refusal is None:
            return
        self._refusal = refusal
        self.producer.purge()
        self._on_refused(_as_clause(refusal))
        self.reports.wake()  # the purge itself has signalled nobody

    def queued(self) -> int:
        """Return the number of records without a delivery report."""
        return len(self.producer)

    def flush(self, timeout: float | None) -> int:
        """Wait for the reports of all records, and return how many are missing. In a callback it does not wait."""
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
        """Flush. The caller holds `ReportPump.serving`."""
        try:
            left = self.producer.flush(max(0.0, timeout))
            self._purge_if_refused()
            self._purge_if_ended()
            return left
        except ck.KafkaException as error:
            self._note_end(error)
            return self.queued()
        finally:
            self.after_reports()

    def await_reports(self, over: Callable[[], bool], within: float) -> None:
        """Wait for the reports of all records, or until `over()`. Raises `KafkaError` after `within` seconds.

        After a refusal in a transaction, librdkafka may keep a batch that it will never send until that batch times
        out.
        """
        deadline = time.monotonic() + within
        while self.flush(_CHECK_INTERVAL) and not over():
            if time.monotonic() > deadline:
                raise KafkaError(f"Kafka did not acknowledge all records within {within:g} s.")

    # The causes of errors

    def because(self) -> str:
        """Return why the last connection ended, worded as the end of a sentence; empty if unknown."""
        return self._connection.because()

    def reason_of(self, error: ck.KafkaError) -> str:
        """Return the text of a report's error, with its cause if known."""
        if is_purged(error) and (refusal := self._still_refused()):
            return _as_clause(refusal)
        return error.str() + (self.because() if error.code() in NO_ANSWER or is_purged(error) else "")

    def missing_right(self, error: ck.KafkaError, topic: str) -> Right | None:
        """Return the missing right because of which a record was refused or purged; None if that is not the cause."""
        if (is_purged(error) or error.code() == ck.KafkaError._FATAL) and self._renews_itself and not self._is_forked:
            fatal = fatal_error(self.producer)
            if fatal:
                self._renew_soon()
            elif not is_purged(error):
                fatal = self._ended_with  # the error is the previous producer's: the current one accepts records
            if is_refusal(fatal):  # the client got no producer id
                return Right("Write", "Topic", topic)
        return right_for(error.name(), "Write", topic=topic)

    def _still_refused(self) -> AuthenticationError | None:
        return self._refusal if self._refusal and not was_connected(self.producer) else None

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials from now on. Raises `ConfigError` if librdkafka does not accept them."""
        with self._asking:  # another thread may `renew`
            self._connection.set_credentials(self.producer, username, password)
            change_credentials(self.config, username, password)
            self._refusal = None

    # Calls that ask brokers

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of librdkafka, and raise its error as a `KafkaError`."""
        try:
            return function(*args, **kwargs)
        except ck.KafkaException as error:
            self._remember(error)
            because = self.because() if error.args[0].code() in NO_ANSWER else ""
            raise refused(error, because) from error

    def call_in_slices(self, ask: Callable[[float], T], timeout: float) -> T:
        """Ask brokers repeatedly until one answers. Raises `AuthenticationError` if they refuse the login."""
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

    # Topics

    def partitions(self, topic: str, timeout: float) -> int:
        """Return the number of partitions of a Kafka topic, or 0 if it does not exist.

        Raises `DeliveryRefusedError` if this client has no right to see the topic, and `KafkaError` if no broker
        answers.
        """
        about = self._ask(topic, timeout)
        self._raise_if_refused(topic, about.error)
        if about.error is not None:
            return 0
        self.await_online(topic, with_leader(about))
        return len(about.partitions)

    def await_online(self, topic: str, partitions: Collection[int]) -> None:
        """Wait until the leaders of these partitions accept records for them, for at most half a second.

        A leader may refuse the first records for a new partition and accept the next ones, which are already in flight.
        librdkafka 2.16 then reports the refused records as stored, even in a transaction, because Kafka checks a
        producer's sequence numbers only after its first accepted record in a partition.
        """
        with self._asking:  # another thread may `renew`
            await_online(self.producer, [(topic, number) for number in partitions], ONLINE_WITHIN)

    def leaders(self, topic: str, timeout: float) -> tuple[int, list[int]]:
        """Return the number of partitions of a Kafka topic, and the partitions that have a leader.

        For a topic that does not exist yet, these are 0 and an empty list. Raises `KafkaError` if no broker answers,
        and `DeliveryError` if Kafka refuses the topic's name or the access to it.
        """
        about = self._ask(topic, timeout)
        if about.error is not None and about.error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._missing.setdefault(topic, "")
        else:
            self._missing.pop(topic, None)
        self._raise_if_refused(topic, about.error)
        if about.error is not None and about.error.code() == ck.KafkaError.TOPIC_EXCEPTION:  # its name is not valid
            raise DeliveryError(f"The topic {topic} was refused: {about.error.str()}.")
        if about.error is not None and about.error.code() != ck.KafkaError.LEADER_NOT_AVAILABLE:
            return 0, []
        return len(about.partitions), with_leader(about)

    def is_missing(self, topic: str) -> bool:
        """Return whether the topic was missing at the last call of `leaders`."""
        return topic in self._missing

    def find_alternative(self, topic: str, timeout: float) -> None:
        """Find out whether Kafka has levels of a missing topic, or the topic of a missing level; see `alternative_to`.

        Raises `KafkaError` if no broker answers.
        """
        with self._asking:
            listing: ClusterMetadata = self.call_in_slices(
                lambda within: self.producer.list_topics(timeout=within), timeout
            )
        if topic in self._missing:
            self._missing[topic] = what_there_is(topic, listing.topics)

    def alternative_to(self, topic: str) -> str:
        """Return a sentence that names the topics found for a missing one; empty if nothing was found."""
        return self._missing.get(topic, "")

    def _raise_if_refused(self, topic: str, error: ck.KafkaError | None) -> None:
        if error is not None and (right := right_for(error.name(), "Write", topic=topic)):
            raise DeliveryRefusedError(right.missing(self.config)) from ck.KafkaException(error)

    def _ask(self, topic: str, timeout: float) -> "TopicMetadata":
        with self._asking:  # another thread may `renew`
            try:
                listing: ClusterMetadata = self.call_in_slices(partial(self.producer.list_topics, topic), timeout)
                return listing.topics[topic]
            except (TypeError, ValueError, RuntimeError) as error:  # the name is not a string, not UTF-8, or too long
                raise DeliveryError(f"Kafka cannot be asked for the topic {topic!r}: {error}.") from error

    # Renewal, and the end

    def _renew_soon(self) -> None:
        now = time.monotonic()
        if self._renews_itself and not self._is_renewing and now - self._renewed_at >= _MIN_RENEWAL_INTERVAL:
            self._renewed_at, self._is_renewing = now, True
            in_background(self._renew_when_reported)  # the caller may hold locks that reports need

    def _renew_when_reported(self) -> None:
        """Replace a producer that has a fatal error, once all of its records are reported."""
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
        if not is_refusal(fatal):  # each record's own error reports a refusal
            log.warning(
                "Kafka's client for a producer ended with a fatal error, and a new client takes over: %s. Each record "
                "that had not been delivered has failed with its own error.",
                fatal.str().rstrip("."),
            )
        self._release(before, calling)

    def renew(self, batches_of_one: bool = False) -> None:
        """Replace the producer by a new one with the same settings. Records of the old one are not reported any more.

        With batches of one record, a refusal concerns exactly that record. Otherwise it may concern another record of
        the batch, or the size of the whole batch.
        """
        with self.reports.hold():
            before, calling = self.producer, self.calling
            self._make_producer(batches_of_one)
            self.reports.watch(self.producer)
            self._release(before, calling)

    def close(self, timeout: float | None) -> int:
        """Flush, fail the remaining records, and stop. Returns the number of records that were not delivered.

        In a forked process this does nothing, because the client belongs to the parent process.
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

    def _release(self, producer: ck.Producer, calling: threading.Lock) -> None:
        def close() -> None:
            with calling, self._asking:
                producer.purge()  # after a refusal, a batch may be stuck, and closing would wait for it
                try:
                    close_producer(producer)
                except ck.KafkaException as error:  # for example because the broker does not know the transaction
                    log.debug("A producer that had failed was closed: %s", error)

        wake_on_events(producer, None)
        is_in_call = calling.locked()
        closing = in_background(close)
        if is_in_call:  # the thread in that call may be waiting for `ReportPump.serving`, which this thread may hold
            return
        try:
            # Closing aborts an open transaction, and waits until brokers answer.
            closing.result(_CLOSE_WITHIN)
        except TimeoutError:
            log.warning(
                "The brokers have not confirmed within %g s that the open transaction was aborted. The producer stops "
                "waiting; the brokers will abort the transaction after its transaction.timeout.ms.",
                _CLOSE_WITHIN,
            )


def _doubting(on_delivery: OnReport) -> OnReport:
    def report(error: ck.KafkaError | None, message: ck.Message) -> None:
        on_delivery(_IN_DOUBT if error is None and message.offset() is None else error, message)

    return report


def with_leader(about: "TopicMetadata") -> list[int]:
    """Return the partitions of a topic that have a leader now."""
    return [number for number, each in about.partitions.items() if each.leader >= 0]


def closed_in_callback(client: str) -> HeadwayError:
    """Return the error for calling `close` in a callback."""
    return HeadwayError(
        f"close() was called in a callback of this {client}, on a thread for which it would have to wait. The {client} "
        "stays open. Set a flag in the callback, and call close() on another thread."
    )


def refusal(topic: str, error: Exception) -> HeadwayError:
    """Return Headway's error for an error that librdkafka's `produce` raised."""
    if isinstance(error, ck.KafkaException):
        return DeliveryError(f"A record for {topic} was refused: {error.args[0].str()}.")
    if isinstance(error, TypeError):
        return SerializationError(
            f"A record for {topic} has a field that is not bytes or a string ({error}). Convert it, or set "
            "key.serializer or value.serializer."
        )
    return DeliveryError(f"A record for {topic} could not be handed over: {error!r}.")


def _as_clause(refusal: AuthenticationError) -> str:
    """Return the error's sentence as a clause for the middle of another sentence."""
    sentence = str(refusal).rstrip(".")
    return sentence[0].lower() + sentence[1:]

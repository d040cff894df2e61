"""A producer's client: it hands records to librdkafka, takes their reports, and outlives librdkafka's producer."""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import confluent_kafka as ck

from headway.core.levels.naming import what_there_is
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
from headway.kafka.binding.forks import made_before_fork, tell_of_forks
from headway.kafka.binding.time_limits import ONLINE_WITHIN
from headway.kafka.missing_rights import is_refusal
from headway.kafka.producer.headers import size_of_headers
from headway.kafka.producer.report_pump import ReportPump
from headway.records.record_types import Header
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import heed_signals
from headway.runtime.end_steps import EndSteps
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

OnReport = Callable[[ck.KafkaError | None, ck.Message], None]
"""The callback for a record's report: (error or None, message)."""

SERVE_AFTER = 100
"""The number of records after which a thread that calls `produce` takes the reports."""
SLICE = 0.5
"""The longest wait inside librdkafka, where Ctrl-C is not seen, in seconds."""

_CLOSE_WITHIN = 10.0
_LOOK_EVERY = 0.05
_RENEW_EVERY = 1.0  # seconds: to make a producer costs threads and connections

# librdkafka also warns of requests that it tries again: in a new cluster each producer's first one for its id.
_DEFAULTS = {"log_level": 3}

_GAPLESS = "enable.gapless.guarantee"
_BATCHES_OF_ONE = {"batch.num.messages": 1}

_IN_DOUBT = ck.KafkaError(ck.KafkaError._INCONSISTENT, "Kafka has not acknowledged it, but later ones")

# Asking for such a topic again does not help.
_REFUSED_TOPIC = {ck.KafkaError.TOPIC_EXCEPTION}


class ProducerClient:
    """librdkafka's producer with the thread that takes its reports, until it is renewed or closed.

    Any thread may call each method. The locks are taken in this order: the turn at reports (`ReportPump.serving`), then
    `_renewing`; at a producer's end its own `calling`, then `_asking`.

    While no broker lets the client in, all queued records fail every few seconds. Calls that ask brokers then raise
    `AuthenticationError`.

    A fatal error ends librdkafka's producer: a sequence that broker and client do not agree on, or no producer id for
    a client that may write to no topic, even when the right is granted later. Records that wait then fail, and a new
    producer is made for later ones. With a `transactional.id` only the owner can decide that, by `renew`, and with
    `enable.gapless.guarantee` nobody may.

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
        self.config = {**_DEFAULTS, **config}
        self.is_idempotent = str(config.get("enable.idempotence", "")).lower() == "true" or "transactional.id" in config
        self._connection = Connection()
        self._on_refused = on_refused
        self._refusal: AuthenticationError | None = None
        self._produced = 0
        self._missing: dict[str, str] = {}  # topics, with what there is in place of each
        self._renews_itself = "transactional.id" not in config and str(config.get(_GAPLESS, "")).lower() != "true"
        self._renewed_at = -math.inf
        self._is_renewing = False
        self._ended_with: ck.KafkaError | None = None  # the fatal error of the producer before this one
        self._ended = False
        self._renewing = threading.Lock()
        self._asking = threading.Lock()  # held while a call from any thread is in the producer
        self._is_forked = False
        self._make_producer()
        tell_of_forks(self)
        self.after_reports = after_reports
        self.reports = ReportPump(self._take_reports, serving)
        self.reports.watch(self.producer)
        self._steps_to_end = EndSteps(
            lambda: [self._renew_no_more, self.reports.stop, self._let_go_of_last, self.reports.close]
        )
        self.reports.start()

    def _make_producer(self, batches_of_one: bool = False) -> None:
        self.batches_of_one = batches_of_one
        settings = {**self.config, **(_BATCHES_OF_ONE if batches_of_one else {})}
        self.producer = make_client(ck.Producer, settings, self._connection)
        """librdkafka's producer; `renew` and a fatal error put another one in its place."""
        self.calling = threading.Lock()
        """Held within the call that may not return; each producer has its own."""
        self.fatal: ck.KafkaException | None = None
        """The error that has ended librdkafka's producer."""

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

        A report without an offset becomes one with an error, because librdkafka then only assumes that the record is
        stored.

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
                self.reports.serve_in_stream()
            # By position, which is quicker; None is the second name that the binding has for the callback.
            self.producer.produce(topic, value, key, partition, on_delivery, None, timestamp, headers)
        except BufferError:
            raise
        # A value that no field can hold raises errors of many kinds, and a closed producer one of its own.
        except Exception as error:
            raise self.refusal(topic, error) from error

    def refusal(self, topic: str, error: Exception) -> HeadwayError:
        """Return the error of librdkafka's `produce` as one of Headway's."""
        if isinstance(error, ck.KafkaException) and (right := self.missing_right(error.args[0], topic)):
            return DeliveryRefusedError(f"A record for {topic} was refused. {right.missing(self.config)}")
        return refusal(topic, error)

    # Reports

    def serve_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take reports until `done`, unless another thread takes them: for a thread that would only wait.

        Raises `ClosedError` in a forked process, to which no reports come.
        """
        self._check_process()
        self.reports.serve_until(done, timeout)

    def _take_reports(self, timeout: float) -> None:
        """Take reports, in this thread's turn."""
        try:
            if self.producer.poll(max(0.0, timeout)):
                self.after_reports()
            self._heed_refusal()
            self._heed_end()
        except ck.KafkaException as error:
            self._note_end(error)

    def _note_end(self, error: ck.KafkaException) -> None:
        """Note that librdkafka's producer cannot go on; the reports say so, and the calls that need it to go on."""
        self._remember(error)
        log.debug("Kafka's producer cannot go on: %s", error)
        self.reports.wake()  # for the reports behind it, which wake no thread again

    def _remember(self, error: ck.KafkaException) -> None:
        if error.args[0].fatal():
            self.fatal = error

    def _heed_end(self) -> None:
        """Fail the records that a producer which cannot go on has not sent.

        librdkafka does so itself, save for a record that comes at that moment: it would wait for its delivery timeout.
        """
        if self.fatal:
            if self.queued():
                self.producer.purge(in_flight=False, blocking=False)
            self._renew_soon()

    def _heed_refusal(self) -> None:
        """Fail all queued records of a client that was never let in: none of them is on its way."""
        refusal = self._connection.never_let_in(self.producer)
        if refusal is None:
            return
        self._refusal = refusal
        self.producer.purge()
        self._on_refused(_within(refusal))
        self.reports.wake()  # for the reports

    def queued(self) -> int:
        """Return the number of records that are not yet reported on."""
        return len(self.producer)

    def flush(self, timeout: float | None) -> int:
        """Wait until all is reported on; return how many are not in time. Within a report it does not wait."""
        self._check_process()
        timeout = math.inf if timeout is None else timeout
        deadline = time.monotonic() + timeout
        with self.reports.turn(timeout) as mine:
            if not mine:
                return self.queued()
            left = self._flush(min(FLUSH_SLICE, deadline - time.monotonic()))
            while left and time.monotonic() < deadline:
                heed_signals()
                left = self._flush(min(FLUSH_SLICE, deadline - time.monotonic()))
            return left

    def _flush(self, timeout: float) -> int:
        """Flush, in this thread's turn."""
        try:
            left = self.producer.flush(max(0.0, timeout))
            self._heed_refusal()
            self._heed_end()
            return left
        except ck.KafkaException as error:
            self._note_end(error)
            return self.queued()
        finally:
            self.after_reports()

    def await_reports(self, over: Callable[[], bool], within: float) -> None:
        """Wait until all is reported on, or `over` returns True; raises `KafkaError` after `within` seconds.

        After a refusal in a transaction librdkafka may keep a batch that it will never send, until that times out.
        """
        deadline = time.monotonic() + within
        while self.flush(_LOOK_EVERY) and not over():
            if time.monotonic() > deadline:
                raise KafkaError(f"Kafka did not acknowledge what was to be written within {within:g} s.")

    # What its errors mean

    def because(self) -> str:
        """Return why the last connection ended, as the end of a sentence; empty if that is not known."""
        return self._connection.because()

    def reason_of(self, error: ck.KafkaError) -> str:
        """Return the text of a report's error, with its cause if that is known."""
        if is_purged(error) and (refusal := self._still_refused()):
            return _within(refusal)
        return error.str() + (self.because() if error.code() in NO_ANSWER or is_purged(error) else "")

    def missing_right(self, error: ck.KafkaError, topic: str) -> Right | None:
        """Return the right whose lack had a record refused, or given up; None if that is not why."""
        if (is_purged(error) or error.code() == ck.KafkaError._FATAL) and self._renews_itself and not self._is_forked:
            fatal = fatal_error(self.producer)
            if fatal:
                self._renew_soon()
            elif not is_purged(error):
                fatal = self._ended_with  # the present one would have taken the record
            if is_refusal(fatal):  # the client got no producer id
                return Right("Write", "Topic", topic)
        return right_for(error.name(), "Write", topic=topic)

    def _still_refused(self) -> AuthenticationError | None:
        return self._refusal if self._refusal and not was_connected(self.producer) else None

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on; raises `ConfigError` for those that librdkafka refuses."""
        with self._asking:  # another thread may `renew`
            self._connection.set_credentials(self.producer, username, password)
            change_credentials(self.config, username, password)
            self._refusal = None

    # Calls that ask brokers

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call of librdkafka's; raises its error as a `KafkaError`."""
        try:
            return function(*args, **kwargs)
        except ck.KafkaException as error:
            self._remember(error)
            because = self.because() if error.args[0].code() in NO_ANSWER else ""
            raise refused(error, because) from error

    def call_in_slices(self, ask: Callable[[float], T], timeout: float) -> T:
        """Ask brokers, again while none answers; raises `AuthenticationError` once they refuse this client."""
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
            await_online(self.producer, [(topic, number) for number in partitions], ONLINE_WITHIN)

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
            listing: ClusterMetadata = self.call_in_slices(
                lambda within: self.producer.list_topics(timeout=within), timeout
            )
        if topic in self._missing:
            self._missing[topic] = what_there_is(topic, listing.topics)

    def instead_of(self, topic: str) -> str:
        """Return a sentence about what Kafka has in place of a missing topic; empty if nothing was found."""
        return self._missing.get(topic, "")

    def _raise_if_refused(self, topic: str, error: ck.KafkaError | None) -> None:
        if error is not None and (right := right_for(error.name(), "Write", topic=topic)):
            raise DeliveryRefusedError(right.missing(self.config)) from ck.KafkaException(error)

    def _ask(self, topic: str, timeout: float) -> "TopicMetadata":
        with self._asking:  # another thread may `renew`
            try:
                listing: ClusterMetadata = self.call_in_slices(partial(self.producer.list_topics, topic), timeout)
                return listing.topics[topic]
            except (TypeError, ValueError, RuntimeError) as error:  # no string, not UTF-8, or too long
                raise DeliveryError(f"Kafka cannot be asked for the topic {topic!r}: {error}.") from error

    # Renewal, and the end

    def _renew_soon(self) -> None:
        now = time.monotonic()
        if self._renews_itself and not self._is_renewing and now - self._renewed_at >= _RENEW_EVERY:
            self._renewed_at, self._is_renewing = now, True
            in_background(self._renew_when_reported)  # the caller may hold locks that reports need

    def _renew_when_reported(self) -> None:
        """Go on with a new producer, once all records of the one with a fatal error are reported on."""
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
                time.sleep(_LOOK_EVERY)
            else:
                return
        finally:
            self._is_renewing = False
        if not is_refusal(fatal):  # a refusal is told with each record
            log.warning(
                "Kafka's client for a producer ended with a fatal error, and another one takes its place: %s. The "
                "records that it had not delivered have failed, each with its own error.",
                fatal.str().rstrip("."),
            )
        self._let_go(before, calling)

    def renew(self, batches_of_one: bool = False) -> None:
        """Go on with a new producer of the same settings; records of the last one are not reported any more.

        With batches of one record, a refusal is of that very record. Otherwise it may be of another record in the
        batch, or of the size of all together.
        """
        with self.reports.hold():
            before, calling = self.producer, self.calling
            self._make_producer(batches_of_one)
            self.reports.watch(self.producer)
            self._let_go(before, calling)

    def close(self, timeout: float | None) -> int:
        """Flush, fail the records left, and stop; return how many were not delivered.

        In a forked process it does nothing: the client belongs to the other process.
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
        """Do nothing any more: this object is the copy in a forked process, without threads."""
        self._is_forked = True

    def _check_process(self) -> None:
        if self._is_forked:
            raise made_before_fork("client")

    def _renew_no_more(self) -> None:
        with self._renewing:
            self._ended = True

    def _let_go_of_last(self) -> None:
        self._let_go(self.producer, self.calling)

    def _let_go(self, producer: ck.Producer, calling: threading.Lock) -> None:
        def close() -> None:
            with calling, self._asking:
                producer.purge()  # after a refusal a batch may be stuck, and closing would wait for it
                try:
                    close_producer(producer)
                except ck.KafkaException as error:  # for example of a transaction that the broker has not heard of
                    log.debug("A producer was closed that could not go on: %s", error)

        wake_on_events(producer, None)
        is_in_call = calling.locked()
        closing = in_background(close)
        if is_in_call:  # the thread in the call may wait for the turn at reports, which this thread may have
            return
        try:
            # Closing aborts an open transaction, and waits for brokers as long as they do not answer.
            closing.result(_CLOSE_WITHIN)
        except TimeoutError:
            log.warning(
                "The brokers have not confirmed within %g s that the open transaction is aborted, and are not "
                "waited for any longer. They abort it when its transaction.timeout.ms is over.",
                _CLOSE_WITHIN,
            )


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


def _within(refusal: AuthenticationError) -> str:
    """Return a sentence for the midst of another one."""
    sentence = str(refusal).rstrip(".")
    return sentence[0].lower() + sentence[1:]

"""librdkafka's producer of the moment, and the next one once Kafka has ended it."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import confluent_kafka as ck

from headway.core.rights import Right, right_for
from headway.errors import AuthenticationError, KafkaError
from headway.kafka.binding.capi import fatal_error, wake_on_events, was_connected
from headway.kafka.binding.connection import Connection, change_credentials
from headway.kafka.binding.error_causes import NO_ANSWER, is_purged, is_retriable, is_unanswered, refused
from headway.kafka.binding.factory import FLUSH_SLICE, close_producer, make_client
from headway.kafka.binding.forks import made_before_fork, tell_of_forks
from headway.kafka.missing_rights import is_refusal
from headway.kafka.producer.report_pump import ReportPump
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import heed_signals
from headway.runtime.end_steps import EndSteps
from headway.settings.config import Config

log = logging.getLogger(__name__)

_CLOSE_WITHIN = 10.0

P = ParamSpec("P")
T = TypeVar("T")

# librdkafka also warns of requests that it tries again: in a new cluster each producer's first one for its id.
_DEFAULTS = {"log_level": 3}

_GAPLESS = "enable.gapless.guarantee"
_BATCHES_OF_ONE = {"batch.num.messages": 1}

SLICE = 0.5
"""The longest wait inside librdkafka, where Ctrl-C is not seen, in seconds."""
_LOOK_EVERY = 0.05
_ANEW_EVERY = 1.0  # seconds: to make a producer costs threads and connections


class RenewableProducer:
    """librdkafka's producer, with the thread that takes its reports, until it is renewed or closed.

    While no broker lets the client in, all queued records fail every few seconds. `on_refused(reason)` is called then,
    on the thread that takes the reports. Calls that ask brokers raise `AuthenticationError`.

    A fatal error ends librdkafka's producer: a sequence that broker and client do not agree on, or no producer id for
    a client that may write to no topic, even when the right is granted later. Records that wait then fail, and a new
    producer is made for later ones. `on_anew` is called then, as `raw_produce` is another one. With a
    `transactional.id` only the owner can decide that, and with `enable.gapless.guarantee` nobody may.

    Any thread may call each method. The locks are taken in this order: the turn at reports (`ReportPump.serving`), then
    `_making_anew`; at a producer's end its own `_calling`, then `_asking`.
    """

    def __init__(
        self,
        config: Config,
        after_reports: Callable[[], None],
        on_refused: Callable[[str], None],
        serving: "threading.Lock | None",
    ) -> None:
        self._config = {**_DEFAULTS, **config}
        self._connection = Connection()
        self._on_refused = on_refused
        self._refusal: AuthenticationError | None = None
        self.on_anew: Callable[[], None] = lambda: None
        self._goes_on = "transactional.id" not in config and str(config.get(_GAPLESS, "")).lower() != "true"
        self._anew_at = -math.inf
        self._is_making_anew = False
        self._ended_with: ck.KafkaError | None = None  # the fatal error of the producer before this one
        self._ended = False
        self._making_anew = threading.Lock()
        self._asking = threading.Lock()  # held while a call from any thread is in the producer
        self._is_forked = False
        self._make_producer()
        tell_of_forks(self)
        self._after_reports = after_reports
        self._reports = ReportPump(self._take_reports, serving)
        self._reports.watch(self._producer)
        self._steps_to_end = EndSteps(
            lambda: [self._no_more, self._reports.stop, self._let_go_of_last, self._reports.close]
        )
        self._reports.start()

    def _make_producer(self, batches_of_one: bool = False) -> None:
        self.batches_of_one = batches_of_one
        settings = {**self._config, **(_BATCHES_OF_ONE if batches_of_one else {})}
        self._producer = make_client(ck.Producer, settings, self._connection)
        self.raw_produce = self._producer.produce
        self.purge = self._producer.purge
        self._calling = threading.Lock()  # held within the call that may not return
        self._fatal: ck.KafkaException | None = None

    # Reports

    def _take_reports(self, timeout: float) -> None:
        """Take reports, in this thread's turn."""
        try:
            if self._producer.poll(max(0.0, timeout)):
                self._after_reports()
            self._heed_refusal()
            self._heed_end()
        except ck.KafkaException as error:
            self._note_end(error)

    def _note_end(self, error: ck.KafkaException) -> None:
        """Note that librdkafka's producer cannot go on; the reports say it, and the calls that need it to go on."""
        self._remember(error)
        log.debug("Kafka's producer cannot go on: %s", error)
        self._reports.wake()  # for the reports behind it, which wake no thread again

    def _remember(self, error: ck.KafkaException) -> None:
        if error.args[0].fatal():
            self._fatal = error

    def _heed_end(self) -> None:
        """Fail the records that a producer which cannot go on has not sent.

        librdkafka does so itself, save for a record that comes at that moment: it would wait for its delivery timeout.
        """
        if self._fatal:
            if self.queued():
                self._producer.purge(in_flight=False, blocking=False)
            self._make_anew_soon()

    def _heed_refusal(self) -> None:
        """Fail all queued records of a client that was never let in: none of them is on its way."""
        refusal = self._connection.never_let_in(self._producer)
        if refusal is None:
            return
        self._refusal = refusal
        self._producer.purge()
        self._on_refused(_within(refusal))
        self._reports.wake()  # for the reports

    def queued(self) -> int:
        """Return the number of records that are not yet reported on."""
        return len(self._producer)

    def flush(self, timeout: float | None) -> int:
        """Wait until all is reported on; return how many are not in time. Within a report it does not wait."""
        self._check_process()
        timeout = math.inf if timeout is None else timeout
        deadline = time.monotonic() + timeout
        with self._reports.turn(timeout) as mine:
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
            left = self._producer.flush(max(0.0, timeout))
            self._heed_refusal()
            self._heed_end()
            return left
        except ck.KafkaException as error:
            self._note_end(error)
            return self.queued()
        finally:
            self._after_reports()

    def await_reports(self, over: Callable[[], bool], within: float) -> None:
        """Wait until all is reported on, or `over` says so; raises `KafkaError` after `within` seconds.

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
        """Return the right for want of which a record was refused, or given up; None if that is not why."""
        if (is_purged(error) or error.code() == ck.KafkaError._FATAL) and self._goes_on and not self._is_forked:
            fatal = fatal_error(self._producer)
            if fatal:
                self._make_anew_soon()
            elif not is_purged(error):
                fatal = self._ended_with  # the present one would have taken the record
            if is_refusal(fatal):  # the client got no producer id
                return Right("Write", "Topic", topic)
        return right_for(error.name(), "Write", topic=topic)

    def _still_refused(self) -> AuthenticationError | None:
        return self._refusal if self._refusal and not was_connected(self._producer) else None

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on; raises `ConfigError` for those that librdkafka refuses."""
        with self._asking:  # another thread may `renew`
            self._connection.set_credentials(self._producer, username, password)
            change_credentials(self._config, username, password)
            self._refusal = None

    # Calls that ask brokers

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ck.KafkaException as error:
            self._remember(error)
            because = self.because() if error.args[0].code() in NO_ANSWER else ""
            raise refused(error, because) from error

    def _in_slices(self, ask: Callable[[float], T], timeout: float) -> T:
        """Ask brokers, again while none answers; raises `AuthenticationError` once they refuse this client."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return self._call(ask, max(0.0, min(SLICE, left)))
            except KafkaError as error:
                if refusal := self._still_refused():
                    raise AuthenticationError(str(refusal)) from error
                if left <= SLICE or not (is_retriable(error) or is_unanswered(error)):
                    raise

    # Renewal, and the end

    def _make_anew_soon(self) -> None:
        now = time.monotonic()
        if self._goes_on and not self._is_making_anew and now - self._anew_at >= _ANEW_EVERY:
            self._anew_at, self._is_making_anew = now, True
            in_background(self._make_anew)  # who calls may hold locks that reports need

    def _make_anew(self) -> None:
        """Go on with a new producer, once all is reported on that the one with a fatal error had."""
        try:
            while not self._ended:
                with self._reports.serving, self._making_anew:
                    before, calling = self._producer, self._calling
                    fatal = fatal_error(before)
                    if self._ended or fatal is None:
                        return
                    if not len(before):
                        self._ended_with = fatal
                        self._make_producer(self.batches_of_one)
                        self._reports.watch(self._producer)
                        self.on_anew()
                        break
                time.sleep(_LOOK_EVERY)
            else:
                return
        finally:
            self._is_making_anew = False
        if not is_refusal(fatal):  # that one is told with each record
            log.warning(
                "Kafka's client for a producer ended with a fatal error, and another one takes its place: %s. The "
                "records that it had not delivered have failed, each with its own error.",
                fatal.str().rstrip("."),
            )
        self._let_go(before, calling)

    def renew(self, batches_of_one: bool = False) -> None:
        """Go on with a new producer of the same settings; records of the last one are not reported any more.

        `raw_produce` and `purge` are new, too. With batches of one record, a refusal is of that very record. Otherwise
        it may be of another record in the batch, or of the size of all together.
        """
        with self._reports.serving:
            before, calling = self._producer, self._calling
            self._make_producer(batches_of_one)
            self._reports.watch(self._producer)
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
                self._producer.purge()
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

    def _no_more(self) -> None:
        with self._making_anew:
            self._ended = True

    def _let_go_of_last(self) -> None:
        self._let_go(self._producer, self._calling)

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
        if is_in_call:  # and whoever is in it may wait for the turn at reports, which this thread may have
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


def _within(refusal: AuthenticationError) -> str:
    """Return a sentence for the midst of another one."""
    sentence = str(refusal).rstrip(".")
    return sentence[0].lower() + sentence[1:]

"""A librdkafka producer with a thread that serves its delivery reports."""

import asyncio
import contextlib
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import confluent_kafka as ck

from headway.core.rights import Right, right_for
from headway.errors import (
    AuthenticationError,
    DeliveryError,
    DeliveryRefusedError,
    HeadwayError,
    KafkaError,
    SerializationError,
)
from headway.kafka.binding.capi import (
    Offsets,
    fatal_error,
    send_offsets_to_transaction,
    wake_on_events,
    was_connected,
)
from headway.kafka.binding.connection import Connection, change_credentials
from headway.kafka.binding.error_causes import (
    NO_ANSWER,
    is_out_of_place,
    is_purged,
    is_retriable,
    is_unanswered,
    refused,
)
from headway.kafka.binding.factory import FLUSH_SLICE, make_client
from headway.kafka.binding.forks import keep_for_ever, made_before_fork, tell_of_forks
from headway.kafka.missing_rights import is_refusal, raise_if_refused
from headway.kafka.producer.headers import size_of_headers
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import defer_signals
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

T = TypeVar("T")

# librdkafka also warns of requests that it tries again: in a new cluster each producer's first one for its id.
_DEFAULTS = {"log_level": 3}

_BATCHES_OF_ONE = {"batch.num.messages": 1}

SERVE_AFTER = 100
"""The number of records after which a thread that calls `produce` serves the reports."""
# A stream of sends serves the reports so often (seconds): many at a time are quicker, and deferring Ctrl-C takes one to
# ten microseconds. After so long without a send, the sending thread counts as paused.
_SERVE_EVERY = 0.002
_QUIET = 0.01
_LONGEST_WAIT = 0.1
_A_MOMENT = 0.01
_SHORT_TURN = 0.05  # a thread that takes reports for longer is held up by a callback

_WITHIN = 60.0  # seconds; by default the broker, too, waits so long for a transaction to end
SLICE = 0.5
"""The longest wait inside librdkafka, where Ctrl-C is not seen, in seconds."""
_AGAIN_AFTER = 0.05
_LOOK_EVERY = 0.05
_ANEW_EVERY = 1.0  # seconds: to make a producer costs threads and connections
HANGS_AFTER = 10.0
"""The seconds after which a call that was to take `SLICE` is thought never to return."""

# Asking for such a topic again does not help.
_REFUSED_TOPIC = {ck.KafkaError.TOPIC_EXCEPTION}


class ProducerClient:
    """A client that hands records to librdkafka, and serves its delivery reports.

    Each report takes the GIL once. A serving thread beside one that sends without a pause would take turns with it at
    every record (a sixth of the speed, measured). A stream of sends therefore serves the reports itself. When it is
    quiet, a thread serves them, woken by librdkafka at once, or an event loop does (`serve_in`). `after_reports` is
    called after each batch.

    While no broker lets the client in, all queued records fail every few seconds. `on_refused(reason)` is called then,
    on the thread that takes the reports. Calls that ask brokers raise `AuthenticationError`.

    Kafka gives a client that may write to no topic no producer id. librdkafka's producer does nothing after that, even
    when the right is granted. So records that are refused for it have a new producer made for later records. `on_anew`
    is called then, as `raw_produce` is another one.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        after_reports: Callable[[], None] = lambda: None,
        on_refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._config = {**_DEFAULTS, **config}
        self._connection = Connection()
        self._on_refused = on_refused
        self._refusal: AuthenticationError | None = None
        self.on_anew: Callable[[], None] = lambda: None
        self._anew_at = -math.inf
        self._ended = False
        self._making_anew = threading.Lock()  # taken after `_serving`
        self._asking = threading.Lock()  # held while a call from any thread is in the producer
        self._is_forked = False
        self._make_producer()
        tell_of_forks(self)
        self._wake = Wakeup()
        wake_on_events(self._producer, self._wake.fd)
        self._after_reports = after_reports
        self._produced = 0
        self._served_at = self._served_before = -math.inf  # by sending threads: the last time, and the one before
        self._serving = threading.Lock()
        self._server: int | None = None
        self._serves_itself = False
        self._awaits_reports = False  # the thread whose turn it is also waits for further reports
        self._turns_are_short = True
        self._thread_ends = False
        self._leave_loop: Callable[[], None] | None = None
        self._loop_thread: int | None = None
        self._thread = threading.Thread(target=self._serve_when_quiet, name="headway-delivery-reports", daemon=True)
        self._thread.start()

    def _make_producer(self, batches_of_one: bool = False) -> None:
        self.batches_of_one = batches_of_one
        settings = {**self._config, **(_BATCHES_OF_ONE if batches_of_one else {})}
        self._producer = make_client(ck.Producer, settings, self._connection)
        self.raw_produce: Callable[..., None] = self._producer.produce
        self.purge: Callable[[], None] = self._producer.purge
        self._calling = threading.Lock()  # held within the call that may not return
        self._fatal: ck.KafkaException | None = None

    def produce(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
        timestamp: int,
        headers: Any,
    ) -> None:
        """Queue a record.

        Raises `BufferError` if the queue is full, and `DeliveryError` or `SerializationError` for a record that cannot
        be sent.
        """
        self._check_process()
        self._produced += 1
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

    def missing_right(self, error: ck.KafkaError, topic: str) -> Right | None:
        """Return the right for want of which a record was refused, or given up; None if that is not why."""
        if (is_purged(error) or error.code() == ck.KafkaError._FATAL) and self._has_no_producer_id(error):
            self._make_anew_soon()
            return Right("Write", "Topic", topic)
        return right_for(error.name(), "Write", topic=topic)

    def _has_no_producer_id(self, error: ck.KafkaError) -> bool:
        if "transactional.id" in self._config or self._is_forked:
            return False
        fatal = fatal_error(self._producer)
        # Only the one before can have refused a record as fatal that the present one would take.
        return is_refusal(fatal) if fatal else not is_purged(error)

    def _make_anew_soon(self) -> None:
        now = time.monotonic()
        if now - self._anew_at >= _ANEW_EVERY:
            self._anew_at = now
            in_background(self._make_anew)  # who calls may hold locks that reports need

    def _make_anew(self) -> None:
        """Go on with a new producer, once all is reported on that the one without a producer id had."""
        while not self._ended:
            with self._serving, self._making_anew:
                before, calling = self._producer, self._calling
                if self._ended or fatal_error(before) is None:
                    return
                if not len(before):
                    self._make_producer(self.batches_of_one)
                    wake_on_events(self._producer, self._wake.fd)
                    self.on_anew()
                    break
            time.sleep(_LOOK_EVERY)
        else:
            return
        self._let_go(before, calling)

    @property
    def serves_here(self) -> bool:
        """True if called from within a report: no other thread would take the next ones meanwhile."""
        return self._server == threading.get_ident()

    def serve_in_stream(self) -> None:
        """Take the reports that are there, on a thread that sends without a pause."""
        if time.monotonic() - self._served_at < _SERVE_EVERY or self.serves_here:
            return
        # If this thread waits, the serving thread is soon done. Beside a thread that goes on sending it would wait for
        # the GIL at each report, some 5 ms, while thousands come.
        patience = _SHORT_TURN if self._turns_are_short and not self._awaits_reports else 0
        with self._turn(patience, awaits_reports=False) as mine:
            if mine:
                self._poll(0)
        if mine or patience:
            self._turns_are_short = mine
        self._served_before, self._served_at = self._served_at, time.monotonic()

    def serve(self, timeout: float) -> None:
        """Take the reports that are there, or come within `timeout` seconds; that makes room."""
        deadline = time.monotonic() + timeout
        with self._turn(timeout, awaits_reports=timeout > 0) as mine:
            if mine:
                self._poll(deadline - time.monotonic())

    @contextlib.contextmanager
    def _turn(self, timeout: float, awaits_reports: bool = True) -> Iterator[bool]:
        """Take this thread's turn at reports, if it comes within so many seconds; -1 waits for ever."""
        mine = not self.serves_here and self._serving.acquire(timeout != 0, timeout or -1)
        try:
            if mine:
                self._awaits_reports = awaits_reports
            yield mine
        finally:
            if mine:
                self._awaits_reports = False
                self._serving.release()
                self._wake_loop()

    def serve_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this loop, which is running here, take the reports from now on.

        No thread takes them then: one thread that resolves the futures of another would take turns with it at every
        record.
        """
        self.leave_loop()
        self._thread_ends = True
        self._wake.set()
        self._thread.join()
        self._leave_loop = self._wake.watch(loop, lambda: self.serve(0))
        self._loop_thread = threading.get_ident()
        self._wake.set()

    def leave_loop(self) -> None:
        """Leave the reports to the callers from now on; called in the loop, unless the loop is closed."""
        if self._leave_loop is not None:
            self._leave_loop()
            self._leave_loop = self._loop_thread = None

    def _wake_loop(self) -> None:
        """Wake the loop again: events during another thread's turn have woken it in vain."""
        if self._loop_thread not in (None, threading.get_ident()):
            self._wake.set()

    def serve_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take reports until `done`, unless another thread takes them: for a thread that would only wait.

        Raises `ClosedError` in a forked process, to which no reports come.
        """
        self._check_process()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # Our own thread is soon done with the reports that are there. Left to it, the next reports would cost a turn
        # each.
        with self._turn(_A_MOMENT if self._serves_itself else 0) as mine:
            while mine and not done() and (left := deadline - time.monotonic()) > 0:
                self._poll(min(_LONGEST_WAIT, left))

    def _poll(self, timeout: float) -> None:
        with defer_signals():  # within a report a signal would lose that report
            self._server = threading.get_ident()
            try:
                if self._producer.poll(max(0.0, timeout)):
                    self._after_reports()
                self._heed_refusal()
                self._heed_end()
            except ck.KafkaException as error:
                self._note_end(error)
            finally:
                self._server = None

    def _note_end(self, error: ck.KafkaException) -> None:
        """Note that librdkafka's producer cannot go on; the reports say it, and the calls that need it to go on."""
        self._remember(error)
        log.debug("Kafka's producer cannot go on: %s", error)
        self._wake.set()  # for the reports behind it, which wake no thread again

    def _heed_end(self) -> None:
        """Fail the records that a producer which cannot go on has not sent.

        librdkafka does so itself, save for a record that comes at that moment: it would wait for its delivery timeout.
        """
        if self._fatal and self.queued():
            self._producer.purge(in_flight=False, blocking=False)

    def _heed_refusal(self) -> None:
        """Fail all queued records of a client that was never let in: none of them is on its way."""
        refusal = self._connection.never_let_in(self._producer)
        if refusal is None:
            return
        self._refusal = refusal
        self._producer.purge()
        self._on_refused(_within(refusal))
        self._wake.set()  # for the reports

    def because(self) -> str:
        """Return why the last connection ended, as the end of a sentence; empty if that is not known."""
        return self._connection.because()

    def reason_of(self, error: ck.KafkaError) -> str:
        """Return the text of a report's error, with its cause if that is known."""
        if is_purged(error) and (refusal := self._still_refused()):
            return _within(refusal)
        return error.str() + (self.because() if error.code() in NO_ANSWER or is_purged(error) else "")

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on; raises `ConfigError` for those that librdkafka refuses."""
        with self._asking:  # another thread may `renew`
            self._connection.set_credentials(self._producer, username, password)
            change_credentials(self._config, username, password)
            self._refusal = None

    def _still_refused(self) -> AuthenticationError | None:
        return self._refusal if self._refusal and not was_connected(self._producer) else None

    def queued(self) -> int:
        """Return the number of records that are not yet reported on."""
        return len(self._producer)

    def flush(self, timeout: float | None) -> int:
        """Wait until all is reported on; return how many are not in time. Within a report it does not wait."""
        self._check_process()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._turn(-1 if timeout is None else timeout) as mine:
            if not mine:
                return self.queued()
            left = self._flush(min(FLUSH_SLICE, deadline - time.monotonic()))
            while left and time.monotonic() < deadline:
                left = self._flush(min(FLUSH_SLICE, deadline - time.monotonic()))
            return left

    def _flush(self, timeout: float) -> int:
        with defer_signals():
            self._server = threading.get_ident()
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
                self._server = None

    def await_reports(self, over: Callable[[], bool], within: float) -> None:
        """Wait until all is reported on, or `over` says so; raises `KafkaError` after `within` seconds.

        After a refusal in a transaction librdkafka may keep a batch that it will never send, until that times out.
        """
        deadline = time.monotonic() + within
        while self.flush(_LOOK_EVERY) and not over():
            if time.monotonic() > deadline:
                raise KafkaError(f"Kafka did not acknowledge what was to be written within {within:g} s.")

    def partitions(self, topic: str, timeout: float) -> int:
        """Return how many partitions a Kafka topic has; 0 for one that does not exist.

        Raises `DeliveryRefusedError` for a topic that this client may not see, and `KafkaError` if no broker answers.
        """
        about = self._ask(topic, timeout)
        self._raise_if_refused(topic, about.error)
        return len(about.partitions) if about.error is None else 0

    def leaders(self, topic: str, timeout: float) -> tuple[int, list[int]]:
        """Return how many partitions a Kafka topic has, and those with a leader; none if it does not exist yet.

        Raises `KafkaError` if no broker answers, and `DeliveryError` if the topic's name or access is refused.
        """
        about = self._ask(topic, timeout)
        self._raise_if_refused(topic, about.error)
        if about.error is not None and about.error.code() in _REFUSED_TOPIC:
            raise DeliveryError(f"The topic {topic} was refused: {about.error.str()}.")
        if about.error is not None and about.error.code() != ck.KafkaError.LEADER_NOT_AVAILABLE:
            return 0, []
        return len(about.partitions), [number for number, each in about.partitions.items() if each.leader >= 0]

    def _raise_if_refused(self, topic: str, error: ck.KafkaError | None) -> None:
        if error is not None and (right := right_for(error.name(), "Write", topic=topic)):
            raise DeliveryRefusedError(right.missing(self._config)) from ck.KafkaException(error)

    def _ask(self, topic: str, timeout: float) -> Any:
        with self._asking:  # another thread may `renew`
            try:
                return self._in_slices(partial(self._producer.list_topics, topic), timeout).topics[topic]
            except (TypeError, ValueError, RuntimeError) as error:  # no string, not UTF-8, or too long
                raise DeliveryError(f"Kafka cannot be asked for the topic {topic!r}: {error}.") from error

    def init_transactions(self, timeout: float) -> None:
        """Fence off earlier producers with the same `transactional.id`.

        Raises `AuthorizationError` if this client may not use that id.
        """
        try:
            self._in_slices(self._producer.init_transactions, timeout)
        except KafkaError as error:
            transactional_id = str(self._config.get("transactional.id"))
            raise_if_refused(error, "Write", self._config, transactional_id=transactional_id)
            raise

    def begin_transaction(self) -> None:
        """Start a transaction."""
        self._call(self._producer.begin_transaction)

    def why_aborted(self) -> KafkaError | None:
        """Return why the open transaction can only be aborted, if librdkafka knows that it can.

        Its reports do not tell: if a topic may not be written, all of them say "Purged in queue". Every later call
        about the transaction tells, and this call can do no harm.
        """
        try:
            self._call(self._producer.begin_transaction)
        except KafkaError as error:
            return None if is_out_of_place(error) else error
        return None

    def send_offsets(self, offsets: Offsets, group_metadata: bytes, timeout: float) -> None:
        """Commit a consumer's offsets with the transaction; raises `KafkaError` also if librdkafka does not return.

        librdkafka ignores the timeout while it waits for the broker that it knows as the group's coordinator. It waits
        for ever if that broker has left the cluster, or all brokers were away for a moment (its issues 5456 and 5511).
        """
        sent = in_background(partial(self.add_offsets, offsets, group_metadata, timeout))
        longest = max(timeout, HANGS_AFTER)
        try:
            sent.result(longest)
        except TimeoutError as late:
            raise KafkaError(
                f"The offsets could not be added to the transaction within {longest:g} s. If it stays so, make a new "
                "producer with the same transactional.id, which ends what this one has open."
            ) from late

    def add_offsets(self, offsets: Offsets, group_metadata: bytes, timeout: float) -> None:
        """Commit a consumer's offsets with the transaction, on a thread that may hang."""
        with self._calling:
            # With records on their way the broker answers "concurrent transactions", and librdkafka then sleeps.
            self.flush(timeout)
            send_offsets_to_transaction(self._producer, offsets, group_metadata, timeout)

    def hangs(self) -> bool:
        """Return whether `add_offsets` does not return: then only `renew` can end the transaction."""
        if not self._calling.acquire(timeout=SLICE):
            return True
        self._calling.release()
        return False

    def renew(self, batches_of_one: bool = False) -> None:
        """Go on with a new producer of the same settings; records of the last one are not reported any more.

        `raw_produce` and `purge` are new, too. With batches of one record, a refusal is of that very record. Otherwise
        it may be of another record in the batch, or of the size of all together.
        """
        with self._serving:
            before, calling = self._producer, self._calling
            self._make_producer(batches_of_one)
            wake_on_events(self._producer, self._wake.fd)
            self._let_go(before, calling)

    def commit_transaction(self, timeout: float) -> None:
        """Commit the transaction, or raise an error."""
        self._end_transaction(self._producer.commit_transaction, timeout)

    def abort_transaction(self, timeout: float) -> None:
        """Abort the transaction."""
        self._end_transaction(self._producer.abort_transaction, timeout)

    def _end_transaction(self, end: Callable[[float], None], timeout: float) -> None:
        """End a transaction, in this thread's turn at reports: both ways flush, and so take reports."""
        deadline = time.monotonic() + timeout
        with self._turn(timeout) as mine:
            if self._fatal:  # librdkafka would mistake this call for a second one beside the failed one
                raise refused(self._fatal) from self._fatal
            if not mine:
                raise KafkaError(f"A transaction could not be ended within {timeout:g} s: a callback takes that long.")
            while not self._ends(end, deadline - time.monotonic()):
                pass

    def _ends(self, end: Callable[[float], None], seconds: float) -> bool:
        """Return whether a transaction has ended; raises if it cannot, or not within so many seconds."""
        with defer_signals():
            self._server = threading.get_ident()
            try:
                self._call(end, max(0.0, min(SLICE, seconds)))
                return True
            except KafkaError as error:
                if seconds <= SLICE or not is_retriable(error):
                    raise
                return False
            finally:
                self._after_reports()
                self._server = None

    def close(self, timeout: float | None) -> int:
        """Flush, fail the records left, and stop; return how many were not delivered.

        In a forked process it does nothing: the client belongs to the other process.
        """
        if self._is_forked:
            return 0
        try:
            left = self.flush(timeout)
            if left:
                self._producer.purge()
                self.flush(1.0)
        finally:
            self._end()
        return left

    def forked(self) -> None:
        """Do nothing any more: this object is the copy in a forked process, without threads."""
        self._is_forked = True
        keep_for_ever(self._producer)

    def _check_process(self) -> None:
        if self._is_forked:
            raise made_before_fork("client")

    def _end(self) -> None:
        with self._making_anew:
            self._ended = True
        self._thread_ends = True
        self._wake.set()
        self._thread.join()
        self._let_go(self._producer, self._calling)
        self._wake.close()

    def _let_go(self, producer: ck.Producer, calling: threading.Lock) -> None:
        def close() -> None:
            with calling, self._asking, warnings.catch_warnings():
                # For example that a transaction cannot be aborted, which its owner knows.
                warnings.simplefilter("ignore", RuntimeWarning)
                producer.purge()  # after a refusal a batch may be stuck, and closing would wait for it
                try:
                    producer.close()
                except ck.KafkaException as error:  # for example of a transaction that the broker has not heard of
                    log.debug("A producer was closed that could not go on: %s", error)

        wake_on_events(producer, None)
        if calling.locked():
            in_background(close)
        else:
            close()

    def _serve_when_quiet(self) -> None:
        while not self._thread_ends:
            self._wake.wait(_LONGEST_WAIT)
            while time.monotonic() - self._served_before < _QUIET:
                time.sleep(_QUIET)
            with self._serving:  # in its turn: reports during another thread's turn wake no thread again
                self._serves_itself = True
                self._poll(0)
                self._serves_itself = False

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
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
                return self._call(ask, max(0.0, min(SLICE, left)))  # type: ignore[no-any-return]
            except KafkaError as error:
                if refusal := self._still_refused():
                    raise AuthenticationError(str(refusal)) from error
                if left <= SLICE or not (is_retriable(error) or is_unanswered(error)):
                    raise

    def _remember(self, error: ck.KafkaException) -> None:
        if error.args[0].fatal():
            self._fatal = error


def _within(refusal: AuthenticationError) -> str:
    """Return a sentence for the midst of another one."""
    sentence = str(refusal).rstrip(".")
    return sentence[0].lower() + sentence[1:]


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


def in_slices(call: Callable[[float], None], within: float = _WITHIN, over: Callable[[], bool] = lambda: False) -> None:
    """Call `call(seconds)` again and again while librdkafka says that it may be repeated.

    Raises the last `KafkaError` after `within` seconds, or once it is `over`.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            call(SLICE)
            return
        except KafkaError as error:
            if not is_retriable(error) or time.monotonic() > deadline or over():
                raise
        time.sleep(_AGAIN_AFTER)

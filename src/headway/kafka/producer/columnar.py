"""A producer for records that are given as columns, which are sent either plainly or in one transaction.

No Python code runs for individual records, because `map` calls the client's C method with the columns. The number of
records in flight is therefore limited in this module, between calls of `send`. The client's own limit is turned off,
because it would stop `map` halfway.
"""

import contextlib
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import repeat, tee
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.permissions import Permission, permission_for
from headway.errors import (
    AuthorizationError,
    DeliveryError,
    DeliveryRefusedError,
    FencedError,
    KafkaError,
    SerializationError,
    TransactionError,
)
from headway.kafka.admin import Admin, describe
from headway.kafka.binding.capi import await_connection, await_online
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.error_causes import is_takeover
from headway.kafka.binding.factory import FLUSH_SLICE, close_producer, make_client
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.time_limits import MISSING_TOPIC_COMES_WITHIN, ONLINE_WITHIN, ROWS_STORED_WITHIN
from headway.kafka.producer.client import with_leader
from headway.kafka.producer.headers import check_headers
from headway.settings.config import Config

T = TypeVar("T")

_MAX_IN_FLIGHT = 200_000  # records
_MAX_BYTES_IN_FLIGHT = 64 * 2**20
_ASK_AGAIN_AFTER = 0.05
_OVER = {ck.KafkaError._FATAL, ck.KafkaError._STATE, ck.KafkaError._FENCED}
_PURGED = {ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT}
# A client gets the second error if it gets no producer id, because it is not permitted to write to any topic.
_OF_TOPICS = {ck.KafkaError.TOPIC_AUTHORIZATION_FAILED, ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED}

_DEFAULTS: Config = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "batch.size": 1_000_000,
    # With several requests in flight, librdkafka can treat a refused batch as stored without reporting it. With large
    # batches, a single request in flight is just as fast.
    "max.in.flight.requests.per.connection": 1,
    "partitioner": "murmur2_random",
    "log_level": 2,
    # If Kafka is still ending the previous transaction, librdkafka repeats the request of the next one after this long
    # (100 ms by default).
    "retry.backoff.ms": 1,
    # If a task dies and is not run again, readers with read_committed have to wait for this long.
    "transaction.timeout.ms": 300_000,
}
_OURS: Config = {
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 2_147_483_647,
}


_TOO_LARGE = (
    " Filter out such rows, or raise the topic's max.message.bytes and set the option `kafka.message.max.bytes` to the "
    "same value."
)
_BATCH_TOO_LARGE = " If no row is that large, set the option `kafka.batch.size` to less than max.message.bytes."


def _row_name(index: int) -> str:
    return f"Row {index + 1}"


class SuspectRows(NamedTuple):
    """The rows that most probably made a broker refuse a batch of a topic. The broker itself does not name the row.

    `longest` names the row with the longest value, which has `size` bytes. `without_key` names the first row without a
    key.
    """

    size: int
    longest: str
    without_key: str | None


class Columns(NamedTuple):
    """Records in the form of columns of equal length: `rows` records, whose total size is `size` bytes.

    `name_of` returns the name of the row at an index, for error messages. `suspects` maps each topic to the rows that
    are most likely to be refused.
    """

    rows: int
    size: int
    topics: Iterable[str]
    values: Iterable[bytes | str | None]
    keys: Iterable[bytes | str | None]
    partitions: Iterable[int]
    headers: Iterable[Any] | None
    name_of: Callable[[int], str] = _row_name
    suspects: Mapping[str, SuspectRows] = {}


class ColumnarProducer:
    """A producer for the rows of one task. `config` holds the settings of librdkafka.

    With a `transactional_id`, entering the `with` block fences off all earlier producers with the same id, and aborts
    their transactions. All rows become readable when `commit` returns. After an error, no row becomes readable. Every
    method raises `FencedError` after another producer has fenced off this one.
    """

    def __init__(self, config: Config, transactional_id: str | None = None) -> None:
        self.transaction_timeout = int(config.get("transaction.timeout.ms", _DEFAULTS["transaction.timeout.ms"])) / 1000
        self._refused: DeliveryError | None = None
        self._is_given_up = False  # True if records in flight were purged because of another record
        self._given_up_topics: set[str] = set()
        self._connection = config
        self._suspects: dict[str, SuspectRows] = {}
        self._connected = Connection()
        self._transactional_id = transactional_id
        self._known: dict[str, int] = {}
        own: dict[str, Any] = {**_OURS, "on_delivery": self._note}
        if transactional_id is not None:
            own["transactional.id"] = transactional_id
        self._producer = make_client(cimpl.Producer, {**_DEFAULTS, **config, **own}, self._connected)

    def __enter__(self) -> Self:
        if self._transactional_id is not None:
            # Without a connection, librdkafka searches for the coordinator only twice a second.
            self._while_retriable(lambda seconds: await_connection(self._producer, seconds))
            self._while_retriable(self._producer.init_transactions)
            self._call(self._producer.begin_transaction)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._producer.purge()
        try:
            close_producer(self._producer)
        except ck.KafkaException:
            if error is None:  # if `error` is not None, it is the reason why the transaction cannot be aborted
                raise

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a Kafka topic, or 0 if it does not exist."""
        if topic not in self._known:
            self._known[topic] = self._count_partitions(topic)
        return self._known[topic]

    def send(self, columns: Columns) -> None:
        """Pass records to librdkafka. While too many records are in flight, this call waits before it passes any.

        Raises `DeliveryError`, and `SerializationError` for headers that cannot be sent.
        """
        max_records = _MAX_BYTES_IN_FLIGHT * columns.rows // max(1, columns.size)
        self._wait_until_at_most(min(_MAX_IN_FLIGHT, max_records))
        for topic, new in columns.suspects.items():
            self.partitions(topic)  # waits until the partitions are ready to accept records
            old = self._suspects.get(topic, new)
            self._suspects[topic] = SuspectRows(*max(old[:2], new[:2]), old.without_key or new.without_key)
        topics, of_headers = tee(columns.topics)
        values = iter(columns.values)
        given: list[Iterable[Any]] = [topics, values, columns.keys, columns.partitions]
        if columns.headers is not None:
            # `produce` is called with positional arguments. The next ones are `callback`, its alias `on_delivery`, and
            # `timestamp`.
            given += [repeat(None), repeat(None), repeat(0), map(_checked, columns.headers, of_headers)]
        try:
            deque(map(self._producer.produce, *given), maxlen=0)
        except ck.KafkaException as error:
            if error.args[0].code() in _OVER:
                self._fail(error)
            row = columns.name_of(columns.rows - operator.length_hint(values) - 1)
            hint = _TOO_LARGE if error.args[0].code() == ck.KafkaError.MSG_SIZE_TOO_LARGE else ""
            raise DeliveryError(f"{row} was refused: {error.args[0].str()}.{hint}") from error
        except SerializationError as error:
            row = columns.name_of(columns.rows - operator.length_hint(values) - 1)
            raise SerializationError(f"{row} was refused: {error}") from error

    def mark(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """Write a marker to the transaction.

        Call this just before `commit`: from the moment the marker is written, a task that looks it up is blocked until
        the transaction ends.
        """
        self.flush()
        self._call(partial(self._producer.produce, topic, value, key, partition))

    def flush(self) -> None:
        """Wait until all rows are stored. Raises `DeliveryError` if a row cannot be stored."""
        self._wait_until_at_most(0)

    def commit(self) -> None:
        """Commit the transaction. Raises `TransactionError` if it was not committed, or if that is not known."""
        self.flush()
        self._while_retriable(self._producer.commit_transaction)

    def abandon(self) -> None:
        """Abort the transaction, so that none of its rows can be read, and begin another one."""
        self._while_retriable(self._producer.abort_transaction)
        self._call(self._producer.begin_transaction)

    def _wait_until_at_most(self, records: int) -> None:
        deadline, left = time.monotonic() + ROWS_STORED_WITHIN, len(self._producer)
        while left > records:
            # A flush also sends incomplete batches at once, which must not happen while this only waits for buffer
            # space.
            self._call(partial(self._producer.poll, 0.01) if records else partial(self._producer.flush, FLUSH_SLICE))
            self._connected.check(self._producer)
            if len(self._producer) < left:
                left, deadline = len(self._producer), time.monotonic() + ROWS_STORED_WITHIN
            if time.monotonic() > deadline:
                raise DeliveryError(
                    f"Kafka stored none of the {left} remaining rows within {ROWS_STORED_WITHIN:g} s: "
                    f"{self._connected.reason}. Check that its brokers are up."
                )
        self._call(partial(self._producer.poll, 0))
        if self._refused:
            raise self._refused
        if self._is_given_up:
            self._fail(self._why_aborted())

    def _why_aborted(self) -> ck.KafkaException:
        """Return why the transaction can only be aborted.

        Every call that needs an open transaction raises the reason as an error.
        """
        try:
            self._producer.begin_transaction()
        except ck.KafkaException as error:
            return error
        return ck.KafkaException(ck.KafkaError(ck.KafkaError._STATE, "the rows were purged"))

    def _note(self, error: ck.KafkaError | None, message: ck.Message) -> None:
        # A purged record failed because of another record, whose report may never arrive.
        if error is not None and error.code() in _PURGED:
            self._is_given_up = True
            self._given_up_topics.add(str(message.topic()))
        elif error is not None and self._refused is None:
            topic = str(message.topic())
            if permission := permission_for(error.name(), "Write", topic=topic):
                self._refused = DeliveryRefusedError(permission.missing(self._connection))
                return
            place = f"partition {message.partition()} of {topic}"
            suspects = self._suspects_for(error, topic)
            self._refused = DeliveryError(f"A row for {place} was not stored: {describe(error)}.{suspects}")

    def _suspects_for(self, error: ck.KafkaError, topic: str) -> str:
        suspects = self._suspects.get(topic)
        if suspects and error.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE:
            longest = f"The longest value for this topic has {suspects.size} bytes: {suspects.longest}."
            return f" {longest}{_TOO_LARGE}{_BATCH_TOO_LARGE}"
        if suspects and suspects.without_key and error.code() == ck.KafkaError.INVALID_RECORD:
            return (
                f" {suspects.without_key} has no key, but a compacted topic requires one. Give the row a key, or "
                "filter out such rows."
            )
        return ""

    def _count_partitions(self, topic: str) -> int:
        deadline = time.monotonic() + MISSING_TOPIC_COMES_WITHIN
        while True:  # some brokers know a new topic later than others
            about = self._while_retriable(lambda seconds: self._producer.list_topics(topic, timeout=seconds)).topics
            error = about[topic].error
            if error and (permission := permission_for(error.name(), "Write", topic=topic)):
                raise DeliveryRefusedError(permission.missing(self._connection)) from ck.KafkaException(error)
            if error is None or time.monotonic() > deadline:
                led = [(topic, number) for number in with_leader(about[topic])]
                await_online(self._producer, led, ONLINE_WITHIN)
                return len(about[topic].partitions)
            time.sleep(_ASK_AGAIN_AFTER)

    def _while_retriable(self, call: Callable[[float], T]) -> T:
        def call_if_let_in(seconds: float) -> T:
            with contextlib.suppress(ck.KafkaException):  # if polling raises a fatal error, `call` raises it as well
                self._producer.poll(0)  # a request for metadata takes no delivery reports
            self._connected.check(self._producer)
            return call(seconds)

        return self._call(partial(retrying, call_if_let_in, ROWS_STORED_WITHIN))

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except ck.KafkaException as error:
            self._fail(error)

    def _fail(self, error: ck.KafkaException) -> NoReturn:
        try:
            self._producer.poll(0)  # the delivery reports may contain the cause
        except ck.KafkaException as fatal:
            error = fatal
        is_transactional = self._transactional_id is not None
        if is_transactional and error.args[0].code() == ck.KafkaError._STATE:
            error = self._why_aborted()
        if error.args[0].code() == ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            permission = Permission("Write", "TransactionalId", self._transactional_id or "")
            raise AuthorizationError(permission.missing(self._connection)) from error
        reason = describe(error.args[0])
        if error.args[0].code() in _OF_TOPICS:
            reason = (self._forbidden() or reason).rstrip(".")
        if is_takeover(error.args[0]):
            raise FencedError(
                f"Another attempt at this task has fenced off this attempt, so this attempt ends: {reason}."
            ) from error
        if self._refused:
            raise self._refused from error
        kind = TransactionError if is_transactional else KafkaError
        raise kind(f"Kafka refused to write the rows: {reason}.") from error

    def _forbidden(self) -> str | None:
        """Return a sentence about the first topic that this client cannot write to, or None if there is none."""
        admin = Admin(self._connection)
        try:
            reasons = map(admin.why_not_writable, sorted(self._given_up_topics or self._known))
            return next(filter(None, reasons), None)
        except KafkaError:
            return None


def _checked(headers: Any, topic: str) -> Any:
    """Return a row's headers unchanged. Raises `SerializationError` if the binding cannot handle the headers."""
    if headers:
        check_headers(headers, topic)
    return headers

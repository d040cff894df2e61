"""Sends the rows of an outbox to Kafka, each one once.

Kafka and the database commit separately, and the process can die between the two. So the records of a batch and a list
of their rows are stored in one Kafka transaction, and the rows are deleted afterwards. A relay that starts first fences
off any earlier relay with the same name, then reads the latest list, and deletes its rows, which the earlier relay may
not have deleted any more. Only then are further rows sent. Any error of Kafka or the database is handled in the same
way as a restart, because its outcome can be just as uncertain.

Invariant: a batch is not begun before the rows of the previous one are deleted, so only the latest list matters.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Engine, Row
from sqlalchemy.exc import SQLAlchemyError

from headway.contrib.outbox.outbox import Outbox, headers_of_row
from headway.core.levels.naming import is_topic_name, level_topic
from headway.declarations import is_number, shown
from headway.errors import (
    ConfigError,
    DeliveryError,
    FencedError,
    HeadwayError,
    KafkaError,
    ScheduleError,
    SerializationError,
    UnreadableError,
)
from headway.kafka.admin import Admin
from headway.kafka.binding.error_causes import is_fenced, is_the_records_own, librdkafka_error
from headway.kafka.producer.delivery import DeliveryFuture
from headway.kafka.reading.compacted import TopicReader
from headway.priority.producer import Producer
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of

log = logging.getLogger(__name__)

_BATCH = 500  # rows
_TRANSACTION_WITHIN = 50.0  # seconds; Kafka aborts a transaction that is open for longer than 60 s
_LISTS_READ_WITHIN = 60.0
# Rows hold serialised records and complete names of topics.
_LEFT_OUT = {"levels", "key.serializer", "value.serializer"}
_TRIES_AGAIN_AFTER = 1.0
# Lists are small, and only the latest one is needed.
_LIST_SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": str(16 * 2**20)}


class OutboxRelay:
    """Sends the rows of an outbox in their order, each as one record, and deletes them.

        OutboxRelay(engine, {"bootstrap.servers": "localhost:9092"}, name="shop").run()

    Each committed row becomes exactly one record for consumers with `isolation.level=read_committed`, as all of
    Headway's are, even if the relay is killed at any time. A record that Kafka refuses permanently is set aside: its
    row stays in the table with the reason in `error`.

    Args:
        engine: The database with the outbox.
        config: The settings of a `Producer`. Serialisers and `levels` are ignored, because the rows have both.
        name: A name that no other outbox in the Kafka cluster has. The newest relay with a name fences off the others.
        outbox: The table; `Outbox()` by default.
        every: The number of seconds between looks at an empty table.

    Attributes:
        sent: The number of records sent.
        refused: The number of rows set aside.
    """

    def __init__(
        self, engine: Engine, config: Config, *, name: str, outbox: Outbox | None = None, every: float = 0.2
    ) -> None:
        self._name = f"headway-outbox-{name}"  # the transactional id, and the topic with the lists
        if not (is_topic_name(name) and is_topic_name(self._name)):
            raise ConfigError(f"The outbox's name is {shown(name)}; use letters, digits, '.', '_' and '-'.")
        if not is_number(every) or not 0.001 <= every <= 3600:
            raise ConfigError(f"every is {shown(every)}; it must be a number of seconds from 0.001 to 3,600.")
        if "transactional.id" in config:
            raise ConfigError("An outbox's relay makes its transactional.id of its name. Remove this setting.")
        self._engine = engine
        self._outbox = Outbox() if outbox is None else outbox
        self._connection = connection_of(config)
        self._config = {key: value for key, value in config.items() if key not in _LEFT_OUT}
        self._config["transactional.id"] = self._name
        self._every = every
        self._stopped = threading.Event()
        self._alone = 0  # how many of the next rows are sent in batches of one, to find the record that Kafka refuses
        self.sent = self.refused = 0

    def run(self) -> None:
        """Send rows until `stop` is called. Once the relay has started, errors are logged, and it tries again.

        Raises `ConfigError`, `KafkaError` or SQLAlchemy's errors if the relay cannot start, and `FencedError` when
        another relay with the same name has started.
        """
        is_started = False
        while not self._stopped.is_set():
            try:
                with self._connected() as producer:
                    while self._send_all(producer) and not self._stopped.wait(self._every):
                        is_started = True
            except (HeadwayError, SQLAlchemyError) as error:
                if not is_started or isinstance(error, FencedError | UnreadableError):
                    raise
                log.warning("The outbox relay %s tries again, because of: %s", self._name, error)
                self._stopped.wait(_TRIES_AGAIN_AFTER)

    def drain(self) -> int:
        """Send all rows that there are, and return the number of records sent. Raises any error at once."""
        before = self.sent
        is_empty = False
        while not is_empty:
            with self._connected() as producer:
                is_empty = self._send_all(producer)
        return self.sent - before

    def stop(self) -> None:
        """Let `run` return after the current batch. Can be called by a signal handler or another thread."""
        self._stopped.set()

    @contextmanager
    def _connected(self) -> Iterator[Producer]:
        """Fence off earlier relays, finish what the latest one began, and yield a producer."""
        Admin(self._connection).ensure_topic(self._name, 1, _LIST_SETTINGS)
        producer = Producer(self._config)
        try:
            producer.init_transactions()
            self._finish_latest()
            yield producer
        except KafkaError as error:
            if is_fenced(error):
                raise FencedError(
                    f"Another relay has taken over {self._name}. Run one relay for each outbox, and give each outbox "
                    "a name of its own."
                ) from error
            raise
        finally:
            producer.close(0)  # nothing is left to deliver, because no batch is unfinished without an error

    def _finish_latest(self) -> None:
        """Delete the rows of the latest committed batch, which a relay that was killed has not deleted."""
        with TopicReader(self._connection) as reader:
            found = reader.compacted(self._name, [0], _LISTS_READ_WITHIN)[0].get(self._name)
        if found is None:
            return
        try:
            uids, ids = msgspec.json.decode(found, type=tuple[list[str], list[int]])
        except msgspec.MsgspecError as error:
            raise UnreadableError(
                f"The latest record in {self._name} is not a list of rows: {error}. Another program may have written "
                "it. Find out which rows were sent, delete them, and then delete the topic."
            ) from error
        self._delete(uids, ids)

    def _send_all(self, producer: Producer) -> bool:
        """Send all rows. Returns False if a record was refused, because the producer is unusable afterwards."""
        while not self._stopped.is_set():
            with self._engine.connect() as connection:
                rows = connection.execute(self._outbox.unsent(1 if self._alone else _BATCH)).all()
            if not rows:
                break
            try:
                self._send(producer, rows)
            except (ConfigError, DeliveryError, ScheduleError, SerializationError) as error:
                self._handle_refusal(rows, error)
                return False
            self._delete([row.uid for row in rows], [row.id for row in rows])
            self.sent += len(rows)
            self._alone = max(0, self._alone - 1)
        return True

    def _send(self, producer: Producer, rows: Sequence[Row[Any]]) -> None:
        """Store the records and the list of their rows in one transaction."""
        listed = msgspec.json.encode(([row.uid for row in rows], [row.id for row in rows]))
        futures = []
        try:
            with producer.transaction(_TRANSACTION_WITHIN):
                futures = [_send_row(producer, row) for row in rows]
                producer.send(self._name, listed, self._name)
        except DeliveryError:
            # The transaction's error says only that records failed. The error of a record has Kafka's error as its
            # cause, which `raise ... from` would replace.
            for failed in [each.exception() for each in futures if each.done()]:
                if failed is not None:
                    raise failed from failed.__cause__
            raise

    def _handle_refusal(self, rows: Sequence[Row[Any]], error: HeadwayError) -> None:
        """Set the row of a refused record aside. If the batch had several, send them again one by one to find it.

        Raises the error if the record itself is not its cause.
        """
        if len(rows) > 1:
            self._alone = len(rows)
            return
        if not _is_the_rows_own(error):
            raise error
        log.error("Row %d of %s is set aside: %s", rows[0].id, self._outbox.table.name, error)
        with self._engine.begin() as connection:
            connection.execute(self._outbox.set_aside(rows[0], str(error)))
        self.refused += 1
        self._alone = max(0, self._alone - 1)

    def _delete(self, uids: Sequence[str], ids: Sequence[int]) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._outbox.sent(uids, ids))


def _is_the_rows_own(error: HeadwayError) -> bool:
    """Return whether Kafka would refuse the record of this row again.

    A row that is set aside is no longer in order, so errors that could be transient do not count. Among these are
    delivery errors without a cause, for example because a record was not sent in time.
    """
    if not isinstance(error, DeliveryError):
        return True
    cause = librdkafka_error(error)
    return cause is not None and is_the_records_own(cause)


def _send_row(producer: Producer, row: Row[Any]) -> DeliveryFuture:
    topic = row.topic if row.level is None else level_topic(row.topic, row.level)
    due = None if row.due is None else datetime.fromtimestamp(row.due / 1000, UTC)
    # The record gets the time at which it is sent. With the row's time, Kafka could delete it soon after an outage.
    return producer.send(topic, row.value, row.key, headers_of_row(row), row.partition, due=due, id=row.schedule_id)

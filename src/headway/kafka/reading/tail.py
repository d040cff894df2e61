"""Reads the newest records of one partition in a thread, such as answers to commands and messages to processes."""

import logging
import threading
import time
from collections.abc import Callable

import confluent_kafka as ck

from headway.errors import AuthorizationError, HeadwayError
from headway.kafka.binding.connection import Connection, change_credentials
from headway.kafka.binding.mock_cluster import mock_at
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN, RECORDS_AWAITED_FOR
from headway.kafka.missing_permissions import is_refusal, why_not_readable
from headway.kafka.reading.log_bounds import watermarks
from headway.kafka.reading.topic_ids import TopicIds
from headway.kafka.reading.unjoined_consumer import UnjoinedConsumer, unjoined_consumer
from headway.settings.config import Config

log = logging.getLogger(__name__)

_SETTINGS: Config = {
    "fetch.wait.max.ms": 100,
}


class Tail:
    """Reads the records of one partition, starting at an offset or at the end of the partition.

    If the topic is deleted and created again, reading continues at the beginning of the new topic, with a new client.
    The old client would skip records or read nothing at all (see docs/design/librdkafka.md).

    Records of open or aborted transactions are left out, unless `uncommitted_too` is True.

    Raises `KafkaError` if Kafka does not report the partition's end offset. Only `set_sasl_credentials` is thread-safe.
    """

    def __init__(
        self, config: Config, topic: str, partition: int, start: int | None = None, *, uncommitted_too: bool = False
    ) -> None:
        self._config = dict(config)
        self._isolation = {"isolation.level": "read_uncommitted" if uncommitted_too else "read_committed"}
        self._topic, self._partition = topic, partition
        self._changing = threading.Lock()
        self._make_client()
        try:
            if start is None:
                start = watermarks(self._consumer, (topic, partition), BROKER_ANSWERS_WITHIN, config)[1]
            self._consumer.assign([ck.TopicPartition(topic, partition, start)])
        except BaseException:
            self.close()
            raise

    def take(self) -> ck.Message | None:
        """Return the next record or error, or None if nothing arrives within `RECORDS_AWAITED_FOR`."""
        now = time.monotonic()
        if self._ids.is_due(now):
            changes = self._ids.look([self._topic], now)
            if changes.deleted:
                log.warning("The topic %s was deleted. It is read again when it exists again.", self._topic)
            if changes.recreated:
                self._begin_again()
        return self._consumer.poll(RECORDS_AWAITED_FOR)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for all logins from now on."""
        with self._changing:
            self._connection.set_credentials(self._consumer, username, password)
            change_credentials(self._config, username, password)

    def close(self) -> None:
        """Close the connections."""
        self._ids.close()
        self._consumer.close()

    def _make_client(self) -> None:
        connection = Connection()
        self._consumer: UnjoinedConsumer = unjoined_consumer(
            {**self._config, **_SETTINGS, **self._isolation}, connection
        )
        self._connection = connection
        self._ids = TopicIds(None if mock_at(self._config.get("bootstrap.servers")) else self._consumer)

    def _begin_again(self) -> None:
        log.warning("The topic %s was deleted and created again, and is read from its beginning.", self._topic)
        with self._changing:
            ids, client = self._ids, self._consumer
            try:
                self._make_client()
            except HeadwayError as error:
                log.warning("No new client for the topic %s could be created yet: %s", self._topic, error)
                return
            ids.close()
            client.close()
        self._consumer.assign([ck.TopicPartition(self._topic, self._partition, ck.OFFSET_BEGINNING)])


class TailReader:
    """A thread that calls `answered(key, value)` with each new record of a partition.

    The thread begins at the offset `start`, or at the end of the partition if `start` is None. If this client is not
    permitted to read the topic, the thread calls `refused` with the error. Raises `KafkaError` if Kafka does not report
    the partition's end offset.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        partition: int,
        answered: Callable[[str, bytes], None],
        refused: Callable[[AuthorizationError], None],
        start: int | None = None,
        name: str = "headway-answers",
    ) -> None:
        self._answered = answered
        self._refused = refused
        self._config = config
        self._topic = topic
        self._closing = False
        reset = "latest" if start is None else "earliest"
        self._tail = Tail({**config, "auto.offset.reset": reset}, topic, partition, start)
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for all logins from now on."""
        self._tail.set_sasl_credentials(username, password)

    def _read(self) -> None:
        while not self._closing:
            try:
                self._read_one()
            except Exception:  # later records must still be read
                log.exception("Reading the topic %s raised an unexpected error. The thread continues.", self._topic)
                time.sleep(RECORDS_AWAITED_FOR)

    def _read_one(self) -> None:
        message = self._tail.take()
        if message is None:
            return
        if (error := message.error()) is not None:
            if missing := why_not_readable(error, message.topic() or "", self._config):
                self._refused(missing)
            # A missing permission that is not about the topic is about a group, which this reader does not need.
            elif not is_refusal(error):
                log.warning(
                    "The topic %s could not be read. The read is tried again. The reason: %s",
                    message.topic(),
                    error.str(),
                )
        elif (key := message.key()) and (value := message.value()):
            self._answered(key.decode(errors="replace"), value)

    def close(self) -> None:
        """Stop the thread and close the connections."""
        self._closing = True
        self._thread.join()
        self._tail.close()

"""The end of one partition, read in a thread: answers, and messages to processes."""

import logging
import threading
import time
from collections.abc import Callable

import confluent_kafka as ck

from headway.errors import AuthorizationError, HeadwayError
from headway.kafka.binding.connection import Connection, change_credentials
from headway.kafka.binding.mock_cluster import mock_at
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN, RECORDS_AWAITED_FOR
from headway.kafka.missing_rights import is_refusal, why_not_readable
from headway.kafka.reading.log_bounds import watermarks
from headway.kafka.reading.topic_ids import TopicIds
from headway.kafka.reading.unjoined_consumer import UnjoinedConsumer, unjoined_consumer
from headway.settings.config import Config

log = logging.getLogger(__name__)

_SETTINGS: Config = {
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
}


class Tail:
    """The records of one partition from an offset on, or from its end.

    If the topic is deleted and created again, it goes on at the beginning of the new topic, with a new client: the old
    one would pass records over, or read nothing at all (see docs/design/librdkafka.md).

    Raises `KafkaError` if the end is not known. For one thread, except `set_sasl_credentials`.
    """

    def __init__(self, config: Config, topic: str, partition: int, start: int | None = None) -> None:
        self._config = dict(config)
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
        """Return the next record, or an error, as soon as it is there; None if there is none for a moment."""
        now = time.monotonic()
        if self._ids.is_due(now) and self._ids.look([self._topic], now).recreated:
            self._begin_again()
        return self._consumer.poll(RECORDS_AWAITED_FOR)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on."""
        with self._changing:
            self._connection.set_credentials(self._consumer, username, password)
            change_credentials(self._config, username, password)

    def close(self) -> None:
        """Close the connections."""
        self._ids.close()
        self._consumer.close()

    def _make_client(self) -> None:
        connection = Connection()
        self._consumer: UnjoinedConsumer = unjoined_consumer({**self._config, **_SETTINGS}, connection)
        self._connection = connection
        self._ids = TopicIds(None if mock_at(self._config.get("bootstrap.servers")) else self._consumer)

    def _begin_again(self) -> None:
        log.warning("%s was deleted and created again, and is read from its beginning.", self._topic)
        with self._changing:
            ids, client = self._ids, self._consumer
            try:
                self._make_client()
            except HeadwayError as error:
                log.warning("%s cannot be read with a new client yet: %s", self._topic, error)
                return
            ids.close()
            client.close()
        self._consumer.assign([ck.TopicPartition(self._topic, self._partition, ck.OFFSET_BEGINNING)])


class TailReader:
    """A reader that calls `answered(key, value)` for each record that comes after it was made.

    Calls `refused` with the missing right if answers may not be read. Raises `KafkaError`.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        partition: int,
        answered: Callable[[str, bytes], None],
        refused: Callable[[AuthorizationError], None],
    ) -> None:
        self._answered = answered
        self._refused = refused
        self._config = config
        self._closing = False
        self._tail = Tail({**config, "auto.offset.reset": "latest"}, topic, partition)
        self._thread = threading.Thread(target=self._read, name="headway-answers", daemon=True)
        self._thread.start()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on."""
        self._tail.set_sasl_credentials(username, password)

    def _read(self) -> None:
        while not self._closing:
            message = self._tail.take()
            if message is None:
                continue
            if (error := message.error()) is not None:
                if missing := why_not_readable(error, message.topic() or "", self._config):
                    self._refused(missing)
                    continue
                if not is_refusal(error):  # of the group, which it does not need
                    log.warning("Reading answers failed, and goes on: %s", error.str())
            elif (key := message.key()) and (value := message.value()):
                self._answered(key.decode(errors="replace"), value)

    def close(self) -> None:
        """Read no more."""
        self._closing = True
        self._thread.join()
        self._tail.close()

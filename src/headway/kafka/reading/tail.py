"""The answers in one partition from now on, read in a thread."""

import logging
import threading
from collections.abc import Callable

import confluent_kafka as ck

from headway.errors import AuthorizationError, KafkaError
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN, RECORDS_AWAITED_FOR
from headway.kafka.missing_rights import is_refusal, why_not_readable
from headway.kafka.reading.log_bounds import watermarks
from headway.kafka.reading.unjoined_consumer import unjoined_consumer
from headway.settings.config import Config

log = logging.getLogger(__name__)

_SETTINGS: Config = {
    "auto.offset.reset": "latest",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
}


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
        self._connection = Connection()
        self._consumer = unjoined_consumer({**config, **_SETTINGS}, self._connection)
        try:
            _, end = watermarks(self._consumer, (topic, partition), BROKER_ANSWERS_WITHIN, config)
        except KafkaError:
            self._consumer.close()
            raise
        self._consumer.assign([ck.TopicPartition(topic, partition, end)])
        self._thread = threading.Thread(target=self._read, name="headway-answers", daemon=True)
        self._thread.start()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on."""
        self._connection.set_credentials(self._consumer, username, password)

    def _read(self) -> None:
        while not self._closing:
            message = self._consumer.poll(RECORDS_AWAITED_FOR)
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
        self._consumer.close()

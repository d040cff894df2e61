"""Sends messages to processes that can be reached only through Kafka, as records in a topic with one partition.

The end offset of the topic is noted before a process is started, and the process reads the topic from that offset. So a
process misses no message that is sent while it starts or while it replaces another process.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.permissions import Permission, topic_permissions
from headway.errors import AuthorizationError, KafkaError
from headway.kafka.admin import Admin, describe
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN, RECORDS_AWAITED_FOR
from headway.kafka.missing_permissions import why_refused
from headway.kafka.reading.log_bounds import watermarks
from headway.kafka.reading.tail import TailReader
from headway.kafka.reading.unjoined_consumer import UnjoinedConsumer, unjoined_consumer
from headway.settings.config import Config

log = logging.getLogger(__name__)

_A_DAY = {"retention.ms": "86400000"}


class ControlTopic:
    """The topic of the messages, as the sender uses it. `config` has the settings of librdkafka.

    Raises `KafkaError` if the topic does not exist and cannot be created. Raises `AuthorizationError` if this client is
    not permitted to read and write the topic, because without these permissions it could not stop the processes later.
    """

    def __init__(self, config: Config, topic: str) -> None:
        self._config = config
        self._topic = topic
        self._admin = Admin(config)
        self._admin.ensure_topic(topic, 1, _A_DAY)
        self._admin.require(topic_permissions("Read", topic) + topic_permissions("Write", topic))

    def end(self) -> int:
        """Return the offset of the next message.

        Raises `AuthorizationError` if this client is not permitted to read the topic. A listener would not get an error
        for this, because librdkafka waits silently for the permission.
        """
        consumer = _reader(self._config)
        try:
            end = watermarks(consumer, (self._topic, 0), BROKER_ANSWERS_WITHIN, self._config)[1]
            consumer.assign([ck.TopicPartition(self._topic, 0, end)])
            self._require_readable(consumer)
            return end
        finally:
            consumer.close()

    def _require_readable(self, consumer: cimpl.Consumer) -> None:
        deadline = time.monotonic() + BROKER_ANSWERS_WITHIN
        while time.monotonic() < deadline:
            answer = consumer.poll(RECORDS_AWAITED_FOR)
            if answer is None:
                continue
            error = answer.error()
            if error is None or error.code() == ck.KafkaError._PARTITION_EOF:
                return
            if error.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise AuthorizationError(Permission("Read", "Topic", self._topic).missing(self._config))

    def say(self, run: str, word: bytes) -> None:
        """Send a message to all processes of a run.

        Raises `KafkaError` if Kafka does not store the message within 20 s, or if the listeners are no longer permitted
        to read it.
        """
        reports: list[ck.KafkaError | None] = []
        own = {"message.timeout.ms": int(BROKER_ANSWERS_WITHIN * 1000)}
        producer = make_client(cimpl.Producer, {"log_level": 2, **self._config, **own})
        producer.produce(
            self._topic, word, run.encode(), partition=0, on_delivery=lambda error, _: reports.append(error)
        )
        producer.flush()  # returns when the report has arrived, after at most message.timeout.ms
        producer.close()
        for error in filter(None, reports):
            if refused := why_refused(error, "Write", self._config, topic=self._topic):
                raise refused
            raise KafkaError(f"A message could not be stored in the topic {self._topic}: {describe(error)}.")
        self.end()


@contextlib.contextmanager
def listening(config: Config, topic: str, since: int, run: str, hear: Callable[[bytes], None]) -> Iterator[None]:
    """During the `with` block, call `hear` in a thread with each message to the run at or after the offset `since`."""

    def take(key: str, word: bytes) -> None:
        if key == run:
            hear(word)

    def refused(missing: AuthorizationError) -> None:
        log.warning("%s", missing)

    settings = {"log_level": 2, **config}
    with contextlib.closing(TailReader(settings, topic, 0, take, refused, since, "headway-control-topic")):
        yield


def _reader(config: Config) -> UnjoinedConsumer:
    own = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
    return unjoined_consumer({"log_level": 2, **config, **own})

"""Sends and receives the messages with which the members of a group lend each other fractions of their rates.

The messages are records in a topic of the group.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.rate_loans import LEASE, LoanMessage, rates_topic
from headway.errors import AuthorizationError, HeadwayError
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.time_limits import RECORDS_AWAITED_FOR
from headway.kafka.reading.control_topic import ControlTopic, listening
from headway.runtime.background import in_background
from headway.settings.config import Config

log = logging.getLogger(__name__)

_KEY = "rates"
_TRIES_AGAIN_AFTER = 10.0  # seconds


class RateMessages:
    """The messages that a member sends and receives. No message is sent or received until the topic is open."""

    def __init__(self, connection: Callable[[], Config], group: str, heard: Callable[[], None]) -> None:
        self._connection = connection
        self._topic = rates_topic(group)
        self._heard = heard
        self._inbox: deque[bytes] = deque()
        self._producer: cimpl.Producer | None = None
        self._thread: Future[None] | None = None
        self._ended = threading.Event()

    def open(self) -> None:
        """Start to open the topic in the background. Further calls do nothing."""
        if self._thread is None:
            self._thread = in_background(self._listen)

    def take(self) -> Iterator[LoanMessage]:
        """Yield the messages that have arrived since the last call."""
        while self._inbox:
            message = _read(self._inbox.popleft())
            if message is not None:
                yield message

    def say(self, message: LoanMessage) -> None:
        """Send a message to all members.

        If Kafka does not store the message in time, the message is lost, and the next message replaces it.
        """
        producer = self._producer
        if producer is None:
            return
        value = json.dumps([message.member, message.number, dict(message.asks), dict(message.lends)])
        try:
            producer.produce(self._topic, value, _KEY, partition=0)
        except (BufferError, RuntimeError, ck.KafkaException) as error:
            log.debug("A message about rates was not sent: %s", error)

    def close(self) -> None:
        """Stop sending and receiving, without waiting for Kafka."""
        self._ended.set()

    def _listen(self) -> None:
        config, has_warned = self._connection(), False
        while not self._ended.is_set():
            try:
                self._speak_and_listen(config, ControlTopic(config, self._topic).end())
            except HeadwayError as error:
                if not has_warned:
                    log.warning(
                        "This member keeps the fraction of the rates that matches its fraction of the partitions. It "
                        "cannot borrow unused rates from other members, because it cannot use the topic %s: %s",
                        *(self._topic, error),
                    )
                if isinstance(error, AuthorizationError):
                    return
                has_warned = True
                self._ended.wait(_TRIES_AGAIN_AFTER)
            except Exception:  # the thread must try again, because a member cannot borrow rates without messages
                log.exception("The exchange of messages about rates raised an unexpected error, and starts again.")
                self._ended.wait(_TRIES_AGAIN_AFTER)

    def _speak_and_listen(self, config: Config, since: int) -> None:
        own = {"message.timeout.ms": int(LEASE * 1000), "linger.ms": 0, "log_level": 2}
        producer = make_client(cimpl.Producer, {**config, **own})
        try:
            with listening(config, self._topic, since, _KEY, self._hear):
                self._producer = producer
                while not self._ended.wait(RECORDS_AWAITED_FOR):
                    producer.poll(0)
        finally:
            self._producer = None
            producer.close()

    def _hear(self, value: bytes) -> None:
        self._inbox.append(value)
        self._heard()


def _read(value: bytes) -> LoanMessage | None:
    """Return the message in a record, or None if the record is not valid.

    Another version may have written it.
    """
    try:
        member, number, asks, lends = json.loads(value)
        loans = {str(to): (int(answered), _fractions(lent)) for to, (answered, lent) in lends.items()}
        return LoanMessage(str(member), int(number), _fractions(asks), loans)
    except (ValueError, TypeError, AttributeError):
        return None


def _fractions(given: Any) -> dict[str, float]:
    fractions = {str(name): float(fraction) for name, fraction in given.items()}
    if not all(0 <= fraction <= 1 for fraction in fractions.values()):
        raise ValueError(fractions)
    return fractions

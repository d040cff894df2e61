"""Asking a relay to cancel or reschedule, and waiting for what it answers."""

import logging
import random
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from headway.core.delay.changes import Command, Settled, read_settled
from headway.core.delay.schedule import HandleParts
from headway.delay.topics import TopicNames
from headway.errors import AuthorizationError, DeliveryError, NoRelayError, ScheduleError
from headway.kafka.reading.tail import TailReader

log = logging.getLogger(__name__)

ANSWER_WITHIN = 30.0

Send = Callable[[str, bytes, str, int], Future[Any]]
"""(topic, value, key, partition) -> when it is stored"""


class Commands:
    """Sends commands and hands out their answers; its reader and thread begin with the first command."""

    def __init__(self, config: Mapping[str, Any], names: TopicNames, partitions: int, send: Send) -> None:
        self._config = config
        self._names = names
        self._reply = random.randrange(partitions)  # noqa: S311 - it spreads answers
        self._send = send
        self._waiting: dict[str, Future[Settled]] = {}
        self._lock = threading.Lock()
        self._reader: TailReader | None = None
        self._is_refused = False

    def ask(self, parts: HandleParts, to: int | None) -> Future[Settled]:
        """Send a command; the future resolves when a relay has settled it."""
        with self._lock:
            if self._reader and self._is_refused:  # librdkafka says it once: a new one finds out what is so now
                self._reader.close()
                self._reader = None
            if self._reader is None:
                self._is_refused = False
                self._reader = TailReader(self._config, self._names.answers, self._reply, self._answered, self._refused)
        command = Command(parts.id, parts.due, parts.at, uuid.uuid4().hex, self._reply, to)
        answer: Future[Settled] = Future()
        answer.set_running_or_notify_cancel()  # who waits for it no more (`AsyncScheduler`) cannot end it, then
        self._waiting[command.token] = answer
        sent = self._send(self._names.commands, command.encode(), command.id, parts.partition)
        sent.add_done_callback(lambda sent: self._failed(command.token, sent.exception()))
        return answer

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Read answers with these from now on."""
        with self._lock:
            if self._reader:
                self._reader.set_sasl_credentials(username, password)

    def _failed(self, token: str, error: BaseException | None) -> None:
        if error is not None and (answer := self._waiting.pop(token, None)):
            answer.set_exception(error)

    def _refused(self, missing: AuthorizationError) -> None:
        """Nobody here will hear of an answer: tell all who wait, rather than have them wait in vain."""
        self._is_refused = True
        error = AuthorizationError(f"What was asked is stored, and its answer cannot be read. {missing}")
        for token in list(self._waiting):
            self._failed(token, error)

    def _answered(self, token: str, value: bytes) -> None:
        if token in self._waiting:
            try:
                settled = read_settled(value)
            except ScheduleError as error:  # of a newer relay, or of a stranger
                log.warning("A record in %s is passed over: %s", self._names.answers, error)
            else:
                if answer := self._waiting.pop(token, None):
                    answer.set_result(settled)

    def close(self) -> None:
        """Nobody is answered any more."""
        if self._reader:
            self._reader.close()
        for token in list(self._waiting):
            self._failed(token, DeliveryError("The scheduler was closed before a relay had answered."))


def settled_within(answer: Future[Settled], timeout: float, left: float) -> Settled:
    """The answer, waited for as long as is left of the timeout; raises `NoRelayError`."""
    try:
        return answer.result(left)
    except TimeoutError:
        raise no_relay(timeout) from None


def no_relay(timeout: float) -> NoRelayError:
    """The error where nobody has answered."""
    return NoRelayError(
        f"No relay has answered within {timeout:.3g} s. What was asked is stored, and settled as soon as one runs "
        "(`headway relay`). Ask again then, to learn how."
    )

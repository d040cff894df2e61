"""Sends commands to cancel or reschedule a schedule to the relays, and receives the relays' answers."""

import asyncio
import logging
import random
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from headway.core.delay.changes import Command, Settled, read_settled
from headway.core.delay.schedule import HandleParts
from headway.delay.topic_names import TopicNames
from headway.errors import AuthorizationError, DeliveryError, NoRelayError, ScheduleError
from headway.kafka.reading.tail import TailReader

log = logging.getLogger(__name__)

ANSWER_WITHIN = 30.0

_UNANSWERED = ""  # the token of a command that requests no answer

Send = Callable[[str, bytes, str, int], Future[Any]]
"""Takes (topic, value, key, partition) and returns a future that resolves when the record is stored."""


class Commands:
    """Sends commands, and passes each answer to the caller that waits for it.

    The thread that reads the answers starts with the first command that requests an answer.
    """

    def __init__(self, config: Mapping[str, Any], names: TopicNames, partitions: int, send: Send) -> None:
        self._config = config
        self._names = names
        self.reply = random.randrange(partitions)  # noqa: S311 - spreads the answers over the partitions
        """The partition in which the answers arrive."""
        self._send = send
        self._waiting: dict[str, Future[Settled]] = {}
        self._lock = threading.Lock()
        self._reader: TailReader | None = None
        self._refusal: AuthorizationError | None = None

    def ask(self, parts: HandleParts, to: int | None, *, answered: bool) -> tuple[Future[Any], Future[Settled] | None]:
        """Send a command.

        Returns a future for the command's delivery report. If `answered` is true, also returns a future for the relay's
        answer.
        """
        token, answer = self.expect() if answered else (_UNANSWERED, None)
        command = Command(parts.id, parts.due, parts.at, token, self.reply, to)
        sent = self._send(self._names.commands, command.encode(), command.id, parts.partition)
        if answered:
            self.note_sent(token, sent)
        return sent, answer

    def expect(self) -> tuple[str, Future[Settled]]:
        """Return a token for a command that is about to be sent, and the future for the answer to that command."""
        with self._lock:
            if self._reader and self._refusal:
                # librdkafka reports only once that reading is not permitted. So create a new reader, which finds out
                # whether reading is permitted now.
                self._reader.close()
                self._reader = None
            if self._reader is None:
                self._refusal = None
                self._reader = TailReader(self._config, self._names.answers, self.reply, self._answered, self._refused)
        answer: Future[Settled] = Future()
        # If a caller of `AsyncScheduler` is cancelled, that must not cancel this future.
        answer.set_running_or_notify_cancel()
        token = uuid.uuid4().hex
        self._waiting[token] = answer
        return token, answer

    def note_sent(self, token: str, sent: Future[Any]) -> None:
        """Set an exception on the answer's future if the command cannot be stored or the answer cannot be read.

        The answer cannot be read if this client lacks the permission.
        """
        sent.add_done_callback(lambda sent: self._fail(token, sent.exception()))
        self._fail(token, self._refusal)  # the refusal might have arrived before this command was registered

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Read answers with these credentials from now on."""
        with self._lock:
            if self._reader:
                self._reader.set_sasl_credentials(username, password)

    def _fail(self, token: str, error: BaseException | None) -> None:
        if error is not None and (answer := self._waiting.pop(token, None)):
            answer.set_exception(error)

    def _refused(self, missing: AuthorizationError) -> None:
        """Fail all waiting commands, because this client is not permitted to read answers."""
        self._refusal = AuthorizationError(f"The request is stored, but its answer cannot be read. {missing}")
        for token in list(self._waiting):
            self._fail(token, self._refusal)

    def _answered(self, token: str, value: bytes) -> None:
        if token in self._waiting:
            try:
                settled = read_settled(value)
            except ScheduleError as error:  # the record was written by a newer relay or by another program
                log.warning("A record in %s is skipped: %s", self._names.answers, error)
            else:
                if answer := self._waiting.pop(token, None):
                    answer.set_result(settled)

    def close(self) -> None:
        """Stop reading answers, and fail the commands that are still waiting for an answer."""
        if self._reader:
            self._reader.close()
        for token in list(self._waiting):
            self._fail(token, DeliveryError("The scheduler was closed before a relay had answered."))


def settled_within(answer: Future[Settled], timeout: float, left: float) -> Settled:
    """Wait `left` seconds for the answer. If none arrives, raises a `NoRelayError` whose text names `timeout`."""
    try:
        return answer.result(left)
    except TimeoutError:
        raise no_relay(timeout) from None


async def settled_in_loop(answer: Future[Settled], timeout: float) -> Settled:
    """Wait as `settled_within` does, without blocking the event loop."""
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(answer)
    except TimeoutError:
        raise no_relay(timeout) from None


def no_relay(timeout: float) -> NoRelayError:
    """Return the error for a command that no relay has answered within `timeout` seconds."""
    return NoRelayError(
        f"No relay has answered within {timeout:.3g} s. The request is stored, and will be settled when a relay runs. "
        "Start a relay with `headway relay`, and then repeat the call to get the outcome."
    )

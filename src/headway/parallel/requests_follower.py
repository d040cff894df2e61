"""Follows the requests of operators about records that wait, and answers them.

A member that cannot read the requests logs that, tries again, and goes on as before.
"""

import logging
import threading
import time
from collections.abc import Callable

from headway.core.outgoing_record import OutgoingRecord
from headway.core.waiting.requests import REQUESTS_TOPIC, Edit, EditAnswer, EditRequest, read_message
from headway.errors import HeadwayError, UnreadableError
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.kafka.reading.requests_topic import RequestMessages
from headway.parallel.edits import Edits
from headway.parallel.moves import RecordMoves
from headway.settings.config import Config

log = logging.getLogger(__name__)

_TRIES_AGAIN_AFTER = 10.0  # seconds
_CLOSES_WITHIN = 2.0  # how long the end of the run waits for the thread, in seconds
_MOST_WAITING = 1000  # how many requests can wait until the run commits in transactions


class RequestsFollower:
    """Carries out the requests for one member of a group, in a thread of its own.

    Args:
        config: The connection's settings.
        edits: Carries out the edits.
        request_commit: Requests a commit, so that an edit does not wait for the interval between commits.
    """

    def __init__(self, config: Config, edits: Edits, request_commit: Callable[[], None]) -> None:
        self._config = config
        self._edits = edits
        self._request_commit = request_commit
        self._moves: RecordMoves | None = None
        self._answers: ProducerClient | None = None
        self._waiting: list[EditRequest] = []  # edits that wait until the run commits in transactions
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, moves: RecordMoves) -> None:
        """Follow the requests that are made from now on."""
        self._moves = moves
        self._thread = threading.Thread(target=self._follow, name="headway-requests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, if there is one."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_CLOSES_WITHIN)

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                self._follow_topic()
            except HeadwayError as error:
                log.warning(
                    "The requests of operators about waiting records cannot be followed, so this member does not carry "
                    "them out: %s",
                    error,
                )
            except Exception:  # without this thread, the member would answer no request for the rest of the run
                log.exception("Following the requests of operators raised an unexpected error, and starts again.")
            self._ended.wait(_TRIES_AGAIN_AFTER)
        self._edits.close()
        if self._answers is not None:
            self._answers.close(0.0)

    def _follow_topic(self) -> None:
        messages = RequestMessages(self._config, uncommitted_too=True)
        try:
            while not self._ended.is_set():
                if (message := messages.take()) is not None:
                    self._take(*message)
                self._carry_out_waiting()
        finally:
            messages.close()

    def _take(self, key: str, value: bytes) -> None:
        try:
            request = read_message(key, value)
        except UnreadableError as error:
            log.warning("%s This member ignores it.", error)
            return
        if not isinstance(request, EditRequest) or request.until < time.time() * 1000:
            return
        if self._edits.concerns(request) and len(self._waiting) < _MOST_WAITING:
            self._waiting.append(request)

    def _carry_out_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if request.until < time.time() * 1000:
                continue
            if request.edit in (Edit.LOOK, Edit.NEXT) or (self._moves is not None and self._moves.is_in_use):
                self._carry_out(request)
            elif self._moves is not None and (refusal := self._moves.request_transactions()):
                self._answer(self._edits.refuse(request, f"this member cannot write in transactions: {refusal}"))
            else:
                self._waiting.append(request)

    def _carry_out(self, request: EditRequest) -> None:
        try:
            answer = self._edits.carry_out(request, time.monotonic())
        except HeadwayError as error:
            answer = self._edits.refuse(request, str(error))
        if answer is not None:
            self._answer(answer)
        if request.edit in (Edit.DROP, Edit.MOVE):
            self._request_commit()

    def _answer(self, answer: EditAnswer) -> None:
        if self._answers is None:
            self._answers = ProducerClient({**self._config, "enable.idempotence": True, "linger.ms": 0})
        record = OutgoingRecord(REQUESTS_TOPIC, answer.encode(), answer.id, 0)
        self._answers.produce(record, _log_refusal)
        self._answers.flush(BROKER_ANSWERS_WITHIN)


def _log_refusal(error: object, _: object) -> None:
    if error is not None:
        log.warning("An operator gets no answer, because it cannot be stored in %s: %s", REQUESTS_TOPIC, error)

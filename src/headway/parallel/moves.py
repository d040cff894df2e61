"""Moves records to other topics. The copy, and the offset that marks the record as done, are in one transaction.

A run without transactions begins to commit in transactions with the first record that it moves, because otherwise a
death between the two steps would move the record twice. Until then, it has no transactional producer.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait

from headway.core.retry import Move
from headway.errors import HeadwayError
from headway.execution.dispatch import Dispatch
from headway.execution.jobs import RecordAttempt
from headway.kafka.producer.client import ProducerClient
from headway.parallel.brought_along import history_of_copy
from headway.parallel.handler_output import HandlerOutput, OutputKind
from headway.parallel.postponement import Postponement
from headway.parallel.transactions import Transactions
from headway.records.history import without_history
from headway.runtime.background import in_background
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

_CLOSES_WITHIN = 2.0  # how long the end of the run waits for a producer that is being made, in seconds


def copy_of(attempt: RecordAttempt, topic: str, group: str) -> HandlerOutput:
    """Return a copy of a record for another topic, with the record's origin and failed attempts in a header."""
    record = attempt.record
    headers = [*without_history(record.headers), history_of_copy(attempt, topic, group).header()]
    return HandlerOutput(
        topic, record.raw_value, record.raw_key, headers=headers, job=(attempt,), returned=None, kind=OutputKind.COPY
    )


class RecordMoves:
    """Moves records to other topics. Any thread can call `send`.

    Args:
        dispatch: Gets each copy, for the next transaction.
        group: The consumer group, without the level.
        wake: Wakes the control thread.
        make: Makes the transactional producer for a run without transactions.
        transactions: The transactions of the run, if it has them from its start.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        group: str,
        wake: Wakeup,
        make: Callable[[], tuple[ProducerClient, Transactions]],
        transactions: Transactions | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._group = group
        self._wake = wake
        self._make = make
        self._transactions = transactions
        self._lock = threading.Lock()  # protects the following attributes
        self._waiting: deque[tuple[RecordAttempt, Move]] = deque()
        self._making: Future[None] | None = None
        self._made: tuple[ProducerClient, Transactions] | None = None
        self._is_ready = self._closed = False
        self._refusal: str | None = None  # why the transactional producer could not be made
        self._pause = Postponement(dispatch, _warn)

    @property
    def moved(self) -> int:
        """The number of records that were moved."""
        return self._transactions.copies if self._transactions else 0

    @property
    def is_in_use(self) -> bool:
        """True if the run commits in transactions, so that edits can give their outputs to the engine."""
        return self._transactions is not None

    def request_transactions(self) -> str | None:
        """Let a run without transactions begin to commit in them, as soon as possible.

        Returns the reason if that was not possible a moment ago.
        """
        with self._lock:
            if self._transactions is None and self._making is None and not self._closed and self._pause.is_over():
                self._refusal = None
                self._making = in_background(self._prepare)
            return self._refusal

    def send(self, attempt: RecordAttempt, move: Move) -> None:
        """Move a record with the next transaction."""
        if self._transactions:
            copy = copy_of(attempt, move.topic, self._group)
            self._dispatch.stored(attempt, (copy,) if move.answer is None else (copy, move.answer))
        elif not self._pause.is_over():
            self._pause.postpone(attempt)
        else:
            self._wait_for_transactions(attempt, move)

    # A run without transactions

    @property
    def is_ready(self) -> bool:
        """True if records wait until the run commits in transactions, and the transactional producer is ready."""
        return self._is_ready

    def begin_transactions(self) -> Transactions:
        """Give the waiting records to the engine. From now on, the caller must commit in the returned transactions.

        Must be called only if `is_ready` is True.
        """
        with self._lock:
            assert self._made is not None  # noqa: S101 - for the type checker
            transactions = self._transactions = self._made[1]
            self._is_ready = False
            waiting, self._waiting = self._waiting, deque()
        for attempt, move in waiting:
            self.send(attempt, move)
        return transactions

    def _wait_for_transactions(self, attempt: RecordAttempt, move: Move) -> None:
        with self._lock:
            if self._transactions is None:
                self._waiting.append((attempt, move))
                if self._making is None and not self._closed:
                    self._making = in_background(self._prepare)
                return
        self.send(attempt, move)

    def _prepare(self) -> None:
        """Make the producer, and initialise its transactions, which can take a while."""
        try:
            made = self._make()
            with self._lock:
                self._made = made
            made[1].fence()
        except HeadwayError as error:
            self._refuse(error)
        else:
            self._is_ready = True
            self._wake.set()

    def _refuse(self, error: HeadwayError) -> None:
        with self._lock:
            refused, self._waiting = self._waiting, deque()
            made, self._made, self._making = self._made, None, None
            self._refusal = str(error)
        if made is not None:
            _close(*made, timeout=0.0)
        for attempt, _ in refused:
            self._pause.refused(attempt, str(error))

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for all further logins."""
        with self._lock:
            made = self._made
        for client in made or ():
            client.set_sasl_credentials(username, password)

    def close(self, timeout: float) -> None:
        """Close the producer that was made for a run without transactions. Records that wait are not moved."""
        with self._lock:
            self._closed = True
            making = self._making
        if making is not None:
            wait([making], _CLOSES_WITHIN)
        if self._made is not None:
            _close(*self._made, timeout=timeout)


def _close(client: ProducerClient, transactions: Transactions, *, timeout: float) -> None:
    transactions.close(timeout)
    client.close(timeout)


def _warn(reason: str) -> None:
    log.warning("Records cannot be moved to other topics now. They wait, and are not handled. The reason: %s", reason)

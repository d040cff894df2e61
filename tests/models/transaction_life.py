"""The life of a producer's transactions as a table: its states, and the calls that each allows.

librdkafka keeps the state and refuses what is out of place. What is added here: a transaction of which a record could
not be handed over is failed, too. librdkafka never heard of that record, and would commit the others.
"""

from enum import StrEnum


class TransactionState(StrEnum):
    """A state of a producer with a `transactional.id`: it says what the producer may do next."""

    NEW = "new"
    """Made, and not initialised: an earlier producer with the same id may have a transaction open."""
    READY = "ready"
    """Initialised, and no transaction is open."""
    OPEN = "open"
    """In a transaction, to which records and offsets can be added."""
    COMMITTING = "committing"
    """A commit is under way that was not answered in time: it cannot be aborted any more, only be waited for."""
    FAILED = "failed"
    """In a transaction that can only be aborted."""
    FATAL = "fatal"
    """Fenced off by another producer with the same id, or given up by librdkafka: only a new producer goes on."""


class TransactionEvent(StrEnum):
    """A call, or what becomes of it."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SENT = "send"
    REFUSED = "a record is refused"
    COMMIT = "commit_transaction"
    COMMIT_UNANSWERED = "commit_transaction, unanswered"
    ABORT = "abort_transaction"
    ABORT_UNANSWERED = "abort_transaction, unanswered"
    FENCED = "fenced off"


_S, _E = TransactionState, TransactionEvent

TRANSACTION_TRANSITIONS = {
    (_S.NEW, _E.INIT): _S.READY,
    (_S.READY, _E.BEGIN): _S.OPEN,
    (_S.OPEN, _E.SENT): _S.OPEN,
    (_S.OPEN, _E.REFUSED): _S.FAILED,
    (_S.OPEN, _E.COMMIT): _S.READY,
    (_S.OPEN, _E.COMMIT_UNANSWERED): _S.COMMITTING,
    (_S.OPEN, _E.ABORT): _S.READY,
    (_S.OPEN, _E.ABORT_UNANSWERED): _S.FAILED,
    (_S.OPEN, _E.FENCED): _S.FATAL,
    (_S.COMMITTING, _E.COMMIT): _S.READY,
    (_S.COMMITTING, _E.COMMIT_UNANSWERED): _S.COMMITTING,
    (_S.FAILED, _E.ABORT): _S.READY,
    (_S.FAILED, _E.ABORT_UNANSWERED): _S.FAILED,
}
"""(state, event) -> the state after it; any other call is refused, and changes nothing."""

"""The life of an attempt as a table: the state after each event that changes one.

The drawing of docs/design/states.md is this table, and a test goes through it with public calls of the engine.
"""

from enum import StrEnum
from typing import Any

from headway.core.engine.attempt import Attempt
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.partition_states import PartitionState


class AttemptEvent(StrEnum):
    """An event in the life of an attempt."""

    RECEIVED_FIRST = "received at the head of its lane"
    RECEIVED_BEHIND = "received behind another record"
    RECEIVED_EARLY = "received before its time"
    TURN = "becomes the head"
    TURN_EARLY = "becomes the head before its time"
    TIME = "its time comes"
    TAKEN = "taken"
    TAKEN_ALONG = "taken in a batch"
    FINISHED = "reported done"
    RETRIED = "must be retried"
    LEAVES = "its partition is revoked"
    TAKEN_OUT = "taken out by an operator"
    GIVEN_UP = "abandoned, because its partition is revoked"
    LOST = "its partition is lost"


_S, _E = AttemptState, AttemptEvent

ATTEMPT_TRANSITIONS = {
    (_S.NEW, _E.RECEIVED_FIRST): _S.READY,
    (_S.NEW, _E.RECEIVED_BEHIND): _S.BEHIND,
    (_S.NEW, _E.RECEIVED_EARLY): _S.WAITING,
    (_S.BEHIND, _E.TURN): _S.READY,
    (_S.BEHIND, _E.TURN_EARLY): _S.WAITING,
    (_S.BEHIND, _E.TAKEN_ALONG): _S.RUNNING,
    (_S.WAITING, _E.TIME): _S.READY,
    (_S.READY, _E.TAKEN): _S.RUNNING,
    (_S.READY, _E.TAKEN_ALONG): _S.RUNNING,
    (_S.RUNNING, _E.FINISHED): _S.DONE,
    (_S.RUNNING, _E.RETRIED): _S.REPLACED,
    (_S.RUNNING, _E.GIVEN_UP): _S.STALE,
    (_S.RUNNING, _E.LOST): _S.STALE,
    **{(waits, _E.TAKEN_OUT): _S.DONE for waits in (_S.BEHIND, _S.WAITING, _S.READY)},
    (_S.STALE, _E.FINISHED): _S.DROPPED,
    (_S.STALE, _E.RETRIED): _S.DROPPED,
    **{(waits, event): _S.DROPPED for waits in (_S.BEHIND, _S.WAITING, _S.READY) for event in (_E.LEAVES, _E.LOST)},
}
"""(state, event) -> the state after it; any other event leaves an attempt as it is."""

NOT_STARTED = {_S.BEHIND, _S.WAITING, _S.READY}


def state_of(attempt: Attempt[Any]) -> AttemptState:
    """Return the state of an attempt, with what the end of its partition has made of it."""
    state, partition = attempt.state, attempt.assignment.state
    if state in NOT_STARTED and partition in (PartitionState.LEAVING, PartitionState.GONE):
        return AttemptState.DROPPED
    if state is AttemptState.RUNNING and partition is PartitionState.GONE:
        return AttemptState.STALE
    return state

"""The states in the life of an attempt.

Each `Attempt` holds its state. When an assignment ends, the states of its attempts are not changed, because the state
of the assignment then overrides them. The engine sets states directly, because this code runs for every record. The
table of events and states is a model in the tests (`tests/models/attempt_life.py`).
"""

from enum import StrEnum


class AttemptState(StrEnum):
    """A state of an attempt, from the arrival of its record to the end of the attempt."""

    NEW = "new"
    """The record has not been received yet."""
    BEHIND = "behind"
    """Another record is before it in its lane."""
    WAITING = "waiting"
    """The record is the head of its lane, but must wait for its time, for a permit, or for its batch to fill.
    """
    READY = "ready"
    """The record is the head of its lane, and its attempt may start."""
    RUNNING = "running"
    """The attempt has been taken to run, and its outcome has not been reported yet."""
    DONE = "done"
    """The attempt was reported as done."""
    REPLACED = "replaced"
    """The attempt was reported as failed. The next attempt, which is another `Attempt`, has taken its place."""
    STALE = "stale"
    """The attempt is still running, but was abandoned, or its partition was revoked. Its report only frees the slot."""
    DROPPED = "dropped"
    """The attempt will not run, or was reported too late. The record is delivered again, perhaps to another member."""

"""The states in the life of a work.

Each work holds its state. When a partition ends, its works are not visited: what their states mean then follows from
the state of the assignment. The hot path sets the states directly. The table of events and states is a model of the
tests (`tests/models/work_life.py`).
"""

from enum import StrEnum


class WorkState(StrEnum):
    """A state of a work, from its record's arrival to its end."""

    NEW = "new"
    """Not received yet."""
    BEHIND = "behind"
    """Behind another work of its lane."""
    WAITING = "waiting"
    """Head of its lane, but its time has not come, or its batch is not full."""
    READY = "ready"
    """Head of its lane, and may run."""
    RUNNING = "running"
    """Taken, and not reported yet."""
    DONE = "done"
    """Reported as done."""
    REPLACED = "replaced"
    """Reported as failed. The next attempt, which is another work, has taken its place."""
    STALE = "stale"
    """Still runs, but was abandoned, or its partition is gone. Its report only frees the slot."""
    DROPPED = "dropped"
    """Will not run, or was reported too late. The record is delivered again, perhaps to another member."""

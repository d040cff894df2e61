"""The states in the life of a work.

Each work holds its state. The end of a partition ends all its works at once, without a walk over them: what it makes of
their states follows from the assignment's. The hot path writes the states without a look-up; the table of the events
between them is a model of the tests (`tests/models/work_life.py`).
"""

from enum import StrEnum


class WorkState(StrEnum):
    """A place in the life of a work, from its record's arrival to its end."""

    NEW = "new"
    """Not received yet."""
    BEHIND = "behind"
    """Behind another work of its lane."""
    WAITING = "waiting"
    """First of its lane, and its time has not come."""
    READY = "ready"
    """First of its lane, and may run."""
    RUNNING = "running"
    """Taken, and not reported."""
    DONE = "done"
    """Reported as done."""
    REPLACED = "replaced"
    """Reported as failed: another work, the next attempt, has its place."""
    STALE = "stale"
    """Runs, and its partition is gone, or about to go: its report only frees the slot."""
    DROPPED = "dropped"
    """Will not run, or its report came too late: the record comes again, maybe elsewhere."""

"""The life of a partition in a consumer: its states, and the events that lead from one state to the next.

While a partition starts, `parallel/fetching.py` holds its state. After that, the engine's `Assignment` holds the state,
and changes it only through `after`. If the offsets of fetched records go back, a new assignment replaces the old one.
"""

from enum import StrEnum


class PartitionState(StrEnum):
    """A state of a partition in its consumer."""

    GONE = "gone"
    """The partition is not assigned to this member: it never was, or it was revoked or lost."""
    STARTING = "starting"
    """The partition is assigned to this member, but its committed offset is not known yet."""
    READING = "reading"
    """Records are fetched, and attempts start and run."""
    PAUSED = "paused"
    """No records are fetched, because the partition's share of memory is full or its offset map is too large.

    Attempts start and run.
    """
    LEAVING = "leaving"
    """The partition is about to be revoked. No attempts start. Running attempts can end, and are committed."""


class PartitionEvent(StrEnum):
    """An event in the life of a partition."""

    ASSIGNED = "assigned"
    BEGUN = "committed offset read"
    REWOUND = "offsets go back"
    FILLED = "memory or map is full"
    EASED = "there is buffer space again"
    REVOKED = "revocation begins"
    ENDED = "revoked or lost"


_S, _E = PartitionState, PartitionEvent

PARTITION_TRANSITIONS = {
    (_S.GONE, _E.ASSIGNED): _S.STARTING,
    (_S.STARTING, _E.BEGUN): _S.READING,
    (_S.STARTING, _E.ENDED): _S.GONE,
    (_S.READING, _E.REWOUND): _S.READING,
    (_S.READING, _E.FILLED): _S.PAUSED,
    (_S.READING, _E.REVOKED): _S.LEAVING,
    (_S.READING, _E.ENDED): _S.GONE,
    (_S.PAUSED, _E.REWOUND): _S.READING,
    (_S.PAUSED, _E.EASED): _S.READING,
    (_S.PAUSED, _E.REVOKED): _S.LEAVING,
    (_S.PAUSED, _E.ENDED): _S.GONE,
    (_S.LEAVING, _E.ENDED): _S.GONE,
}
"""The state that follows each pair of a state and an event. Other pairs cannot occur."""


def after(state: PartitionState, event: PartitionEvent) -> PartitionState:
    """Return the state after an event.

    >>> after(PartitionState.READING, PartitionEvent.FILLED)
    <PartitionState.PAUSED: 'paused'>
    """
    return PARTITION_TRANSITIONS[state, event]

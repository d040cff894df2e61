"""The life of a partition at a consumer: its states, and the events that lead from one to the next.

While a partition starts, `parallel/fetching.py` holds its state. After that the engine's `Assignment` does, and changes
it only through `after`. If offsets go back, a new assignment replaces the old one.
"""

from enum import StrEnum


class PartitionState(StrEnum):
    """A state of a partition at its consumer."""

    GONE = "gone"
    """Not assigned to this member: never assigned, or revoked."""
    STARTING = "starting"
    """Assigned to this member, but the committed offset has not been read yet."""
    READING = "reading"
    """Fetched, and its works run."""
    PAUSED = "paused"
    """Not fetched, because its share of memory is full or its offset map is too large. Its works run."""
    LEAVING = "leaving"
    """About to be revoked. No works start, running works can end, and works that are done are committed."""


class PartitionEvent(StrEnum):
    """An event in the life of a partition."""

    ASSIGNED = "assigned"
    BEGUN = "committed offset read"
    REWOUND = "offsets go back"
    FILLED = "memory or map is full"
    EASED = "there is buffer space again"
    REVOKED = "to be revoked"
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
"""(state, event) -> the state after it."""


def after(state: PartitionState, event: PartitionEvent) -> PartitionState:
    """Return the state after an event.

    >>> after(PartitionState.READING, PartitionEvent.FILLED)
    <PartitionState.PAUSED: 'paused'>
    """
    return PARTITION_TRANSITIONS[state, event]

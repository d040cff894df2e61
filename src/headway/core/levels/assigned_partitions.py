"""The life of a partition in a member of a group: its states, and the events that lead from one state to the next.

`kafka/consumer/membership.py` makes Kafka's client act on the states. When the offset to start at is known, that module
makes the client read the partition. If the log does not have the next offset, the module determines another offset to
continue at.
"""

from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

P = TypeVar("P")


class AssignmentState(StrEnum):
    """A state of a partition in a member."""

    ABSENT = "absent"
    """The partition is not assigned to this member."""
    STARTING = "starting"
    """The partition is assigned, but the offset to start at is not known."""
    READY = "ready"
    """The offset to start at is known, but the client does not read the partition yet."""
    READING = "reading"
    """The client reads the partition, or has paused it."""
    ADRIFT = "adrift"
    """The client has stopped reading the partition, because the log does not have the next offset."""


class AssignmentEvent(StrEnum):
    """An event in the life of a partition in a member."""

    ASSIGNED = "assigned"
    LOCATED = "start is known"
    SOUGHT = "a seek sets the start"
    BEGUN = "the client begins to read the partition"
    LOST_ITS_PLACE = "the log does not have the next offset"
    FOUND_A_PLACE = "an offset to continue at is found"
    STOPPED = "reading stops until a seek"
    ENDED = "revoked or lost"


_S, _E = AssignmentState, AssignmentEvent

ASSIGNMENT_TRANSITIONS = {
    (_S.ABSENT, _E.ASSIGNED): _S.STARTING,
    (_S.STARTING, _E.LOCATED): _S.READY,
    (_S.STARTING, _E.SOUGHT): _S.READY,
    (_S.STARTING, _E.ENDED): _S.ABSENT,
    (_S.READY, _E.SOUGHT): _S.READY,
    (_S.READY, _E.BEGUN): _S.READING,
    (_S.READY, _E.ENDED): _S.ABSENT,
    (_S.READING, _E.SOUGHT): _S.READING,
    (_S.READING, _E.LOST_ITS_PLACE): _S.ADRIFT,
    (_S.READING, _E.ENDED): _S.ABSENT,
    (_S.ADRIFT, _E.FOUND_A_PLACE): _S.READY,
    (_S.ADRIFT, _E.SOUGHT): _S.READY,
    (_S.ADRIFT, _E.STOPPED): _S.STARTING,
    (_S.ADRIFT, _E.ENDED): _S.ABSENT,
}
"""The state that follows each pair of a state and an event. A pair that is not listed changes nothing."""


@dataclass(slots=True)
class _Assigned:
    state: AssignmentState = _S.STARTING
    start: int | None = None  # the offset at which reading starts, or has started; a seek changes this offset


class AssignedPartitions(Generic[P]):
    """The partitions that are assigned to a member, each with its state and its start offset.

    An event that `ASSIGNMENT_TRANSITIONS` does not list for a partition's state changes nothing.
    """

    def __init__(self) -> None:
        self._assigned: dict[P, _Assigned] = {}
        self.ready: set[P] = set()
        """The partitions that the client can begin to read."""
        self.adrift: dict[P, int] = {}
        """The partitions that have lost their place, each with the missing offset."""

    @property
    def all(self) -> KeysView[P]:
        """The assigned partitions, as a live view."""
        return self._assigned.keys()

    def state_of(self, partition: P) -> AssignmentState:
        """Return the state of a partition."""
        found = self._assigned.get(partition)
        return _S.ABSENT if found is None else found.state

    def begun(self, among: Iterable[P] | None = None) -> list[P]:
        """Return the partitions that the client has begun to read.

        With `among`, only the given partitions are checked.
        """
        of_these = self._assigned if among is None else [each for each in among if each in self._assigned]
        return [each for each in of_these if self._assigned[each].state in (_S.READING, _S.ADRIFT)]

    def without_start(self) -> list[P]:
        """Return the partitions whose start offset is not known."""
        return [partition for partition, about in self._assigned.items() if about.start is None]

    def starts(self, partitions: Iterable[P]) -> dict[P, int]:
        """Return the start offset of each of these partitions whose start is known."""
        known = ((each, self._assigned[each].start) for each in partitions if each in self._assigned)
        return {each: start for each, start in known if start is not None}

    def assign(self, partitions: Iterable[P]) -> None:
        """Add newly assigned partitions. Partitions that are already assigned do not change."""
        for partition in partitions:
            self._assigned.setdefault(partition, _Assigned())

    def locate(self, starts: Mapping[P, int]) -> list[P]:
        """Set the start offset of each of these partitions that waits for one. Returns the partitions that waited."""
        waiting = [partition for partition in starts if self._after(partition, _E.LOCATED)]
        self.note_starts({partition: starts[partition] for partition in waiting})
        return waiting

    def seek(self, partition: P, offset: int) -> None:
        """Record that a seek sets the start of a partition to this offset."""
        self._after(partition, _E.SOUGHT)
        self.note_starts({partition: offset})

    def note_starts(self, starts: Mapping[P, int]) -> None:
        """Set the start offsets of partitions without changing their states."""
        for partition, offset in starts.items():
            if about := self._assigned.get(partition):
                about.start = offset

    def begin(self, partitions: Iterable[P]) -> None:
        """Record that the client has begun to read these partitions at their start offsets."""
        for partition in list(partitions):
            self._after(partition, _E.BEGUN)

    def lose_places(self, offsets: Mapping[P, int]) -> None:
        """Record that the logs of these partitions do not have the offsets that must be read next."""
        for partition, offset in offsets.items():
            if self._after(partition, _E.LOST_ITS_PLACE):
                self.adrift[partition] = offset

    def place(self, partition: P, offset: int | None) -> None:
        """Make a partition that has lost its place continue at an offset, or wait for a seek if the offset is None."""
        if self._after(partition, _E.STOPPED if offset is None else _E.FOUND_A_PLACE):
            self._assigned[partition].start = offset

    def end(self, partitions: Iterable[P]) -> None:
        """Forget partitions that were revoked or lost."""
        for partition in list(partitions):
            self._after(partition, _E.ENDED)

    def _after(self, partition: P, event: AssignmentEvent) -> bool:
        """Change the state of a partition after an event. Returns False if the event changes nothing in this state."""
        state = ASSIGNMENT_TRANSITIONS.get((self.state_of(partition), event))
        if state is None:
            return False
        if state is _S.ABSENT:
            del self._assigned[partition]
        else:
            self._assigned[partition].state = state
        (self.ready.add if state is _S.READY else self.ready.discard)(partition)
        self.adrift.pop(partition, None)
        return True

"""The life of a partition at a member of a group: its states, and the events that lead from one to the next.

`kafka/consumer/membership.py` has Kafka's client do what the states say: read a partition once its start is known, and
find another place for one whose log no longer has the offset to be read next.
"""

from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

P = TypeVar("P")


class AssignmentState(StrEnum):
    """A state of a partition at a member."""

    ABSENT = "absent"
    """Not assigned to this member."""
    STARTING = "starting"
    """Assigned; the offset at which it begins is not known."""
    READY = "ready"
    """The offset is known; the client does not read the partition yet."""
    READING = "reading"
    """The client reads it, or has paused it."""
    ADRIFT = "adrift"
    """The client has stopped, because the log does not have the next offset."""


class AssignmentEvent(StrEnum):
    """An event in the life of a partition at a member."""

    ASSIGNED = "assigned"
    LOCATED = "start is known"
    SOUGHT = "sought"
    BEGUN = "the client reads it"
    LOST_ITS_PLACE = "the log lacks its offset"
    FOUND_A_PLACE = "an offset to go on at is known"
    STOPPED = "must not go on by itself"
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
"""(state, event) -> the state after it."""


@dataclass(slots=True)
class _Assigned:
    state: AssignmentState = _S.STARTING
    start: int | None = None  # the offset at which it began, or was sought last


class AssignedPartitions(Generic[P]):
    """The partitions of a member, the state of each, and the offset at which it begins or began.

    An event that has no arrow from a partition's state changes nothing.
    """

    def __init__(self) -> None:
        self._assigned: dict[P, _Assigned] = {}
        self.ready: set[P] = set()
        """The partitions that the client can begin to read."""
        self.adrift: dict[P, int] = {}
        """The partitions that have lost their place, each with the offset that its log lacks."""

    @property
    def all(self) -> KeysView[P]:
        """The assigned partitions, as a live view."""
        return self._assigned.keys()

    def state_of(self, partition: P) -> AssignmentState:
        """Return the state of a partition."""
        found = self._assigned.get(partition)
        return _S.ABSENT if found is None else found.state

    def begun(self, among: Iterable[P] | None = None) -> list[P]:
        """Return the partitions that the client was told to read, of these or of all."""
        of_these = self._assigned if among is None else [each for each in among if each in self._assigned]
        return [each for each in of_these if self._assigned[each].state in (_S.READING, _S.ADRIFT)]

    def without_start(self) -> list[P]:
        """Return the partitions whose start is not known."""
        return [partition for partition, about in self._assigned.items() if about.start is None]

    def starts(self, partitions: Iterable[P]) -> dict[P, int]:
        """Return the known starts of these partitions."""
        known = ((each, self._assigned[each].start) for each in partitions if each in self._assigned)
        return {each: start for each, start in known if start is not None}

    def assign(self, partitions: Iterable[P]) -> None:
        """Take partitions in; those that are there already stay as they are."""
        for partition in partitions:
            self._assigned.setdefault(partition, _Assigned())

    def locate(self, starts: Mapping[P, int]) -> list[P]:
        """Note the offsets at which partitions start; return the partitions that were waiting for that."""
        waiting = [partition for partition in starts if self._after(partition, _E.LOCATED)]
        self.note_starts({partition: starts[partition] for partition in waiting})
        return waiting

    def seek(self, partition: P, offset: int) -> None:
        """Record that a seek moves a partition's start to this offset."""
        self._after(partition, _E.SOUGHT)
        self.note_starts({partition: offset})

    def note_starts(self, starts: Mapping[P, int]) -> None:
        """Note the offsets from which partitions are read on, without changing their state."""
        for partition, offset in starts.items():
            if about := self._assigned.get(partition):
                about.start = offset

    def begin(self, partitions: Iterable[P]) -> None:
        """Record that the client reads these partitions from their starts on."""
        for partition in list(partitions):
            self._after(partition, _E.BEGUN)

    def lose_places(self, offsets: Mapping[P, int]) -> None:
        """Record that the logs do not have these offsets, at which reading should go on."""
        for partition, offset in offsets.items():
            if self._after(partition, _E.LOST_ITS_PLACE):
                self.adrift[partition] = offset

    def place(self, partition: P, offset: int | None) -> None:
        """Have a partition that has lost its place go on at an offset; with None it waits for a seek."""
        if self._after(partition, _E.STOPPED if offset is None else _E.FOUND_A_PLACE):
            self._assigned[partition].start = offset

    def end(self, partitions: Iterable[P]) -> None:
        """Forget partitions that were revoked or lost."""
        for partition in list(partitions):
            self._after(partition, _E.ENDED)

    def _after(self, partition: P, event: AssignmentEvent) -> bool:
        """Change the state of a partition by an event; return whether there is an arrow for it."""
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

"""The records of a partition that wait, while an operator takes some of them out of their lanes.

Invariants: while the lanes are open, their waiting heads are in no queue, so none of them can start. Taking a record
out does not change the order of the others in its lane. A record whose attempt is running is never taken out.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.lanes import ALONE

R = TypeVar("R")

_NOT_STARTED = {AttemptState.READY, AttemptState.BEHIND, AttemptState.WAITING}


class OpenLanes(Generic[R]):
    """The received records of one assignment that are not done, lane by lane.

    Args:
        assignment: The assignment.
        heads: The heads of its lanes that have not started.
        running: Its running attempts.
    """

    def __init__(self, assignment: Assignment[R], heads: Iterable[Attempt[R]], running: Iterable[Attempt[R]]) -> None:
        self.assignment = assignment
        self._heads = dict.fromkeys(heads)
        self._chains: dict[int, list[Attempt[R]]] = {}  # the chain of attempts that contains each offset
        self._by_lane: dict[Hashable, list[Attempt[R]]] = {}
        for first in dict.fromkeys([*self._heads, *map(_first_of, running)]):
            chain = _chain(first)
            self._chains.update((attempt.offset, chain) for attempt in chain)
            self._by_lane[first.lane] = chain

    @property
    def heads(self) -> Collection[Attempt[R]]:
        """The heads of lanes that have not started."""
        return self._heads

    def find(self, offset: int) -> Attempt[R] | None:
        """Return the attempt at the record with this offset, or None if its record is done or was not received."""
        chain = self._chains.get(offset, ())
        return next((attempt for attempt in chain if attempt.offset == offset and self._is_to_do(attempt)), None)

    def has_started(self, attempt: Attempt[R]) -> bool:
        """Return whether the attempt has started, so that its record cannot be taken out."""
        return attempt.state not in _NOT_STARTED

    def before(self, attempt: Attempt[R]) -> Sequence[Attempt[R]]:
        """Return the attempts for which this attempt waits, in order."""
        chain = self._chains[attempt.offset]
        return [each for each in chain[: chain.index(attempt)] if self._is_to_do(each)]

    def after(self, attempt: Attempt[R]) -> Sequence[Attempt[R]]:
        """Return the attempts that wait for this attempt, in order."""
        chain = self._chains[attempt.offset]
        return [each for each in chain[chain.index(attempt) + 1 :] if self._is_to_do(each)]

    def in_lane(self, lane: Hashable) -> Sequence[Attempt[R]]:
        """Return the attempts of the lane with this name, in order."""
        chain = () if lane is ALONE else self._by_lane.get(lane, ())
        return [attempt for attempt in chain if self._is_to_do(attempt)]

    def take_out(self, attempt: Attempt[R]) -> None:
        """Remove a record that has not started from its lane, and forget it."""
        chain = self._chains.pop(attempt.offset)
        index = chain.index(attempt)
        lanes = self.assignment.lanes
        if attempt in self._heads:
            del self._heads[attempt]
            if (following := lanes.advance(attempt, ())) is not None:
                self._heads[following] = None
        else:
            lanes.take_out(attempt, chain[index - 1])
        del chain[index]

    def _is_to_do(self, attempt: Attempt[R]) -> bool:
        return not self.assignment.progress.is_done(attempt.offset)


def _first_of(running: Attempt[R]) -> Attempt[R]:
    """Return the first attempt of the lane of a running attempt."""
    return running.batch.attempts[0] if running.batch is not None and running.lane is not ALONE else running


def _chain(first: Attempt[R]) -> list[Attempt[R]]:
    chain = [first]
    while (following := chain[-1].next) is not None:
        chain.append(following)
    return chain

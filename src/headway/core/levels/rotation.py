"""Turns: who comes next of several that have something to give.

Invariants: a member that has something waits for at most two turns of each other member. One that had nothing goes
first, once in a round: so a quiet member does not wait behind many busy ones, and cannot hold them up either. (RFC 8290
does so with flows of packets, in section 4.2.)
"""

from collections import deque
from typing import Generic, Protocol, TypeVar


class Member(Protocol):
    """A topic or a partition that takes turns."""

    in_rotation: bool

    @property
    def ready(self) -> int:
        """Return how many works it has to give."""
        ...


M = TypeVar("M", bound=Member)


class Rotation(Generic[M]):
    """Members that take turns; those without ready works leave when their turn comes."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: deque[M] = deque()
        self._old: deque[M] = deque()

    def __len__(self) -> int:
        """Return how many members take part; some may have left nothing."""
        return len(self._new) + len(self._old)

    def join(self, member: M) -> None:
        """Let a member take part, first of all, unless it still does."""
        if not member.in_rotation:
            member.in_rotation = True
            self._new.append(member)

    def current(self) -> M:
        """Return the member whose turn it is; one must have ready works."""
        new, old = self._new, self._old
        while True:
            members = new or old
            if members[0].ready:
                return members[0]
            members.popleft().in_rotation = False

    def begin_turn(self) -> M:
        """Return the member whose turn it is. It stays, so that it does not go first again in this round."""
        new, old = self._new, self._old
        if not new and old[0].ready:
            if len(old) > 1:
                old.rotate(-1)
            return old[-1]
        member = self.current()
        old.append((new or old).popleft())
        return member

    def is_alone(self) -> bool:
        """Return whether the current member has nobody else to wait for."""
        return len(self) == 1

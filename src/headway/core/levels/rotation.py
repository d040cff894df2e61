"""Round robin among several members that have work, with new ones going first.

Invariants: a member that has work waits for at most two turns of each other member. A member that had none goes first,
once in a round, so that a quiet member does not wait behind many busy ones but cannot hold them up either. (RFC 8290
does this with flows of packets, in section 4.2.)
"""

from collections import deque
from typing import Generic, Protocol, TypeVar


class Rotating(Protocol):
    """A topic or a partition that takes turns."""

    in_rotation: bool

    @property
    def ready(self) -> int:
        """The number of works that it has ready."""
        ...


M = TypeVar("M", bound=Rotating)


class Rotation(Generic[M]):
    """Members that take turns. Those without ready work leave when their turn comes."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: deque[M] = deque()
        self._old: deque[M] = deque()

    def __len__(self) -> int:
        """Return how many members take part. Some may have nothing left."""
        return len(self._new) + len(self._old)

    def join(self, member: M) -> None:
        """Let a member take part, ahead of all others, unless it already does."""
        if not member.in_rotation:
            member.in_rotation = True
            self._new.append(member)

    def current(self) -> M:
        """Return the member whose turn it is. At least one must have ready work."""
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
        """Return whether the current member is the only one."""
        return len(self) == 1

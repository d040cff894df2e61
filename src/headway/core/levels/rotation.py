"""Round robin among topics or partitions, called members. A member that gets attempts after it had none goes first.

Invariants: a member that has ready attempts waits for at most two turns of each other member. A member that had no
ready attempts goes first, but only once per round. So a quiet member does not wait behind many busy members, and cannot
delay them either. (RFC 8290, section 4.2, treats flows of packets in the same way.)
"""

from collections import deque
from typing import Generic, Protocol, TypeVar


class Rotating(Protocol):
    """A topic or a partition that takes turns."""

    in_rotation: bool

    @property
    def ready(self) -> int:
        """The number of ready attempts of this topic or partition."""
        ...


M = TypeVar("M", bound=Rotating)


class Rotation(Generic[M]):
    """Members that take turns. A member without ready attempts leaves the rotation when its turn comes."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: deque[M] = deque()
        self._old: deque[M] = deque()

    def __len__(self) -> int:
        """Return the number of members in the rotation. Some of these members may have no ready attempts."""
        return len(self._new) + len(self._old)

    def join(self, member: M) -> None:
        """Add a member, unless it is already in the rotation. Members that have had a turn come after it."""
        if not member.in_rotation:
            member.in_rotation = True
            self._new.append(member)

    def current(self) -> M:
        """Return the member whose turn it is. At least one member must have ready attempts."""
        new, old = self._new, self._old
        while True:
            members = new or old
            if members[0].ready:
                return members[0]
            members.popleft().in_rotation = False

    def begin_turn(self) -> M:
        """Return the member whose turn it is, and move it to the end of the round."""
        new, old = self._new, self._old
        if not new and old[0].ready:
            if len(old) > 1:
                old.rotate(-1)
            return old[-1]
        member = self.current()
        old.append((new or old).popleft())
        return member

    def is_alone(self) -> bool:
        """Return whether only one member is in the rotation."""
        return len(self) == 1

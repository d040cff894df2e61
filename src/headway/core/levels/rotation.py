"""Round robin among topics or partitions, called members. A member that gets attempts after it had none goes first.

Invariants: a member that has ready attempts waits for at most two turns of each other member. A member that had no
ready attempts goes first, but only once per round. So a quiet member does not wait behind many busy members, and cannot
delay them either. (RFC 8290, section 4.2, treats flows of packets in the same way.)
"""

from collections import deque
from typing import Any, Generic, Protocol, TypeVar


class Rotating(Protocol):
    """A topic or a partition that takes turns."""

    in_rotation: bool

    @property
    def ready(self) -> int:
        """The number of ready attempts of this topic or partition."""
        ...


M = TypeVar("M", bound=Rotating)

_NOBODY: deque[Any] = deque()  # the members of all rotations that have had at most one member; it stays empty


class Rotation(Generic[M]):
    """Members that take turns. A member without ready attempts leaves the rotation when its turn comes."""

    __slots__ = ("_is_new", "_new", "_old", "_only")

    def __init__(self) -> None:
        # Most rotations never have a second member: one topic, or a tenant with a single record. With thousands of such
        # tenants, two deques of 620 bytes for each rotation would take more time than the turns themselves.
        self._only: M | None = None  # the only member so far; None before the first member and from the second on
        self._is_new = True  # whether the only member has had no turn yet
        self._new: deque[M] = _NOBODY
        self._old: deque[M] = _NOBODY

    def __len__(self) -> int:
        """Return the number of members in the rotation. Some of these members may have no ready attempts."""
        return 1 if self._only is not None else len(self._new) + len(self._old)

    def join(self, member: M) -> None:
        """Add a member, unless it is already in the rotation. Members that have had a turn come after it."""
        if member.in_rotation:
            return
        member.in_rotation = True
        if self._new is not _NOBODY:
            self._new.append(member)
        elif self._only is None:
            self._only = member
        else:
            self._new, self._old = deque(), deque()
            (self._new if self._is_new else self._old).append(self._only)
            self._new.append(member)
            self._only = None

    def current(self) -> M:
        """Return the member whose turn it is. At least one member must have ready attempts."""
        if self._only is not None:
            return self._only
        new, old = self._new, self._old
        while True:
            members = new or old
            if members[0].ready:
                return members[0]
            members.popleft().in_rotation = False

    def begin_turn(self) -> M:
        """Return the member whose turn it is, and move it to the end of the round."""
        if self._only is not None:
            self._is_new = False
            return self._only
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

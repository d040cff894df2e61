"""What was delivered a short while ago, so that who asks for it need not wait until nothing else can come."""

from collections import deque

_MOST = 20_000


class Recent:
    """The ids of the latest deliveries, so many at the most."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._order: deque[str] = deque()

    def add(self, id_: str) -> None:
        """A schedule was delivered, and does not recur."""
        if id_ in self._ids:
            return
        self._ids.add(id_)
        self._order.append(id_)
        if len(self._order) > _MOST:
            self._ids.discard(self._order.popleft())

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ids

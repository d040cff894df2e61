"""Remembers the latest deliveries, so that commands for them are answered without waiting for later records."""

_AT_LEAST = 20_000


class RecentDeliveries:
    """The ids of the latest deliveries: at least `_AT_LEAST`, and at most twice as many."""

    def __init__(self) -> None:
        self._latest: set[str] = set()
        self._before: set[str] = set()

    def add(self, id_: str) -> None:
        """Note that a schedule was delivered, and does not recur."""
        self._latest.add(id_)
        if len(self._latest) > _AT_LEAST:
            self._before, self._latest = self._latest, set()

    def __contains__(self, id_: str) -> bool:
        return id_ in self._latest or id_ in self._before

"""Decides when a member that died is restarted, and when the supervisor gives up."""

from headway.core.retry import exponential_backoff

MOST_DEATHS = 5
# How long a member must run to count as healthy, in seconds. This is longer than a session timeout, because a new
# member can wait for a whole session timeout while its group still expects the killed member.
_HEALTHY_AFTER = 120.0
_delay = exponential_backoff(first=0.5, longest=30.0)


class RestartPolicy:
    """Counts how often in a row one member has died soon after its start.

    Deaths while records were running make the next wait longer, but are not a reason to give up. Such deaths stop on
    their own, because a record that kills its process eventually becomes a dead letter.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._without_cause = 0

    def delay(self, lived: float, *, by_records: bool = False) -> float | None:
        """Return how many seconds to wait before the next start, or None to give up.

        `lived` is how many seconds the member ran. `by_records` is True if records were running when the member died.
        """
        if lived >= _HEALTHY_AFTER:
            self._in_a_row = self._without_cause = 0
        self._in_a_row += 1
        self._without_cause = 0 if by_records else self._without_cause + 1
        return None if self._without_cause >= MOST_DEATHS else _delay(self._in_a_row, 0.0)

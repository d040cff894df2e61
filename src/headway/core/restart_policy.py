"""Decides when a member that died is started again, and when to give up; the caller passes the time."""

from headway.core.retry import exponential_backoff

MOST_DEATHS = 5
_WELL_AFTER = (
    120.0  # seconds, longer than a group waits for a killed member: such a wait must not count as a healthy life
)
_delay = exponential_backoff(first=0.5, longest=30.0)


class RestartPolicy:
    """Counts the deaths in a row of one member, each after a short life.

    A death while records were running only makes the wait longer. Such deaths come to an end by themselves, because
    records that kill their process are set aside.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._without_cause = 0

    def delay(self, lived: float, *, by_records: bool = False) -> float | None:
        """Return how many seconds to wait before the next start; None means to give up."""
        if lived >= _WELL_AFTER:
            self._in_a_row = self._without_cause = 0
        self._in_a_row += 1
        self._without_cause = 0 if by_records else self._without_cause + 1
        return None if self._without_cause >= MOST_DEATHS else _delay(self._in_a_row, 0.0)

"""When a member that died is started again, and when not any more; time is an argument."""

from headway.core.retry import exponential

MOST_DEATHS = 5
_WELL_AFTER = 120.0  # longer than a group waits for a member that was killed, so that such a wait is not a good life
_delay = exponential(first=0.5, longest=30.0)


class Deaths:
    """The deaths in a row of one member, each after a short life."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def delay(self, lived: float) -> float | None:
        """How many seconds to wait before the next start; None to give up."""
        self._in_a_row = 1 if lived >= _WELL_AFTER else self._in_a_row + 1
        return None if self._in_a_row >= MOST_DEATHS else _delay(self._in_a_row, 0.0)

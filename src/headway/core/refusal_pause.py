"""A growing pause after calls that Kafka refuses, for example because the client is not authorized to write to a topic.

Invariants: no call is tried during a back-off. The back-off doubles with each refusal in a row, up to a bound. If
several concurrent calls are refused, they count as one refusal. The first refusal is logged as a warning. After that,
at most one refusal is logged every `_WARN_EVERY` seconds.
"""

import math

from headway.core.retry import exponential_backoff

# All constants are in seconds.
_FIRST_BACK_OFF = 0.2
_LONGEST_BACK_OFF = 10.0
_WARN_EVERY = 10.0
_IN_A_ROW = 2 * _LONGEST_BACK_OFF  # if a back-off ended longer ago than this, the next refusal counts as the first


class RefusalPause:
    """Decides how long callers must wait while calls are refused: at most `longest` at a time.

    All times are in seconds.

    >>> pause = RefusalPause()
    >>> pause.refused(100.0, random_number=0.0), pause.allows(100.1), pause.allows(100.2)
    (True, False, True)
    >>> pause.refused(100.2, random_number=0.0), pause.allows(100.5), pause.allows(100.7)
    (False, False, True)
    """

    def __init__(self, longest: float = _LONGEST_BACK_OFF) -> None:
        self._back_off = exponential_backoff(_FIRST_BACK_OFF, longest=longest)
        self.again_at = -math.inf
        self._refusals = 0  # the number of refusals in a row
        self._warned_at = -math.inf

    def allows(self, now: float) -> bool:
        """Return whether a call may be tried now."""
        return now >= self.again_at

    def refused(self, now: float, random_number: float) -> bool:
        """Record that a call was refused, and return whether to log a warning.

        A random number from 0 to 1 shortens the back-off, so that clients that are refused at the same time do not all
        retry at the same time.
        """
        if self.allows(now):
            in_a_row = now - self.again_at < _IN_A_ROW
            self._refusals = self._refusals + 1 if in_a_row else 1
            self.again_at = now + self._back_off(self._refusals, random_number)
        is_due = now - self._warned_at >= _WARN_EVERY
        if is_due:
            self._warned_at = now
        return is_due

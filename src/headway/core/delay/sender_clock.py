"""Corrects a sender's wall clock so that delays count by the brokers' clock.

A broker stamps a record after the record is sent and before it is acknowledged. So each timestamp gives a lower and an
upper bound for the difference between the broker's clock and this machine's monotonic clock. While the wall clock is
within the bounds, it is used unchanged, because it is exact if the clocks are synchronised.

Invariants: unless the brokers' clock jumps, a corrected time is not behind that clock. The bounds come from the latest
observations that agree with each other. After a jump of the brokers' clock, the bounds come from the next observation
alone.
"""

import math

_DRIFT = 1e-4  # two clocks drift apart more slowly than this


class SenderClock:
    """Computes how far this machine's wall clock is behind the brokers' clock, from timestamps of acknowledged records.

    >>> clock = SenderClock()
    >>> clock.observe(timestamp=50_000, sent=7.0, acknowledged=7.004)
    >>> clock.correction(monotonic=7.01, wall=50.007)
    0
    >>> clock.correction(monotonic=7.01, wall=20.007)
    30005
    """

    def __init__(self) -> None:
        # The lower and upper bound of (brokers' time - monotonic time) in ms, and the monotonic time of the last
        # observation. The three numbers are assigned as one tuple, because another thread can read them at any time.
        self._known = -math.inf, math.inf, 0.0

    def observe(self, timestamp: int, sent: float, acknowledged: float) -> None:
        """Tighten the bounds with the result of one observation.

        An observation consists of a broker's timestamp, and of the monotonic times when the record was sent and
        acknowledged.
        """
        least, most = timestamp - acknowledged * 1000, timestamp + 1 - sent * 1000
        before = self._bounds(acknowledged)
        if before[0] <= most and least <= before[1]:  # otherwise, a clock was set and the earlier bounds are void
            least, most = max(least, before[0]), min(most, before[1])
        self._known = least, most, acknowledged

    def correction(self, monotonic: float, wall: float) -> int:
        """Return the milliseconds to add to the wall clock's time, which is given in seconds.

        The correction is 0 while the wall clock is within the bounds.
        """
        own = (wall - monotonic) * 1000
        least, most = self._bounds(monotonic)
        return 0 if least <= own <= most else math.ceil(most - own)

    def _bounds(self, monotonic: float) -> tuple[float, float]:
        least, most, at = self._known
        drift = max(0.0, monotonic - at) * 1000 * _DRIFT
        return least - drift, most + drift

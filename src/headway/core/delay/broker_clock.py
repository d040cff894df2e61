"""The brokers' clock, inferred from the timestamps that brokers give to records.

Due times are wall-clock times, and the promise never to deliver early is measured by the brokers' timestamps. This
machine's own wall clock can jump; its monotonic clock cannot. So this module computes the brokers' time as the
monotonic clock plus an offset. Each acknowledged write gives a lower bound of this offset, because the broker stamps
the record before the acknowledgement arrives.

Invariants: unless the brokers' clock is set back, `now` is ahead of that clock by at most the drift that builds up
between two clocks in two periods of `_REMEMBERED` seconds. If the brokers' clock jumps in either direction, the next
observation corrects `now`.
"""

import math

# How long a period of observations lasts, in seconds. A clock that is fast by one part in ten thousand gains 1 ms in
# that time.
_REMEMBERED = 10.0


class BrokerClock:
    """Derives the brokers' time, in milliseconds since the epoch, from this machine's monotonic time in seconds.

    >>> clock = BrokerClock()
    >>> clock.observe(timestamp=50_000, sent=7.0, acknowledged=7.004)
    >>> clock.now(8.0)
    50996
    """

    def __init__(self) -> None:
        # The highest lower bounds of the offset: one for the current period, and one for the period before it.
        self._offset = self._before = -math.inf
        self._since = -math.inf
        self._observed = -math.inf

    @property
    def is_set(self) -> bool:
        """True if there has been an observation, so that `now` can be called."""
        return self._offset > -math.inf

    def age(self, monotonic: float) -> float:
        """Return how many seconds have passed since the last observation."""
        return monotonic - self._observed

    def observe(self, timestamp: int, sent: float, acknowledged: float) -> None:
        """Update the offset from a record's timestamp and the times when the record was sent and acknowledged.

        A broker sets the timestamp; the other two times are monotonic times of this machine.
        """
        lowest = timestamp - acknowledged * 1000
        highest = timestamp + 1 - sent * 1000
        self._observed = acknowledged
        offset, before = self._offset, self._before
        if highest < max(offset, before):  # the clock was set back
            offset = before = -math.inf
        if acknowledged - self._since > _REMEMBERED:
            self._since, before, offset = acknowledged, offset, -math.inf
        # The attributes are assigned only here, after all decisions, because another thread may call `now` at any time.
        self._offset, self._before = max(offset, lowest), before

    def now(self, monotonic: float) -> int:
        """Return the latest time that the brokers' clock has certainly reached.

        Raises `ValueError` if there has been no observation.
        """
        if not self.is_set:
            raise ValueError("The brokers' time is not known yet: no broker has acknowledged a record.")
        return math.floor(monotonic * 1000 + max(self._offset, self._before))

    def monotonic_at(self, timestamp: int) -> float:
        """Return the monotonic time at which the brokers' clock reaches a timestamp."""
        return (timestamp - max(self._offset, self._before)) / 1000

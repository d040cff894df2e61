"""The brokers' clock, inferred from their timestamps.

Due times are wall-clock times, and "never early" is measured by the brokers' timestamps. This machine's own wall clock
can jump; its monotonic clock cannot. So the time is the monotonic clock plus an offset, for which each acknowledged
write gives a bound: when the acknowledgement arrived, the broker's clock was past the record's timestamp.

Invariants: unless the brokers' clock is set back, `now` is ahead of it by no more than two clocks drift apart in
`_REMEMBERED` seconds. After a jump in either direction, the next observation corrects it.
"""

import math

_REMEMBERED = 10.0  # seconds; a clock that is fast by one part in ten thousand gains 1 ms in that time


class BrokerClock:
    """The brokers' time in milliseconds since the epoch, derived from a monotonic time in seconds.

    >>> clock = BrokerClock()
    >>> clock.observe(timestamp=50_000, sent=7.0, acknowledged=7.004)
    >>> clock.now(8.0)
    50996
    """

    def __init__(self) -> None:
        # The highest lower bound of the offset, in the current period and in the one before it.
        self._offset = self._before = -math.inf
        self._since = -math.inf
        self._observed = -math.inf

    @property
    def is_set(self) -> bool:
        """True once there has been an observation."""
        return self._offset > -math.inf

    def age(self, monotonic: float) -> float:
        """Return how many seconds ago the last observation was."""
        return monotonic - self._observed

    def observe(self, timestamp: int, sent: float, acknowledged: float) -> None:
        """Record that a broker stamped a record that was sent and acknowledged at these monotonic times."""
        lowest = timestamp - acknowledged * 1000
        highest = timestamp + 1 - sent * 1000
        self._observed = acknowledged
        offset, before = self._offset, self._before
        if highest < max(offset, before):  # the clock was set back
            offset = before = -math.inf
        if acknowledged - self._since > _REMEMBERED:
            self._since, before, offset = acknowledged, offset, -math.inf
        # Both are set at the end, because another thread may call `now` in the meantime.
        self._offset, self._before = max(offset, lowest), before

    def now(self, monotonic: float) -> int:
        """Return the latest time that the brokers' clock has certainly reached.

        Raises `ValueError` if none is known.
        """
        if not self.is_set:
            raise ValueError("The brokers' clock is not known yet.")
        return math.floor(monotonic * 1000 + max(self._offset, self._before))

    def monotonic_at(self, timestamp: int) -> float:
        """Return the monotonic time at which `now` reaches this time."""
        return (timestamp - max(self._offset, self._before)) / 1000

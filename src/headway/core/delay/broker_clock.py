"""The brokers' clock, told from what they stamp.

Due times are wall times, and "never early" is said by the timestamps that brokers give. This machine's own wall clock
can step; the monotonic one cannot. So the time is the monotonic clock plus an offset that each acknowledged write
bounds: when the acknowledgement came, the broker's clock had passed the record's timestamp.

Invariants: while the brokers' clock does not step back, `now` is never ahead of it, by more than two clocks drift apart
in `_REMEMBERED` seconds; after a step, either way, the next observation puts it right.
"""

import math

_REMEMBERED = 10.0  # seconds; a clock that gains a ten thousandth gains 1 ms in it


class BrokerClock:
    """Tells the brokers' time in milliseconds since the epoch, from a monotonic time in seconds.

    >>> clock = BrokerClock()
    >>> clock.observe(timestamp=50_000, sent=7.0, acknowledged=7.004)
    >>> clock.now(8.0)
    50996
    """

    def __init__(self) -> None:
        # The highest lower bound of the offset, of the present stretch of time and of the one before.
        self._offset = self._before = -math.inf
        self._since = -math.inf
        self._observed = -math.inf

    @property
    def is_set(self) -> bool:
        """Whether anything was observed yet."""
        return self._offset > -math.inf

    def age(self, monotonic: float) -> float:
        """How many seconds ago the last observation was."""
        return monotonic - self._observed

    def observe(self, timestamp: int, sent: float, acknowledged: float) -> None:
        """A broker stamped a record that was sent and acknowledged at these monotonic times."""
        lowest = timestamp - acknowledged * 1000
        highest = timestamp + 1 - sent * 1000
        self._observed = acknowledged
        offset, before = self._offset, self._before
        if highest < max(offset, before):  # it was put back
            offset = before = -math.inf
        if acknowledged - self._since > _REMEMBERED:
            self._since, before, offset = acknowledged, offset, -math.inf
        # At the end, since another thread may ask meanwhile.
        self._offset, self._before = max(offset, lowest), before

    def now(self, monotonic: float) -> int:
        """The latest time that the brokers' clock is sure to have reached; nothing was observed: `ValueError`."""
        if not self.is_set:
            raise ValueError("The brokers' clock is not known yet.")
        return math.floor(monotonic * 1000 + max(self._offset, self._before))

    def monotonic_at(self, timestamp: int) -> float:
        """The monotonic time from which on `now` has reached this time."""
        return (timestamp - max(self._offset, self._before)) / 1000

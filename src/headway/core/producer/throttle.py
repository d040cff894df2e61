"""A broker's quota: limits the hand-over while the broker throttles this client.

A throttled broker answers, and then reads nothing from the client for a while. Records that were handed over wait for
it in the order of their hand-over, so the levels' weights can only affect the records that were not. A quota also
averages over about ten seconds, so after a burst its sender gets nothing for as long. While a broker throttles, records
are therefore handed over at the rate that the quota permits, with little in flight.

The rate is the average rate of delivery in the ten seconds before a throttled answer, because the quota limits that
average. Without further throttled answers the rate grows, so it follows a quota that is raised. What could not be
handed over during a pause is made up for, up to two seconds' worth.

Invariants:
- Bytes in flight of a queue whose reports have stopped do not count: its broker is away, and the other queues go on.
"""

from headway.core.producer.queues import Queue, R
from headway.core.producer.turn_policies import Turns

AVERAGED_OVER = 10.0
"""The seconds over which a quota averages (the brokers' `quota.window.num` and `quota.window.size.seconds`)."""

_LEAST_RATE = 4 * 1024  # bytes a second
_LEAST = 64 * 1024
_WORTH_A_REQUEST = 8 * 1024  # a throttled broker may read one request a second
_AHEAD = 0.25  # seconds' worth of the rate that may be in flight
_SAVED = 2.0  # seconds' worth of the rate that a pause can save up
_LASTS = 30.0  # seconds without a throttled answer after which there is no limit any more
_ADJUSTED_EVERY = 1.0
_MORE = 1.2
_STUCK_AFTER = 2.0  # seconds without a report, in addition to those for which the broker reads nothing


class Throttle:
    """Limits the hand-over, from the first throttled answer of a broker until some time after the last one.

    Args:
        rate: The bytes a second that the quota seems to permit.
        seconds: The time for which the broker reads nothing from this client.
        turns: The policy by which the levels take turns under the quota.
    """

    def __init__(self, rate: float, seconds: float, now: float, turns: Turns) -> None:
        self.turns = turns
        self._saved = 0.0
        self._saved_at = now
        self.again(rate, seconds, now)

    def again(self, rate: float, seconds: float, now: float) -> None:
        """Note another throttled answer; the arguments are as for the first one."""
        self._rate = max(_LEAST_RATE, rate)
        self._pause = seconds
        self._until = now + seconds + _LASTS
        self._adjusted = now

    def is_over(self, now: float) -> bool:
        """Return whether no broker has throttled the client recently."""
        return now > self._until

    def space(self, in_flight: int, now: float) -> int:
        """Return how many bytes may be handed over now, in addition to those in flight."""
        if now - self._adjusted >= _ADJUSTED_EVERY:
            self._rate, self._adjusted = self._rate * _MORE, now
        self._saved = min(max(_LEAST, _SAVED * self._rate), self._saved + (now - self._saved_at) * self._rate)
        self._saved_at = now
        if self._saved < _WORTH_A_REQUEST:
            return 0
        return int(min(self._saved, max(_LEAST, _AHEAD * self._rate) - in_flight))

    def handed_over(self, size: int) -> None:
        """Record that this many bytes were handed over."""
        self._saved -= size

    @property
    def next_permit(self) -> float:
        """The time from which records may be handed over again, if little is in flight."""
        return self._saved_at + max(0.0, _WORTH_A_REQUEST - self._saved) / self._rate

    def counted(self, queue: Queue[R], now: float) -> int:
        """Return the bytes in flight of a queue, or 0 if its reports have stopped."""
        last = max(queue.reported_at, queue.timed_since)
        return 0 if now - last > self._pause + _STUCK_AFTER else queue.in_flight - queue.credit

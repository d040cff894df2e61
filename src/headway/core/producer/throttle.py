"""Limits the hand-over of records while a broker throttles this client because of a quota.

A broker that throttles a client answers a request, and then reads nothing from the client for a while. Records that
were already handed over wait in the order of their hand-over, so the shares of the levels can affect only records that
have not been handed over yet. In addition, a quota is averaged over about ten seconds, so a client that has sent a
burst can send nothing for up to ten seconds. While a broker throttles the client, records are therefore handed over at
the rate that the quota permits, and few bytes are in flight.

The rate is the average rate of delivery in the ten seconds before a throttled answer, because the quota limits this
average. While there are no further throttled answers, the rate grows, so that it adapts if the quota is raised. Bytes
that could not be handed over during a pause are handed over later, up to the amount that the rate permits in two
seconds.

Invariant: if the delivery reports of a queue have stopped, its bytes in flight do not count. The broker of this queue
cannot be reached, and the other queues must be able to continue.
"""

from headway.core.producer.queues import Queue, R
from headway.core.producer.turn_policies import Turns

AVERAGED_OVER = 10.0
"""The period over which a quota is averaged, in seconds.

The brokers' settings `quota.window.num` and `quota.window.size.seconds` determine this period.
"""

_LEAST_RATE = 4 * 1024  # the lowest rate, in bytes per second
_LEAST = 64 * 1024  # how many bytes may always be in flight or saved, even if the rate is low
# the smallest hand-over, in bytes, because the broker might read only one request per second
_WORTH_A_REQUEST = 8 * 1024
_AHEAD = 0.25  # how many seconds' worth of bytes may be in flight
_SAVED = 2.0  # how many seconds' worth of bytes can be saved up during a pause
_LASTS = 30.0  # how long the limit lasts after the last pause that a broker requested, in seconds
_ADJUSTED_EVERY = 1.0  # the time between two increases of the rate, in seconds
_MORE = 1.2  # the factor by which each increase multiplies the rate
_STUCK_AFTER = 2.0  # reports count as stopped after the broker's pause plus this many seconds without a report


class Throttle:
    """Limits the hand-over from a broker's first throttled answer until some time after the last throttled answer.

    Args:
        rate: The bytes per second that the quota seems to permit.
        seconds: How long the broker reads nothing from this client.
        turns: The policy by which the levels take turns under the quota.
    """

    def __init__(self, rate: float, seconds: float, now: float, turns: Turns) -> None:
        self.turns = turns
        self._saved = 0.0
        self._saved_at = now
        self.again(rate, seconds, now)

    def again(self, rate: float, seconds: float, now: float) -> None:
        """Process another throttled answer. The arguments have the same meaning as in the constructor."""
        self._rate = max(_LEAST_RATE, rate)
        self._pause = seconds
        self._until = now + seconds + _LASTS
        self._adjusted = now

    def is_over(self, now: float) -> bool:
        """Return whether the limit has ended, because no broker has throttled the client recently."""
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
        """When records may be handed over again, provided that only a few bytes are in flight at that time."""
        return self._saved_at + max(0.0, _WORTH_A_REQUEST - self._saved) / self._rate

    def counted(self, queue: Queue[R], now: float) -> int:
        """Return the bytes of a queue that are in flight, or 0 if its delivery reports have stopped."""
        last = max(queue.reported_at, queue.timed_since)
        return 0 if now - last > self._pause + _STUCK_AFTER else queue.in_flight - queue.credit

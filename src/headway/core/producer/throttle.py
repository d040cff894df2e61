"""Limits the hand-over of records while a broker throttles this client because of a quota.

A broker that throttles a client answers a request, and then reads nothing from the client for a while. Records that
were already handed over wait in the order of their hand-over, so the shares of the levels can only affect records that
were not handed over yet. Also, a quota is averaged over about ten seconds, so after a burst its sender gets nothing for
up to ten seconds. While a broker throttles the client, records are therefore handed over at the rate that the quota
permits, and few bytes are in flight.

The rate is the average rate of delivery in the ten seconds before a throttled answer, because the quota limits this
average. While there are no further throttled answers the rate grows, so that it follows a quota that was raised. Bytes
that could not be handed over during a pause are handed over later, up to the bytes of two seconds.

Invariant: the bytes in flight of a queue whose delivery reports have stopped do not count. Its broker cannot be
reached, and the other queues must be able to continue.
"""

from headway.core.producer.queues import Queue, R
from headway.core.producer.turn_policies import Turns

AVERAGED_OVER = 10.0
"""A quota is averaged over this many seconds (the brokers' `quota.window.num` and `quota.window.size.seconds`)."""

_LEAST_RATE = 4 * 1024  # the lowest rate, in bytes per second
_LEAST = 64 * 1024  # this many bytes may always be in flight or saved, even if the rate is low
_WORTH_A_REQUEST = 8 * 1024  # fewer bytes are not handed over, because the broker may read only one request per second
_AHEAD = 0.25  # the bytes of this many seconds, at the current rate, may be in flight
_SAVED = 2.0  # a pause can save up the bytes of this many seconds
_LASTS = 30.0  # this many seconds after the pause of the last throttled answer, the limit ends
_ADJUSTED_EVERY = 1.0  # seconds between two increases of the rate
_MORE = 1.2  # each increase multiplies the rate by this
_STUCK_AFTER = 2.0  # seconds without a report, in addition to the broker's pause, after which reports have stopped


class Throttle:
    """Limits the hand-over, from the first throttled answer of a broker until some time after the last one.

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
        """Take in another throttled answer. The arguments have the same meaning as in the constructor."""
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
        """The time at which records may be handed over again, if few bytes are in flight then."""
        return self._saved_at + max(0.0, _WORTH_A_REQUEST - self._saved) / self._rate

    def counted(self, queue: Queue[R], now: float) -> int:
        """Return the bytes of a queue that are in flight, or 0 if its delivery reports have stopped."""
        last = max(queue.reported_at, queue.timed_since)
        return 0 if now - last > self._pause + _STUCK_AFTER else queue.in_flight - queue.credit

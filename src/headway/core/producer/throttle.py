"""A broker's quota: how much is handed over while the broker throttles this client.

A throttled broker answers, and then reads nothing more from the client for a while. So what was handed over stands in
one line before it, in the order of the handing over, and the levels' weights can decide only about what was not. And a
quota is an average over some ten seconds: who sends a burst has nothing for as long afterwards. While a broker
throttles, records are therefore handed over at the rate that the quota allows, with little in flight.

The rate is what the client delivered in the ten seconds before an answer that was throttled: the average that the quota
bounds. It grows while no answer is, so it follows a quota that is raised. What could not be handed over during a pause
is caught up with, for two seconds' worth.

Invariants:
- What is in flight of a queue whose reports have stopped does not count: its broker is away, and the others go on.
"""

from headway.core.producer.queues import Queue, R
from headway.core.producer.turn_policies import Turns

AVERAGED_OVER = 10.0
"""The seconds of the average that a quota bounds (the brokers' `quota.window.num` and `quota.window.size.seconds`)."""

_LEAST_RATE = 4 * 1024  # bytes a second
_LEAST = 64 * 1024
_WORTH_A_REQUEST = 8 * 1024  # a throttled broker may read one request a second
_AHEAD = 0.25  # seconds: so much of the rate may be in flight,
_SAVED = 2.0  # and so much may be saved up in a pause
_LASTS = 30.0  # seconds without a throttled answer, after which no quota is in the way any more
_ADJUSTED_EVERY = 1.0
_MORE = 1.2
_STUCK_AFTER = 2.0  # seconds without a report, beyond the time for which the broker reads nothing


class Throttle:
    """The pace of the handing over, from the first throttled answer of a broker to some time after the last.

    Args:
        rate: The bytes a second that the quota seems to allow.
        seconds: The time for which the broker reads nothing of this client.
        turns: The turns of the levels while it lasts.
    """

    def __init__(self, rate: float, seconds: float, now: float, turns: Turns) -> None:
        self.turns = turns
        self._saved = 0.0
        self._saved_at = now
        self.again(rate, seconds, now)

    def again(self, rate: float, seconds: float, now: float) -> None:
        """Note another throttled answer, as the first one."""
        self._rate = max(_LEAST_RATE, rate)
        self._pause = seconds
        self._until = now + seconds + _LASTS
        self._adjusted = now

    def is_over(self, now: float) -> bool:
        """Return whether no broker has throttled the client recently."""
        return now > self._until

    def room(self, in_flight: int, now: float) -> int:
        """Return how many bytes may be handed over now, beside those in flight."""
        if now - self._adjusted >= _ADJUSTED_EVERY:
            self._rate, self._adjusted = self._rate * _MORE, now
        self._saved = min(max(_LEAST, _SAVED * self._rate), self._saved + (now - self._saved_at) * self._rate)
        self._saved_at = now
        if self._saved < _WORTH_A_REQUEST:
            return 0
        return int(min(self._saved, max(_LEAST, _AHEAD * self._rate) - in_flight))

    def handed_over(self, size: int) -> None:
        """Note that this many bytes were handed over."""
        self._saved -= size

    @property
    def next_room(self) -> float:
        """The time at which something may be handed over again, if little is in flight."""
        return self._saved_at + max(0.0, _WORTH_A_REQUEST - self._saved) / self._rate

    def counted(self, queue: Queue[R], now: float) -> int:
        """Return the bytes in flight of a queue, none if its reports have stopped."""
        last = max(queue.reported_at, queue.timed_since)
        return 0 if now - last > self._pause + _STUCK_AFTER else queue.in_flight - queue.credit

"""Computes when a relay runs its next round. The time is precise to the millisecond of the brokers' clock."""

import math
import time

from headway.core.delay.broker_clock import BrokerClock
from headway.delay.relay.partition_relays import PartitionRelays
from headway.runtime.wakeup import Wakeup

_STALE_AFTER = 1.0  # how long a jump of the brokers' clock can go unnoticed, in seconds
_STALE_AFTER_AT_REST = 15.0  # the same while no records arrive and nothing is due
_SOON = 1000  # a relay is at rest if nothing is due within this many milliseconds
# A wait for a socket can end this many seconds late, so for the last part of a wait the relay sleeps instead.
_PRECISELY = 0.001


class RoundTiming:
    """Returns the brokers' time to a relay, and waits until the relay has something to do."""

    def __init__(self, clock: BrokerClock, relays: PartitionRelays, wake: Wakeup) -> None:
        self._clock = clock
        self._relays = relays
        self._wake = wake

    def now(self) -> int:
        """Return the brokers' time."""
        return self._clock.now(time.monotonic())

    def should_observe_clock(self, something_came: bool) -> bool:
        """Return whether to request the brokers' time.

        It is requested when it will soon be needed, and occasionally because clocks can be set.
        """
        seconds = self._clock.age(time.monotonic())
        if seconds < _STALE_AFTER:
            return False
        wakes_at = self._relays.next_wake(self.now())
        is_at_rest = not something_came and wakes_at >= self.now() + _SOON
        return not is_at_rest or (seconds > _STALE_AFTER_AT_REST and wakes_at < math.inf)

    def due_in(self) -> float:
        """Return the number of seconds until a partition number has work, or infinity if none will have work."""
        wakes_at = self._relays.next_wake(self.now())
        return math.inf if wakes_at == math.inf else self._clock.monotonic_at(int(max(wakes_at, 0))) - time.monotonic()

    def wait(self, seconds: float) -> None:
        """Wait until the relay is woken, but for at most this many seconds. Precise to the millisecond."""
        if seconds > _PRECISELY:
            self._wake.wait(seconds - _PRECISELY)
        elif seconds > 0:
            time.sleep(seconds)

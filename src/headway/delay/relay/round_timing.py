"""Computes when a relay runs its next round, by the brokers' clock and precise to the millisecond."""

import math
import time

from headway.core.delay.broker_clock import BrokerClock
from headway.delay.relay.partition_relays import PartitionRelays
from headway.runtime.wakeup import Wakeup

_STALE_AFTER = 1.0  # seconds for which a step of the brokers' clock may go unnoticed
_STALE_AFTER_AT_REST = 15.0  # seconds, while no records arrive and nothing is due
_SOON = 1000  # milliseconds; a relay is at rest if nothing is due within this time
# A wait for a socket can end this many seconds late, so the relay sleeps for this last part instead.
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
        """Return whether to request the brokers' time: before it is needed, and occasionally, as clocks can be set."""
        seconds = self._clock.age(time.monotonic())
        if seconds < _STALE_AFTER:
            return False
        wakes_at = self._relays.next_wake(self.now())
        is_at_rest = not something_came and wakes_at >= self.now() + _SOON
        return not is_at_rest or (seconds > _STALE_AFTER_AT_REST and wakes_at < math.inf)

    def due_in(self) -> float:
        """Return in how many seconds a partition number has work; infinite if none has."""
        wakes_at = self._relays.next_wake(self.now())
        return math.inf if wakes_at == math.inf else self._clock.monotonic_at(int(max(wakes_at, 0))) - time.monotonic()

    def wait(self, seconds: float) -> None:
        """Wait until the relay is woken, or for this many seconds, precise to the millisecond."""
        if seconds > _PRECISELY:
            self._wake.wait(seconds - _PRECISELY)
        elif seconds > 0:
            time.sleep(seconds)

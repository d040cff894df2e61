"""The times of a relay's turns: by the brokers' clock, and on the millisecond."""

import math
import time

from headway.core.delay.broker_clock import BrokerClock
from headway.delay.relay.partition_relays import PartitionRelays
from headway.runtime.wakeup import Wakeup

_STALE_AFTER = 1.0  # seconds for which a step of the brokers' clock may go unseen,
_STALE_AFTER_AT_REST = 15.0  # and the same while nothing comes and nothing is due
_SOON = 1000  # milliseconds
_PRECISELY = 0.001


class TurnTiming:
    """The brokers' time as a relay needs it, and its waits until there is something to do."""

    def __init__(self, clock: BrokerClock, relays: PartitionRelays, wake: Wakeup) -> None:
        self._clock = clock
        self._relays = relays
        self._wake = wake

    def now(self) -> int:
        """Return the brokers' time."""
        return self._clock.now(time.monotonic())

    def is_clock_wanted(self, something_came: bool) -> bool:
        """Return whether to ask for the brokers' time: before it is relied on, and now and then, as clocks are set."""
        seconds = self._clock.age(time.monotonic())
        if seconds < _STALE_AFTER:
            return False
        wakes_at = self._relays.next_wake(self.now())
        is_at_rest = not something_came and wakes_at >= self.now() + _SOON
        return not is_at_rest or (seconds > _STALE_AFTER_AT_REST and wakes_at < math.inf)

    def due_in(self) -> float:
        """Return the seconds until a partition number has something to do, infinite for never."""
        wakes_at = self._relays.next_wake(self.now())
        return math.inf if wakes_at == math.inf else self._clock.monotonic_at(int(max(wakes_at, 0))) - time.monotonic()

    def wait(self, seconds: float) -> None:
        """Wait until woken, or so many seconds to the millisecond."""
        if seconds > _PRECISELY:
            self._wake.wait(seconds - _PRECISELY)  # may be late by a millisecond
        elif seconds > 0:
            time.sleep(seconds)

"""An event loop whose timers are exact.

Linux's epoll, as Python calls it, waits for whole milliseconds, rounded up. So each `sleep`, time-out and retry of a
handler is late by half a millisecond, which is 5 % of 10 ms. `select` takes microseconds, but is slow with many
descriptors. So here `select` waits for one descriptor: epoll's own.

It waits for at least a third of a millisecond. With a thousand timers one is due at any moment, and a turn of the loop
for each would cost more than the handlers. With 1,000 handlers that sleep for 10 ms: 62k records/s without this least
wait, 70k with it, 65k with epoll.
"""

import asyncio
import select
import selectors
import sys

_SELECTABLE = 1024  # `select` takes descriptors below this
_LEAST_WAIT = 0.0003  # seconds

# `gevent.monkey.patch_all()` takes EpollSelector away, because it would block all greenlets.
if sys.platform == "linux" and hasattr(selectors, "EpollSelector"):

    class _ExactSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < _SELECTABLE:
                select.select([self], (), (), max(timeout, _LEAST_WAIT))
                timeout = 0
            return super().select(timeout)

    def precise_event_loop() -> asyncio.AbstractEventLoop:
        """Return a loop like asyncio's own, except for exact timers."""
        return asyncio.SelectorEventLoop(_ExactSelector())

else:
    precise_event_loop = asyncio.new_event_loop

"""An event loop whose timers are exact.

Linux's epoll, as Python calls it, waits for whole milliseconds, and they are rounded up: each `sleep`, time-out and
retry of a handler is late by half a millisecond, which of 10 ms is 5 %. `select` takes microseconds, but is slow with
many descriptors. So it waits for one: epoll's own.

It waits for a third of a millisecond at the least. With a thousand timers one is due at any moment: a turn of the loop
for each would cost more than the handlers (62k records/s with 1,000 that sleep for 10 ms; 70k so, and 65k with epoll).
"""

import asyncio
import select
import selectors
import sys

_SELECTABLE = 1024  # `select` takes descriptors below this
_LEAST_WAIT = 0.0003  # seconds

if sys.platform == "linux":

    class _ExactSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < _SELECTABLE:
                select.select([self], (), (), max(timeout, _LEAST_WAIT))
                timeout = 0
            return super().select(timeout)

    def precise_event_loop() -> asyncio.AbstractEventLoop:
        """A loop like asyncio's own, but for the timers."""
        return asyncio.SelectorEventLoop(_ExactSelector())

else:
    precise_event_loop = asyncio.new_event_loop

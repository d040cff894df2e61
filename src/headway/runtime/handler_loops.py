"""The event loops in which handlers run: uvloop's if it is installed, otherwise asyncio's own with exact timers.

uvloop takes a fifth less CPU for a record whose handler sleeps for 10 ms. Its timers are rounded to milliseconds.

Python calls Linux's epoll with a timeout that is rounded up to whole milliseconds. So each `sleep`, timeout and retry
of a handler would be half a millisecond late on average, which is 5 % of 10 ms. `select` is precise to microseconds,
but slow with many descriptors. Therefore `select` waits here for a single descriptor, which is that of the epoll object
itself.

No wait is shorter than 0.3 ms. With a thousand timers, some timer is due at any moment, and one iteration of the loop
for each timer would cost more than the handlers. With 1,000 handlers that sleep for 10 ms, this loop handles 70k
records/s with the minimum wait and 62k without it; a loop that waits with epoll handles 65k.
"""

import asyncio
import select
import selectors
import sys

_SELECTABLE = 1024  # `select` only accepts descriptors below this number
_LEAST_WAIT = 0.0003  # the shortest wait, in seconds

# `gevent.monkey.patch_all()` removes EpollSelector, because that selector would block all greenlets.
if sys.platform == "linux" and hasattr(selectors, "EpollSelector"):

    class _ExactSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < _SELECTABLE:
                select.select([self], (), (), max(timeout, _LEAST_WAIT))
                timeout = 0
            return super().select(timeout)

    def precise_event_loop() -> asyncio.AbstractEventLoop:
        """Create an event loop that differs from asyncio's own only in its exact timers."""
        return asyncio.SelectorEventLoop(_ExactSelector())

else:
    precise_event_loop = asyncio.new_event_loop


def handler_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop for handlers."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return precise_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop

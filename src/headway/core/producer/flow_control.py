"""The window of each queue, which limits its bytes in flight, so that a quiet sender need not wait behind a flood.

All records for a broker go over one connection, in order. While a flood is alone, it may have its whole window in
flight. Beside a quiet neighbour, its window shrinks to little more than what keeps the connection busy: `_GAIN` times
the bytes that are reported of it within the shortest time that a report takes. At that point throughput divided by
delay is highest (Kleinrock 1979), and TCP's BBR finds it in the same way (Cardwell et al. 2016).

The shortest time of a report can be measured only while little is in flight. So a narrowed queue starts with a window
of `_MIN_WINDOW` until that time is measured, and again every ten seconds, because the route to a broker may change.

Invariants:
- A queue is narrowed only beside a neighbour that sends far less, and has sent repeatedly in the last seconds.
- Two floods do not narrow each other.
- A window is at least `_MIN_WINDOW`.
- Nothing here is done per record.
"""

import math
from typing import Generic

from headway.core.producer.queues import Queue, R

# All times are in seconds.
_TICK = 0.1
_TICKS = 5  # a neighbour must have sent in this many ticks,
_REMEMBERED = 10.0  # and in one tick within this time
_FAR_LESS = 8
_GAIN = 1.25
_MIN_WINDOW = 128 * 1024
_SMOOTH = 4
_MEASURED_FOR = 10.0


class FlowControl(Generic[R]):
    """Sets the `window` of each queue. It is called when a queue hands records over, and for each batch of reports."""

    def __init__(self) -> None:
        self._active: dict[Queue[R], None] = {}
        self._since = 0.0

    def handed_over(self, queue: Queue[R], size: int, now: float) -> None:
        """Record that a queue hands over a record, and measure its time if little is in flight before it."""
        ahead = queue.in_flight - queue.credit
        if queue.timed <= 0 and ahead <= _MIN_WINDOW:
            queue.timed = ahead + size
            queue.timed_since = now

    def reported(self, queue: Queue[R], size: int, now: float) -> None:
        """Record that this many bytes of a queue were reported, which may include the record whose time is measured."""
        self._active[queue] = None
        queue.delivered += size
        if queue.timed > 0:
            queue.timed -= size
            if queue.timed <= 0:
                queue.quickest = min(queue.quickest, now - queue.timed_since)

    def share(self, now: float) -> None:
        """Set the windows by the bytes that each queue has sent, at most ten times a second."""
        seconds = min(now - self._since, 1.0)
        if seconds < _TICK:
            return
        self._since = now
        for queue in list(self._active):
            self._measure(queue, seconds, now)
        least = min((queue.rate for queue in self._active if queue.ticks >= _TICKS), default=math.inf)
        for queue in self._active:
            if queue.rate > _FAR_LESS * least and queue.topic.partition_count:
                self._narrow(queue, now)
            else:
                queue.narrowed, queue.window = False, queue.widest

    def _narrow(self, queue: Queue[R], now: float) -> None:
        if not queue.narrowed or now - queue.measured > _MEASURED_FOR:
            queue.narrowed, queue.measured, queue.quickest = True, now, math.inf
        busy = 0.0 if queue.quickest == math.inf else _GAIN * queue.rate * queue.quickest
        queue.window = min(queue.widest, max(_MIN_WINDOW, busy))

    def _measure(self, queue: Queue[R], seconds: float, now: float) -> None:
        """Update a queue's rate, but only in ticks in which it sent: a queue that has just stopped is not quiet."""
        if queue.delivered:
            if not queue.narrowed or queue.quickest < math.inf:
                queue.rate += (queue.delivered / seconds - queue.rate) / (_SMOOTH if queue.ticks else 1)
            queue.ticks += 1
            queue.last_tick = now
            queue.delivered = 0
        elif now - queue.last_tick > _REMEMBERED:
            queue.ticks = 0
            queue.narrowed, queue.window = False, queue.widest
            del self._active[queue]

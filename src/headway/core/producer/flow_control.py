"""The window of each queue: how much it may have in flight, so that a quiet sender need not wait behind a flood.

All records for a broker go over one connection, in order. A flood may have a whole window ahead of its reports while it
is alone. Beside a quiet neighbour its window is little more than keeps it busy: `_GAIN` times the bytes reported of it
in the least time that a report takes. There throughput over delay is greatest (Kleinrock 1979), and TCP can look for it
in the same way (BBR, Cardwell et al. 2016).

The least time of a report shows only while little is ahead. So a narrowed queue starts at `_LEAST` until that time was
measured, and again every ten seconds, since the way to a broker may change.

Invariants:
- A queue is narrowed only beside a neighbour that sends far less, and did so repeatedly in the last seconds.
- Two floods do not narrow each other.
- A window is at least `_LEAST`.
- Nothing here costs anything per record.
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
_LEAST = 128 * 1024
_SMOOTH = 4
_MEASURED_FOR = 10.0


class FlowControl(Generic[R]):
    """The controller of each queue's `window`. It is told when queues hand over, and of each batch of reports."""

    def __init__(self) -> None:
        self._active: dict[Queue[R], None] = {}
        self._since = 0.0

    def handed_over(self, queue: Queue[R], size: int, now: float) -> None:
        """Note that a record of this size is the next in flight of a queue; time it if little is ahead of it."""
        ahead = queue.in_flight - queue.credit
        if queue.timed <= 0 and ahead <= _LEAST:
            queue.timed = ahead + size
            queue.timed_since = now

    def reported(self, queue: Queue[R], size: int, now: float) -> None:
        """Note that this many bytes of a queue were reported; they count down to the record that is timed."""
        self._active[queue] = None
        queue.delivered += size
        if queue.timed > 0:
            queue.timed -= size
            if queue.timed <= 0:
                queue.quickest = min(queue.quickest, now - queue.timed_since)

    def share(self, now: float) -> None:
        """Look at the bytes that each queue has sent, ten times a second, and set the windows."""
        seconds = min(now - self._since, 1.0)
        if seconds < _TICK:
            return
        self._since = now
        for queue in list(self._active):
            self._look_at(queue, seconds, now)
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
        queue.window = min(queue.widest, max(_LEAST, busy))

    def _look_at(self, queue: Queue[R], seconds: float, now: float) -> None:
        """Update a queue's rate, only from ticks in which it sent: a queue that has just stopped is not quiet."""
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

"""Sets the window of each queue, which limits its bytes in flight. So a quiet sender does not wait behind a flood.

All records for a broker go over one connection, in order. While no other queue sends, a flood may fill its whole
window. If a quiet neighbour sends too, the window of the flood shrinks to little more than what keeps the connection
busy: `_GAIN` times the flood's rate times the shortest time in which a delivery was reported. This window maximizes
throughput divided by delay (Kleinrock 1979). BBR computes TCP's window in the same way (Cardwell et al. 2016).

The shortest time can be measured only while few bytes are in flight. So the window of a narrowed queue is `_MIN_WINDOW`
until this time has been measured. The measurement is repeated every ten seconds, because the route to a broker may
change.

Invariants:
- A queue is narrowed only if a neighbour sends far less, and has sent several times in the last seconds.
- Two floods do not narrow each other.
- A window is at least `_MIN_WINDOW`.
- Nothing in this module runs for each record.
"""

import math
from typing import Generic

from headway.core.producer.queues import Queue, R

_TICK = 0.1  # the shortest time between two updates of the windows, in seconds
_TICKS = 5  # a queue counts as a neighbour after it has sent in this many ticks
_REMEMBERED = 10.0  # how long a queue stays active after it has last sent, in seconds
_FAR_LESS = 8  # a queue is narrowed if its rate is more than this many times that of the quietest neighbour
_GAIN = 1.25
_MIN_WINDOW = 128 * 1024  # the smallest window in bytes
_SMOOTH = 4  # the weight of the last tick in a rate is one divided by this
_MEASURED_FOR = 10.0  # how long a measured shortest time is used before it is measured again, in seconds


class FlowControl(Generic[R]):
    """Sets the `window` of each queue from the queue's hand-overs and delivery reports."""

    def __init__(self) -> None:
        self._active: dict[Queue[R], None] = {}
        self._since = 0.0

    def handed_over(self, queue: Queue[R], size: int, now: float) -> None:
        """Record that a queue hands over a record.

        If only a few bytes are in flight before this record, a measurement begins: how long it takes until the delivery
        of this record is reported.
        """
        ahead = queue.in_flight - queue.credit
        if queue.timed <= 0 and ahead <= _MIN_WINDOW:
            queue.timed = ahead + size
            queue.timed_since = now

    def reported(self, queue: Queue[R], size: int, now: float) -> None:
        """Record that the delivery of this many bytes of a queue was reported.

        If the measured record is among these bytes, the measurement ends.
        """
        self._active[queue] = None
        queue.delivered += size
        if queue.timed > 0:
            queue.timed -= size
            if queue.timed <= 0:
                queue.quickest = min(queue.quickest, now - queue.timed_since)

    def share(self, now: float) -> None:
        """Set the windows from the bytes that each queue has sent. This happens at most ten times a second."""
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
        """Update the rate of a queue if it has sent in this tick.

        Otherwise, a queue that has just stopped would look quiet.
        """
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

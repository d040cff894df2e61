"""How much each queue may have in flight, so that who sends little need not stand behind who sends much.

All that goes to a broker goes over one connection, in order. A flood may have a whole window ahead of its reports while
it is alone. Beside a quiet neighbour it keeps there what keeps it busy, and little more: `_GAIN` times what is reported
of it in the time that a report takes at least. There throughput over delay is greatest (Kleinrock 1979), and TCP can
look for it in the same way (BBR, Cardwell et al. 2016).

What a report takes at least shows only where little is ahead: a queue that is narrowed starts at `_LEAST`, until that
has been seen, and again every ten seconds, since the way to a broker may change.

Invariants: a queue is narrowed only beside a neighbour that sends far less, and did so again and again of late; two
floods do not narrow each other; a window is at least `_LEAST`; nothing here costs anything per record.
"""

import math
from typing import Generic

from headway.core.producer.queues import Queue, R

# All times are in seconds.
_TICK = 0.1
_TICKS = 5  # in so many it must have sent to be a neighbour,
_REMEMBERED = 10.0  # and in one within this time
_FAR_LESS = 8
_GAIN = 1.25
_LEAST = 128 * 1024
_SMOOTH = 4
_MEASURED_FOR = 10.0


class FlowControl(Generic[R]):
    """Sets the `window` of each queue. It is told when queues hand over, and of each batch of reports."""

    def __init__(self) -> None:
        self._active: dict[Queue[R], None] = {}
        self._since = 0.0

    def handed_over(self, queue: Queue[R], size: int, now: float) -> None:
        """A record of this size is the next that a queue has in flight; it is timed, if little is ahead of it."""
        ahead = queue.in_flight - queue.credit
        if queue.timed <= 0 and ahead <= _LEAST:
            queue.timed = ahead + size
            queue.timed_since = now

    def reported(self, queue: Queue[R], size: int, now: float) -> None:
        """So many bytes of a queue were reported: as many of what was before the record that is timed."""
        self._active[queue] = None
        queue.delivered += size
        if queue.timed > 0:
            queue.timed -= size
            if queue.timed <= 0:
                queue.quickest = min(queue.quickest, now - queue.timed_since)

    def share(self, now: float) -> None:
        """Ten times a second, look at what each has sent, and set the windows."""
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
        """Its rate is that of the times when it sends as it can: one that has just stopped is not quiet."""
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

"""A controller that adapts the limit of micro-batches to the time that they take. It reads no clock.

The time of a micro-batch is a fixed overhead plus a time for each record, both of which are unknown. After each
micro-batch of n records, the limit moves towards n * (wanted time / time taken). If the overhead is below the wanted
time, this converges from one side: the derivative of the step at the fixed point is the overhead divided by the wanted
time. The limit falls all the way at once, so that a slower handler causes only one late micro-batch. It rises only
halfway in each step, so that noise does not make it oscillate.
"""

from dataclasses import dataclass, field

AIM = 0.8
"""The fraction of the target time to aim at, so that a micro-batch that is slower than most still ends in time."""

START = 256
"""The limit of the first micro-batch. It doubles with each fast micro-batch."""

_USED = 0.5  # a micro-batch smaller than this fraction of the limit does not change the limit
# The largest factors by which the limit falls or rises in one step. The bounds are needed because a pause of the
# machine can make a micro-batch look slow.
_MOST_FALL, _MOST_RISE = 4, 2


@dataclass(slots=True)
class LimitControl:
    """Controls a limit between `least` and `most` records, for micro-batches of `target` seconds.

    >>> control = LimitControl(target=1.0, least=10, most=1_000_000, limit=1_000)
    >>> control.note(1_000, 2.0)
    >>> control.limit
    400
    >>> control.note(400, 0.4)
    >>> control.limit
    600
    """

    target: float
    least: int
    most: int
    limit: int = START
    at_least_for: int = 0
    """How many micro-batches in a row have taken too long although the limit was at its minimum."""
    _was_late: bool = False
    _each: float = field(default=0.0, init=False)  # seconds per record in the last micro-batch; 0 if not known
    _exact: float = field(default=0.0, init=False)  # the limit before it is rounded, so that small steps add up

    def __post_init__(self) -> None:
        self._move_to(self.limit)

    def note(self, records: int, seconds: float) -> None:
        """Record that a micro-batch of this many records took this many seconds."""
        is_late = seconds > self.target
        # The time of a small micro-batch is not conclusive, unless it is the second late one in a row: a single late
        # micro-batch can be caused by a pause of the machine.
        is_telling = records >= self.limit * _USED or (is_late and self._was_late)
        self._was_late = is_late
        self._each = seconds / records if records > 0 else self._each
        self.at_least_for = self.at_least_for + 1 if is_late and self.limit == self.least else 0
        if not is_telling or records <= 0:
            return
        # Correct the exact limit, not the rounded limit of the micro-batch. Near the target, each correction is a
        # fraction of a record. If the limit were rounded every time, a small limit would stop several records below the
        # target.
        used = self._exact if records == self.limit else records
        suited = used * AIM * self.target / max(seconds, 1e-3)
        if suited < self._exact:
            self._move_to(max(suited, self._exact / _MOST_FALL))
        else:
            self._move_to(min(self._exact + (suited - self._exact) / 2, self._exact * _MOST_RISE))

    def is_slow(self, records: int) -> bool:
        """Return whether this many records would take over half of the target time, judging by the last micro-batch."""
        return records * self._each > AIM * self.target / 2

    def _move_to(self, limit: float) -> None:
        self._exact = min(self.most, max(self.least, limit))
        self.limit = round(self._exact)

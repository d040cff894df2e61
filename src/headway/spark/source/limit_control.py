"""The limit of a micro-batch that follows from the time that micro-batches take: a controller, without a clock.

A micro-batch of n records takes an overhead and a time for each record, both unknown. After each one the limit moves
to n times wanted/taken. With any overhead below the wanted time this converges from one side: the step's derivative at
the fixed point is the overhead's part of the wanted time. It falls at once, so that a slower handler costs one late
micro-batch, and rises by half of the way, so that noise does not make it swing.
"""

from dataclasses import dataclass, field

AIM = 0.8
"""The part of the target that is aimed at, so that a micro-batch that is slower than most still ends in time."""

START = 256
"""The limit before anything is known: it doubles with each micro-batch that is quick."""

_USED = 0.5  # the part of the limit from which on a micro-batch tells about it
_MOST_FALL, _MOST_RISE = 4, 2  # in one step, since one micro-batch may have met a pause of the machine


@dataclass(slots=True)
class LimitControl:
    """The control of a limit between `least` and `most` records, for micro-batches of `target` seconds.

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
    """How many micro-batches in a row have taken too long with the least limit."""
    _was_late: bool = False
    _each: float = field(default=0.0, init=False)  # seconds of a record of the last micro-batch; 0 if not known
    _exact: float = field(default=0.0, init=False)  # small steps add up, which a whole number would forget

    def __post_init__(self) -> None:
        self._move_to(self.limit)

    def note(self, records: int, seconds: float) -> None:
        """Note that a micro-batch of so many records took so many seconds."""
        is_late = seconds > self.target
        # A small micro-batch tells little about the limit. One that is late may be a pause of the machine, two are not.
        tells = records >= self.limit * _USED or (is_late and self._was_late)
        self._was_late = is_late
        self._each = seconds / records if records > 0 else self._each
        self.at_least_for = self.at_least_for + 1 if is_late and self.limit == self.least else 0
        if not tells or records <= 0:
            return
        suited = records * AIM * self.target / max(seconds, 1e-3)
        if suited < self._exact:
            self._move_to(max(suited, self._exact / _MOST_FALL))
        else:
            self._move_to(min(self._exact + (suited - self._exact) / 2, self._exact * _MOST_RISE))

    def is_slow(self, records: int) -> bool:
        """Return whether so many records take more than half of the time that is aimed at, by the last micro-batch."""
        return records * self._each > AIM * self.target / 2

    def _move_to(self, limit: float) -> None:
        self._exact = min(self.most, max(self.least, limit))
        self.limit = round(self._exact)

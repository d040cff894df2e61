"""How levels developed over time, kept in memory from snapshots: the curves of the dashboard.

Invariant: the memory is bounded by constants, whatever the number of levels and however long the dashboard runs.
"""

from array import array
from collections.abc import Iterator
from math import isnan
from typing import NamedTuple

from headway.inspection.snapshot import Snapshot

FIELDS = ("arrived", "done", "not_done", "oldest", "work", "queued", "handler")
"""The curves of a level: records per second, records, and seconds. All levels of a queue have the same `handler`."""

_MOST_LEVELS = 200
_NAN = float("nan")


class Span(NamedTuple):
    """A resolution in which curves are kept: at most one point per `step` seconds, and at most `points` points."""

    name: str
    step: float
    points: int


SPANS = (Span("15m", 2.0, 450), Span("24h", 120.0, 720))


class LevelName(NamedTuple):
    """A level as the group of its queue reads it."""

    topic: str
    group: str
    level: int | None


class _Curves:
    """The points of all levels in one resolution."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.times: array[float] = array("d")
        self.levels: dict[LevelName, dict[str, array[float]]] = {}

    def add(self, snapshot: Snapshot) -> None:
        if self.times and snapshot.taken_at - self.times[-1] < self.span.step:
            return
        self.times.append(snapshot.taken_at)
        size = len(self.times)
        for queue, level in snapshot.levels:
            name = LevelName(queue.topic, queue.group, level.level)
            if name not in self.levels and len(self.levels) == _MOST_LEVELS:
                continue
            curves = self.levels.setdefault(name, {field: array("d", [_NAN] * (size - 1)) for field in FIELDS})
            values = (
                level.arrived_per_second,
                level.done_per_second,
                level.not_done,
                level.oldest_seconds,
                level.seconds_of_work,
                level.queue_seconds,
                queue.handler_seconds,
            )
            for field, value in zip(FIELDS, values, strict=True):
                curves[field].append(_NAN if value is None else value)
        for curves in self.levels.values():  # a level that is gone has no value
            for curve in curves.values():
                curve.extend([_NAN] * (size - len(curve)))
        if size > self.span.points:
            self._forget_first()

    def _forget_first(self) -> None:
        del self.times[0]
        for name, curves in list(self.levels.items()):
            for curve in curves.values():
                del curve[0]
            if all(map(isnan, curves["not_done"])):  # the level has been gone for a whole span
                del self.levels[name]


class LevelHistory:
    """The curves of all levels, in each resolution of `SPANS`."""

    def __init__(self) -> None:
        self._curves = {span.name: _Curves(span) for span in SPANS}

    def add(self, snapshot: Snapshot) -> None:
        """Add the values of a snapshot."""
        for curves in self._curves.values():
            curves.add(snapshot)

    def times(self, span: str, after: float = 0.0) -> list[float]:
        """Return the times of the points after a time."""
        return [time for time in self._curves[span].times if time > after]

    def curves(
        self, span: str, topic: str, group: str, after: float = 0.0
    ) -> Iterator[tuple[LevelName, dict[str, list[float | None]]]]:
        """Yield the curves of the levels of a queue, the highest level first. None stands for an unknown value."""
        kept = self._curves[span]
        start = sum(time <= after for time in kept.times)
        found = [name for name in kept.levels if (name.topic, name.group) == (topic, group)]
        for name in sorted(found, key=lambda each: -1 if each.level is None else each.level, reverse=True):
            curves = kept.levels[name]
            yield (
                name,
                {
                    field: [None if isnan(each) else round(each, 3) for each in curves[field][start:]]
                    for field in FIELDS
                },
            )

"""The experiment of the Java parallel consumer's figures: a group of plain consumers beside one parallel consumer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import quantiles
from typing import Any

from headway.core.engine.lanes import OrderingName
from headway.experiments.backends import Backend
from headway.experiments.key_experiment import SLOTS
from headway.experiments.ordered_group import MOST_SECONDS, OrderedGroup, random_work
from headway.experiments.result import ExperimentResult, ReportProgress, progress_of
from headway.experiments.run_log import RunLog

PARTITIONS = 16
KEYS = 1_000
PER_SECOND = 1_000.0
"""The rate at which records come when latency is measured: two and a half times what one plain consumer handles."""
_GROUP_SIZES = (1, 2, 4, 8, 16)
_ORDERINGS: tuple[OrderingName, ...] = ("partition", "key", "unordered")

_COLUMNS = ("consumers", "slots", "time", "ideal", "latency p50", "latency p99")
_EXPLANATION = (
    "Time: to handle all records if all of them wait at the start. Ideal: the same if no slot is ever free. Latency: "
    f"from the arrival of a record to its end when {PER_SECOND:,.0f} records come per second. A plain consumer handles "
    f"one record after the other, about {2 / MOST_SECONDS:,.0f} per second."
)


@dataclass(frozen=True, slots=True)
class GroupPoint:
    """Two runs of the same consumers: the seconds for a backlog, and the latencies in seconds at a steady rate.

    `ordering` is None for plain consumers. `ideal` is the seconds for the backlog if no slot is ever free.
    """

    ordering: OrderingName | None
    members: int
    slots: int
    seconds: float
    ideal: float
    p50: float
    p99: float

    @property
    def name(self) -> str:
        """What is compared, for people."""
        if self.ordering is None:
            return f"{self.members} plain"
        return f"1 parallel, {'by ' if self.ordering != 'unordered' else ''}{self.ordering}"


def run_group_experiment(records: int, backend: Backend, progress: ReportProgress) -> ExperimentResult:
    """Handle a backlog, and records at a steady rate, with groups of plain consumers and with parallel consumers."""
    cases: list[tuple[OrderingName | None, OrderedGroup]] = [
        (None, OrderedGroup("unordered", 1, members, PARTITIONS)) for members in _GROUP_SIZES
    ]
    cases += [(ordering, OrderedGroup(ordering, SLOTS, 1, PARTITIONS)) for ordering in _ORDERINGS]
    backlog, steady = random_work(records, KEYS), random_work(records, KEYS, PER_SECOND)
    points = []
    for ordering, group in cases:
        name = f"{group.members} plain" if ordering is None else f"parallel, {ordering}"
        seconds = backend.run_ordered(group, backlog, progress_of(f"{name}, backlog", records, progress)).makespan
        log = backend.run_ordered(group, steady, progress_of(f"{name}, steady", records, progress))
        ideal = sum(each.seconds for each in backlog) / (group.members * group.slots)
        points.append(GroupPoint(ordering, group.members, group.slots, seconds, ideal, *_percentiles(log)))
    title = _title(points)
    caption = (
        f"{records:,} records with {KEYS:,} keys in {PARTITIONS} partitions, each of which takes 0 to "
        f"{1000 * MOST_SECONDS:g} ms; a plain consumer has 1 slot, the parallel consumer {SLOTS}; for the latency, "
        f"{PER_SECOND:,.0f} records come per second; {backend.description}."
    )
    return ExperimentResult(
        "group",
        title,
        caption,
        _COLUMNS,
        [_row(point) for point in points],
        _EXPLANATION,
        {"experiment": "group", "records": records, "runs": [asdict(point) for point in points]},
        partial(_draw, title, caption, points),
    )


def _percentiles(log: RunLog) -> tuple[float, float]:
    percentiles = quantiles(log.latencies(), n=100)
    return percentiles[49], percentiles[98]


def _title(points: Sequence[GroupPoint]) -> str:
    by_key = next(point for point in points if point.ordering == "key")
    plain = [point for point in points if point.ordering is None]
    largest = plain[-1]
    if by_key.seconds < largest.seconds:
        return f"One parallel consumer by key is faster than a group of {largest.members} plain consumers"
    slower = [point.members for point in plain if point.seconds > by_key.seconds]
    return f"One parallel consumer by key is faster than {max(slower, default=0)} plain consumers"


def _row(point: GroupPoint) -> tuple[str, ...]:
    times = (f"{point.seconds:.2f} s", f"{point.ideal:.2f} s", _duration(point.p50), _duration(point.p99))
    return (point.name, f"{point.slots}", *times)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _draw(title: str, caption: str, points: Sequence[GroupPoint]) -> Any:
    from headway.experiments.ordered_pictures import draw_group  # noqa: PLC0415 - matplotlib is slow and optional

    return draw_group(title, caption, points)

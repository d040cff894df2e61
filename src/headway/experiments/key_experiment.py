"""The experiment of the Java parallel consumer's table: how long one consumer needs, by the number of keys."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from headway.core.engine.lanes import OrderingName
from headway.experiments.backends import Backend
from headway.experiments.makespan import shortest_makespan
from headway.experiments.ordered_group import MOST_SECONDS, ArrivingWork, OrderedGroup, random_work
from headway.experiments.result import ExperimentResult, ReportProgress, progress_of

SLOTS = 16
_KEYS = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
PUBLISHED_RECORDS = 10_000
PUBLISHED = {
    ("partition", None): 22.221,
    ("key", 1): 26.743,
    ("key", 2): 13.576,
    ("key", 5): 5.916,
    ("key", 10): 3.310,
    ("key", 20): 2.242,
    ("key", 50): 2.204,
    ("key", 100): 2.178,
    ("key", 1_000): 2.056,
    ("key", 10_000): 2.128,
    ("unordered", None): 2.829,
}
"""The seconds in the README of the Java parallel consumer, for 10,000 records, 16 threads and random times as here."""

_COLUMNS = ("ordering", "keys", "time", "ideal", "× ideal", "Java, published")
_EXPLANATION = (
    "Time: from the start of the first record to the end of the last one. Ideal: the same for a scheduler that knows "
    "all records and loses no time, and which starts the oldest record that may run whenever a slot is free. Java, "
    "published: what the README of the Java parallel consumer states for its own machine."
)


@dataclass(frozen=True, slots=True)
class KeyPoint:
    """One run: its ordering, its number of keys (None if keys do not matter), its seconds, and the ideal ones."""

    ordering: OrderingName
    keys: int | None
    seconds: float
    ideal: float
    published: float | None


def run_key_experiment(records: int, backend: Backend, progress: ReportProgress) -> ExperimentResult:
    """Handle the same records in each ordering and with several numbers of keys."""
    cases: list[tuple[OrderingName, int | None]] = [("partition", None)]
    cases += [("key", keys) for keys in _KEYS if keys <= records]
    cases += [("unordered", None)]
    points = []
    for ordering, keys in cases:
        name = ordering if keys is None else f"key, {keys:,} different"
        work = random_work(records, keys or records)
        log = backend.run_ordered(OrderedGroup(ordering, SLOTS), work, progress_of(name, records, progress))
        published = PUBLISHED.get((ordering, keys)) if records == PUBLISHED_RECORDS else None
        points.append(KeyPoint(ordering, keys, log.makespan, _ideal(ordering, work), published))
    title = _title(points)
    caption = (
        f"{records:,} records in one partition, each of which takes 0 to {1000 * MOST_SECONDS:g} ms; one consumer with "
        f"{SLOTS} slots; {backend.description}."
    )
    return ExperimentResult(
        "keys",
        title,
        caption,
        _COLUMNS,
        [_row(point) for point in points],
        _EXPLANATION,
        {"experiment": "keys", "records": records, "slots": SLOTS, "runs": [asdict(point) for point in points]},
        partial(_draw, title, caption, points),
    )


def _ideal(ordering: OrderingName, work: Sequence[ArrivingWork]) -> float:
    def lane(number: int, key: int) -> int:
        return {"partition": 0, "key": key}.get(ordering, number)

    return shortest_makespan(((lane(number, each.key), each.seconds) for number, each in enumerate(work)), SLOTS)


def _title(points: Sequence[KeyPoint]) -> str:
    serial, unordered = points[0].seconds, points[-1].seconds
    enough = next((point for point in points if point.keys and point.seconds < 1.2 * unordered), None)
    if enough is None:
        return f"{SLOTS} slots: {serial / unordered:.0f} times as fast as one record after the other"
    return (
        f"From {enough.keys:,} keys on, handling by key is as fast as handling in any order: "
        f"{serial / enough.seconds:.0f} times as fast as one record after the other"
    )


def _row(point: KeyPoint) -> tuple[str, ...]:
    return (
        point.ordering,
        "-" if point.keys is None else f"{point.keys:,}",
        f"{point.seconds:.2f} s",
        f"{point.ideal:.2f} s",
        f"{point.seconds / point.ideal:.2f}",
        "-" if point.published is None else f"{point.published:.2f} s",
    )


def _draw(title: str, caption: str, points: Sequence[KeyPoint]) -> Any:
    from headway.experiments.ordered_pictures import draw_keys  # noqa: PLC0415 - matplotlib is slow and optional

    return draw_keys(title, caption, points)

"""Computes the drawings of a page, which the templates write as SVG: offset maps as cells, and bars.

Invariant: a drawing has at most as many cells as are asked for, whatever the size of the map.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from headway.core.offsets.offset_map import OffsetMap
from headway.inspection.snapshot import PartitionStatus


class MapCell(NamedTuple):
    """A square of a drawn offset map, which stands for the offsets from `first` to before `end`.

    `kind` is "done", "part" (some are done), "open" (none is done), or "stuck" if the stuck record is among them.
    """

    first: int
    end: int
    done: int
    kind: str


class MapStretch(NamedTuple):
    """Neighbouring cells of one kind in a strip. `start` and `width` are per mille of the strip."""

    start: float
    width: float
    kind: str


def map_end(status: PartitionStatus) -> int:
    """Return the end of the drawn range: the end of the log, which can be beyond the end of the map."""
    return max(status.log_end, status.offset_map.end)


def map_start(status: PartitionStatus) -> int:
    """Return the start of the drawn range: the lowest offset that is not done."""
    return max(status.log_start, status.committed or 0) if status.committed is not None else status.log_start


def map_cells(status: PartitionStatus, most: int) -> list[MapCell]:
    """Draw what a group has done of a partition, from the lowest offset that is not done to the end of the log."""
    start, end = map_start(status), map_end(status)
    size = end - start
    if size <= 0:
        return []
    count = min(most, size)
    bounds = [start + size * cell // count for cell in range(count + 1)]
    done = list(_done_before(status.offset_map, bounds))
    stuck = status.stuck.offset if status.stuck and status.is_stuck else -1
    return [
        MapCell(first, after, below - above, _kind(below - above, after - first, is_stuck=first <= stuck < after))
        for first, after, above, below in zip(bounds, bounds[1:], done, done[1:], strict=False)
    ]


def map_strip(status: PartitionStatus, most: int = 120) -> list[MapStretch]:
    """Draw the same in one narrow strip, with as few rectangles as possible."""
    cells = map_cells(status, most)
    if not cells:
        return []
    width = 1000 / len(cells)
    strip: list[MapStretch] = []
    for number, cell in enumerate(cells):
        if strip and strip[-1].kind == cell.kind:
            strip[-1] = strip[-1]._replace(width=round(strip[-1].width + width, 2))
        else:
            strip.append(MapStretch(round(number * width, 2), round(width, 2), cell.kind))
    return strip


def _kind(done: int, size: int, *, is_stuck: bool) -> str:
    if is_stuck:
        return "stuck"
    return "done" if done == size else "part" if done else "open"


def _done_before(offset_map: OffsetMap, bounds: Sequence[int]) -> Iterator[int]:
    """Yield how many offsets from the committed one on are done below each bound."""
    edges = list(accumulate(offset_map.runs, initial=0))
    totals = list(accumulate((run if index % 2 else 0 for index, run in enumerate(offset_map.runs)), initial=0))
    for bound in bounds:
        at = bound - offset_map.offset
        if at <= 0:
            yield 0
            continue
        run = min(bisect_right(edges, at) - 1, len(edges) - 1)
        yield totals[run] + (at - edges[run] if run % 2 and run < len(offset_map.runs) else 0)


class HourBar(NamedTuple):
    """The schedules that are due in one hour. `height` is in per cent of the highest bar."""

    start: float
    schedules: int
    height: float


def hour_bars(hours: Sequence[tuple[float, int]], most: int = 48) -> list[HourBar]:
    """Draw the first hours in which schedules are due. Hours without schedules in between have a bar of height 0."""
    if not hours:
        return []
    counts = dict(hours)
    first = hours[0][0]
    shown = [first + 3600 * number for number in range(most)]
    while len(shown) > 1 and shown[-1] > hours[-1][0]:
        shown.pop()
    highest = max(counts.get(each, 0) for each in shown) or 1
    return [HourBar(each, counts.get(each, 0), round(100 * counts.get(each, 0) / highest, 1)) for each in shown]


def state_of(status: PartitionStatus, *, is_read: bool) -> str:
    """Return the state of a partition in one word: "stuck", "unread", "waiting" or "idle".

    "unread" means that no member has the partition although it has records that are not done, and others of its queue
    are read by members (`is_read`).
    """
    if status.is_stuck:
        return "stuck"
    if status.not_done and status.member is None and is_read:
        return "unread"
    return "waiting" if status.not_done else "idle"

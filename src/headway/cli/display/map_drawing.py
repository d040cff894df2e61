"""Draws offset maps as a line of text."""

from bisect import bisect_right
from itertools import accumulate

from headway.core.offsets.offset_map import OffsetMap

WIDTH = 60
LEGEND = "█ done  ▓▒░ partly  · not done"

_DONE, _PARTLY, _NOT = "█", "░▒▓", "·"


def draw(offset_map: OffsetMap, width: int = WIDTH) -> str:
    """Draw the offsets from the committed one to the highest that is done.

    All characters stand for the same number of offsets. A character shows "done" only if all its offsets are done, and
    "not done" only if none of them is.

    >>> draw(OffsetMap(100, (1, 1, 1, 2)))
    '·█·██'
    >>> draw(OffsetMap(100, (1, 99)), width=10)
    '▓█████████'
    """
    size = offset_map.end - offset_map.offset
    cells = min(width, size)
    bounds = [size * cell // cells for cell in range(cells + 1)] if cells else []
    done = _done_before(offset_map, bounds)
    return "".join(
        _character(done[cell + 1] - done[cell], bounds[cell + 1] - bounds[cell]) for cell in range(len(bounds) - 1)
    )


def _done_before(offset_map: OffsetMap, bounds: list[int]) -> list[int]:
    """Return how many offsets are done below each bound. The bounds are relative to the committed offset."""
    edges = list(accumulate(offset_map.runs, initial=0))
    complete = [run if index % 2 else 0 for index, run in enumerate(offset_map.runs)]
    totals = list(accumulate(complete, initial=0))
    counts = []
    for bound in bounds:
        run = bisect_right(edges, bound) - 1
        counts.append(totals[run] + (bound - edges[run] if run % 2 else 0))
    return counts


def _character(done: int, of: int) -> str:
    if 0 < done < of:
        return _PARTLY[len(_PARTLY) * done // of]
    return _DONE if done else _NOT

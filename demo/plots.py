"""Step 1 as a picture."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demo.evidence import Evidence, percentile
from demo.live import MEANINGS

Floats = npt.NDArray[np.float64]

BIN_S = 0.5
_SECOND_MS = 1000
LEAST_BINS, MOST_BINS = 20, 80
COLOURS = ("#90a4ae", "#f0a030", "#c62828")  # lowest level first


def rates(at: Floats, edges: Floats) -> Floats:
    """How many a second there are between each two edges, given at which second each was.

    >>> rates(np.array([0.1, 0.2, 0.7]), np.array([0.0, 0.5, 1.0])).tolist()
    [4.0, 2.0]
    """
    return np.histogram(at, edges)[0] / np.diff(edges)


def percentiles(at: Floats, values: Floats, edges: Floats, percent: float) -> Floats:
    """Return a percentile of the values between each two edges, NaN if there are no values.

    >>> percentiles(np.array([0.1, 0.2, 0.7]), np.array([5.0, 9.0, 7.0]), np.array([0.0, 0.5, 1.0, 1.5]), 50).tolist()
    [7.0, 7.0, nan]
    """
    bins = np.searchsorted(edges, at, side="right") - 1
    groups = (values[bins == number] for number in range(len(edges) - 1))
    return np.array([np.percentile(group, percent) if group.size else np.nan for group in groups])


def finding(evidence: Evidence) -> str:
    """What the picture shows, in a sentence that is true of this run."""
    ahead = evidence.ahead
    if not ahead.of:
        return "Nothing had to wait in this run: it does not show priority"
    high, low = percentile(evidence.waits_ms[-1], 99), percentile(evidence.waits_ms[0], 50)
    if high < low:
        return f"99 % of the urgent flights wait {_most(high)} at most; half of those on time {_least(low)} or more"
    # Some pauses of the whole machine were longer than the waits: they delay neighbours alike.
    return f"{math.floor(ahead.share * 100)} % of the urgent flights pass the flight on time sent last before them"


def _most(ms: int) -> str:
    return f"{ms} ms" if ms < _SECOND_MS else f"{math.ceil(ms / 100) / 10:.1f} s"


def _least(ms: int) -> str:
    return f"{ms} ms" if ms < _SECOND_MS else f"{math.floor(ms / 100) / 10:.1f} s"


def draw(evidence: Evidence, path: Path) -> Path:
    """Records per second by level over time, and how long they waited."""
    returned = [np.array(times) for times in evidence.returned_s]
    waits = [np.array(level, dtype=float) for level in evidence.waits_ms]
    sent = np.concatenate([times - wait / 1000 for times, wait in zip(returned, waits, strict=True)])
    end = max(float(times.max(initial=0.001)) for times in returned)
    edges = np.linspace(0, end, int(np.clip(end / BIN_S, LEAST_BINS, MOST_BINS)) + 1)
    figure = Figure(figsize=(11, 8), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(finding(evidence), fontsize=13, fontweight="bold")
    _draw_rates(upper, sent, returned, edges)
    _draw_waits(lower, returned, waits, edges)
    lower.set(xlim=(0, end), xlabel="seconds since the first flight was sent")
    figure.savefig(path, dpi=120)
    return path


def _draw_rates(axes: Axes, sent: Floats, returned: Sequence[Floats], edges: Floats) -> None:
    below = np.zeros(len(edges) - 1)
    for level in reversed(range(len(returned))):  # the highest level at the bottom, where its height can be read
        above = below + rates(returned[level], edges)
        label = f"level {level}: {MEANINGS[level]}"
        axes.stairs(above, edges, baseline=below, fill=True, color=COLOURS[level], label=label)
        below = above
    axes.stairs(rates(sent, edges), edges, color="black", linestyle="--", label="sent, all levels")
    axes.set(ylabel="records/s consumed")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _draw_waits(axes: Axes, returned: Sequence[Floats], waits: Sequence[Floats], edges: Floats) -> None:
    middles = (edges[:-1] + edges[1:]) / 2
    for level in range(len(returned)):
        median, p99 = (np.maximum(1, percentiles(returned[level], waits[level], edges, at)) for at in (50, 99))
        axes.plot(middles, median, color=COLOURS[level], label=f"level {level}")
        axes.fill_between(middles, median, p99, color=COLOURS[level], alpha=0.25, linewidth=0)
    axes.set(yscale="log", ylabel="wait, median to p99")
    axes.yaxis.set_major_formatter(lambda ms, _: f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s")
    axes.grid(visible=True, axis="y", alpha=0.3)

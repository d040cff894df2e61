"""Draws the experiments with levels: how fast each level was consumed in each way, beside the ideal."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.experiments.ideal_levels import FluidPhase, ideal_drained, ideal_phases
from headway.experiments.level_figures import Floats, LevelOutcome, done_over_time, rates_over_time
from headway.experiments.level_setup import LEVELS, LevelSetup
from headway.experiments.picture_style import (
    FAINT,
    IDEAL,
    IDEAL_COLOURS,
    INK,
    LEVEL_COLOURS,
    WAY_COLOURS,
    label_row,
    mark_time,
    new_figure,
)

_MOST_BINS = 120
_POINTS = 400
_WIDTH = 10.0
# Without priority the lines of the levels lie on each other, so each is narrower than the one below it.
_WIDTHS = (1.6, 3.6, 6.0)
_TOP = 1.14  # of the capacity: space for labels above the lines
_LABELS_AT = 0.03  # of the time
_CLOSE = 0.08  # of the capacity: an ideal this close above a line would cross the line's label
_ALIKE = 0.05  # rates that differ by less than this fraction of the capacity have one label


def draw_priority(title: str, caption: str, setup: LevelSetup, outcomes: Sequence[LevelOutcome]) -> Figure:
    """Draw a row for each way: the rate of each level over time."""
    figure = new_figure(title, caption, _WIDTH, 2.6 * len(outcomes) + 1.2)
    rows = figure.subplots(len(outcomes), 1, sharex=True, sharey=True)
    for axes, outcome in zip(rows, outcomes, strict=True):
        _draw_rates(axes, setup, outcome)
    _finish_rates(rows, setup, outcomes)
    return figure


def draw_no_priority(title: str, caption: str, setup: LevelSetup, outcomes: Sequence[LevelOutcome]) -> Figure:
    """Draw the rates in one topic, and below, how many urgent records were done in each way."""
    figure = new_figure(title, caption, _WIDTH, 7.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    _draw_rates(upper, setup, outcomes[0])
    _finish_rates([upper], setup, outcomes)
    upper.set_xlabel("")
    _draw_done(lower, setup, outcomes)
    return figure


def _draw_rates(axes: Axes, setup: LevelSetup, outcome: LevelOutcome) -> None:
    edges, rates = rates_over_time(outcome.log, setup, _MOST_BINS)
    for level in reversed(range(LEVELS)):
        axes.stairs(
            rates[level], edges, baseline=None, color=LEVEL_COLOURS[level], linewidth=_width(level, outcome), zorder=3
        )
    _draw_ideal(axes, ideal_phases(setup))
    axes.set_ylim(0, _TOP * setup.capacity)
    _label_levels(axes, setup, edges, rates)
    drained = outcome.figures.drained
    if max(drained) - min(drained) < 0.02 * max(drained):
        label_row(axes, outcome.way.name, f"all levels done after {max(drained):,.0f} s")
    else:
        done = ", ".join(f"{drained[level]:,.0f} s" for level in reversed(range(LEVELS)))
        label_row(axes, outcome.way.name, f"levels 2, 1 and 0 done after {done}")


def _width(level: int, outcome: LevelOutcome) -> float:
    return _WIDTHS[level] if outcome.way.policy is None else 2.4


def _draw_ideal(axes: Axes, phases: Sequence[FluidPhase]) -> None:
    """Draw dashed horizontal lines in the colours of the levels; vertical ones would only cross each other."""
    for level in range(LEVELS):
        active = [phase for phase in phases if phase.rates[level]]
        axes.hlines(
            [phase.rates[level] for phase in active],
            [phase.begins for phase in active],
            [phase.ends for phase in active],
            colors=IDEAL_COLOURS[level],
            zorder=4,
            **IDEAL,
        )


def _label_levels(axes: Axes, setup: LevelSetup, edges: Floats, rates: Sequence[Floats]) -> None:
    """Write the names of the levels above the beginnings of their lines; one label for lines on each other."""
    first = len(edges) // 40  # without the first moments, in which the slots fill
    begins = slice(first, max(first + 1, len(edges) // 6))
    heights = [float(np.median(rates[level][begins])) for level in range(LEVELS)]
    labels = {f"level {level}": (heights[level], LEVEL_COLOURS[level]) for level in range(LEVELS)}
    if max(heights) - min(heights) < _ALIKE * setup.capacity:
        labels = {"levels 2, 1 and 0 alike": (max(heights), INK)}
    ideal = ideal_phases(setup)[0].rates
    for text, (height, colour) in labels.items():
        # The lowest level has no space below its line, so all labels are above their lines, and above a close ideal.
        above = max([height, *(rate for rate in ideal if 0 < rate - height < _CLOSE * setup.capacity)])
        place = (float(edges[-1]) * _LABELS_AT, above + 0.02 * setup.capacity)
        axes.text(*place, text, va="bottom", fontweight="bold", color=colour, zorder=5)


def _finish_rates(rows: Sequence[Axes], setup: LevelSetup, outcomes: Sequence[LevelOutcome]) -> None:
    end = max(*ideal_drained(ideal_phases(setup)), *(max(outcome.figures.drained) for outcome in outcomes))
    for axes in rows:
        axes.set_xlim(0, end * 1.01)
        axes.set_ylabel("records/s")
        for wave in setup.waves[1:]:
            mark_time(axes, wave.at, f"+ {wave.records:,} at each level")
    rows[-1].set_xlabel("seconds")
    rows[0].text(
        0.995, 0.80, "dashed: ideal, where each level has\ntwice the weight of the next lower one",
        transform=rows[0].transAxes, ha="right", va="top", color=FAINT, fontsize=9,
    )  # fmt: skip


def _draw_done(axes: Axes, setup: LevelSetup, outcomes: Sequence[LevelOutcome]) -> None:
    highest, labels = LEVELS - 1, []
    for outcome in outcomes:
        name = outcome.way.name
        times, done = done_over_time(outcome.log, highest, _POINTS)
        axes.plot(times, done, color=WAY_COLOURS[name], linewidth=2.4)
        axes.plot(times[-1], done[-1], "o", color=WAY_COLOURS[name], markersize=6)
        labels.append((times[-1], done[-1], f"{name}: {times[-1]:,.0f} s", WAY_COLOURS[name]))
    phases = ideal_phases(setup)
    edges = [0.0, *(phase.ends for phase in phases)]
    done = np.cumsum([0.0, *(phase.rates[highest] * (phase.ends - phase.begins) for phase in phases)])
    ends = edges.index(ideal_drained(phases)[highest])
    axes.plot(edges[: ends + 1], done[: ends + 1], color=INK, zorder=4, **IDEAL)
    axes.set_ylim(0, setup.records * 1.2)
    for number, (x, y, text, colour) in enumerate(sorted(labels)):
        # Lines that end close to each other have their labels one above the other.
        axes.annotate(
            text, (x, y), (0, 6 + 16 * (number % 2)), textcoords="offset points", ha="right", color=colour,
            fontweight="bold",
        )  # fmt: skip
    label_row(
        axes, "urgent records (level 2)", "the same load in one topic, and in a topic for each level by two policies"
    )
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="seconds", ylabel="records done")
    axes.text(0.995, 0.03, "dashed: ideal", transform=axes.transAxes, ha="right", color=FAINT, fontsize=9)

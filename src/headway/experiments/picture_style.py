"""The look of all pictures: colours that colour-blind people can tell apart, labels at the lines, a white card."""

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import blended_transform_factory

# By Okabe and Ito, except for the blue, which is darker so that thin lines are visible.
LEVEL_COLOURS = ("#009E73", "#0B6BB0", "#D55E00")
"""The colours of the levels, lowest level first."""
WAY_COLOURS = {"no priority": "#6B7280", "capacity_burst": "#C98B00", "fair": "#0B6BB0", "ideal": "#111827"}
INK, FAINT = "#111827", "#6B7280"
IDEAL_COLOURS = ("#00543D", "#06365A", "#7A3500")
"""The colours of the ideal of each level: darker, so that a dashed line is visible on the line of its level."""
IDEAL: dict[str, Any] = {"linewidth": 1.3, "linestyle": (0, (4, 2.5))}
"""How the ideal is drawn."""
IDEAL_BAND: dict[str, Any] = {"color": "#CBD5E1", "linewidth": 9, "solid_capstyle": "butt", "zorder": 1}
"""How the ideal is drawn where lines meet it: as a wide band below them."""
_TITLE_WIDTH, _CAPTION_WIDTH = 9.6, 15.5  # characters per inch of a figure

_STYLE: Any = {
    "font.family": "DejaVu Sans",  # part of matplotlib, so that a picture looks the same on each machine
    "font.size": 10,
    "axes.edgecolor": "#9CA3AF",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E7EB",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",  # not transparent: on a dark page the picture is a white card
    "svg.hashsalt": "headway",  # the same run gives the same file
    "svg.fonttype": "path",
}
_DPI = 160
_FEW_TICKS = 100  # an axis whose end is less than this many times its beginning has few powers of ten
# Of the height of the axes: lines closer than this share a label, and labels are at least this far apart.
_ALIKE, _LABEL_GAP = 0.02, 0.065


@contextmanager
def picture_style() -> Iterator[None]:
    """Draw and write pictures with this look during the block."""
    with mpl.rc_context(_STYLE):
        yield


def new_figure(title: str, caption: str, width: float, height: float) -> Figure:
    """Return a figure with its finding as the title, and its set-up below."""
    figure = Figure(figsize=(width, height), layout="constrained")
    title = re.sub(r"(?<=\d) (?=[s%])", "\u00a0", title)  # no line ends between a number and its unit
    title, caption = fill(title, int(_TITLE_WIDTH * width)), fill(caption, int(_CAPTION_WIDTH * width))
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold")
    figure.supxlabel(caption, x=0.012, ha="left", fontsize=8.5, color=FAINT)
    figure.get_layout_engine().set(h_pad=0.09, w_pad=0.08)  # type: ignore[union-attr, call-arg]
    return figure


def label_row(axes: Axes, name: str, remark: str) -> None:
    """Write the name of a row of a figure above it, and a remark beside the name."""
    axes.set_title(name, loc="left", fontsize=11, fontweight="bold")
    axes.set_title(remark, loc="right", fontsize=9.5, color=FAINT)


def mark_time(axes: Axes, at: float, text: str) -> None:
    """Draw a vertical line at a time, with a text at its upper end."""
    axes.axvline(at, color="#9CA3AF", linewidth=1.2, linestyle=":", zorder=1)
    place = blended_transform_factory(axes.transData, axes.transAxes)
    axes.text(at, 0.99, f" {text}", transform=place, va="top", fontsize=8.5, color=FAINT)


class EndLabel(NamedTuple):
    """A label for the right end of a line, at a height of the data."""

    height: float
    text: str
    colour: str


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write labels to the right of the axes, moved apart where they would overlap. Lines on each other share one."""
    pixels = axes.transData.transform
    (_, bottom), (_, top) = axes.transAxes.transform([(0, 0), (0, 1)])
    shared: list[tuple[float, list[EndLabel]]] = []
    for label in sorted(labels):
        height = float((pixels((1, label.height))[1] - bottom) / (top - bottom))
        if shared and height - shared[-1][0] < _ALIKE:
            shared[-1][1].append(label)
        else:
            shared.append((height, [label]))
    lowest = -math.inf
    for height, together in shared:
        lowest = max(height, lowest + _LABEL_GAP)
        text = " and ".join(label.text for label in together)
        colour = together[0].colour if len(together) == 1 else INK
        axes.text(1.01, lowest, text, transform=axes.transAxes, va="center", color=colour, fontweight="bold")


def use_log_scale(axis: Axis) -> None:
    """Put ticks at the powers of ten, and if there are only few, at 2 and 5 times these. Write plain numbers."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < _FEW_TICKS else (1.0,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")


def write_pictures(draw: Callable[[], Figure], stem: Path) -> str:
    """Write a picture as `stem`.svg and `stem`.png, and return the SVG."""
    with picture_style():
        figure = draw()
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        figure.savefig(stem.with_suffix(".png"), dpi=_DPI)
    stem.with_suffix(".svg").write_text(svg.getvalue(), encoding="utf-8")
    return svg.getvalue()

"""Draws the experiments without levels: time by the number of keys, and the size of the group."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.experiments.group_experiment import GroupPoint
from headway.experiments.key_experiment import KeyPoint
from headway.experiments.picture_style import (
    IDEAL_BAND,
    INK,
    EndLabel,
    label_ends,
    label_row,
    new_figure,
    use_log_scale,
)

_COLOURS = {"key": "#0B6BB0", "partition": "#D55E00", "unordered": "#009E73", None: INK}
_NAMES = {"key": "by key", "partition": "by partition", "unordered": "unordered"}
# Lines on each other stay visible, because each is wider than the one above it.
_WIDTHS = {"partition": 2.4, "key": 2.4, "unordered": 5.0, None: 2.4}
_WIDTH = 10.0


def draw_keys(title: str, caption: str, points: Sequence[KeyPoint]) -> Figure:
    """Draw the time by the number of keys, beside the ideal and the published times of the Java client."""
    figure = new_figure(title, caption, _WIDTH, 5.8)
    axes = figure.subplots()
    by_key = [point for point in points if point.ordering == "key"]
    keys = [point.keys or 1 for point in by_key]
    labels = []
    for ordering in ("partition", "unordered"):
        point = next(each for each in points if each.ordering == ordering)
        axes.plot(keys, [point.seconds] * len(keys), color=_COLOURS[ordering], linewidth=_WIDTHS[ordering])
        labels.append(EndLabel(point.seconds, _NAMES[ordering], _COLOURS[ordering]))
    axes.plot(keys, [point.seconds for point in by_key], "o-", color=_COLOURS["key"], linewidth=2.4, markersize=7)
    axes.plot(keys, [point.ideal for point in by_key], **IDEAL_BAND)
    published = [(point.keys, point.published) for point in by_key if point.published]
    if published:
        axes.plot(*zip(*published, strict=True), "D", color="white", markeredgecolor=INK, markersize=6, zorder=5)
    axes.set(xscale="log", yscale="log", xlabel="number of keys", ylabel="seconds for all records")
    axes.set_xlim(0.87, keys[-1] * 1.15)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.12, high * 1.12)
    use_log_scale(axes.yaxis)
    axes.set_xticks(keys, [f"{number:,}" for number in keys])
    axes.set_xticks([], minor=True)
    middle = by_key[min(2, len(by_key) - 1)]
    axes.annotate(
        "by key", (middle.keys or 1, middle.seconds), (-12, -12), textcoords="offset points", ha="right",
        color=_COLOURS["key"], fontweight="bold",
    )  # fmt: skip
    label_ends(axes, labels)
    label_row(axes, "", "grey band: the ideal by key" + ("; diamonds: the Java client, published" if published else ""))
    return figure


def draw_group(title: str, caption: str, points: Sequence[GroupPoint]) -> Figure:
    """Draw the time for a backlog, and the latency, by the size of a group of plain consumers."""
    figure = new_figure(title, caption, _WIDTH, 8.4)
    upper, lower = figure.subplots(2, 1, sharex=True)
    label_row(
        upper, "time for a backlog", "across: one parallel consumer; grey band: the ideal, all work ÷ the consumers"
    )
    _draw_sizes(upper, points, lambda point: point.seconds, "solid")
    plain = [point for point in points if point.ordering is None]
    upper.plot([each.members for each in plain], [each.ideal for each in plain], **IDEAL_BAND)
    _finish(upper, points, lambda point: point.seconds)
    upper.set_ylabel("seconds")
    label_row(lower, "latency at a steady rate", "across: one parallel consumer; solid: median, dotted: p99")
    _draw_sizes(lower, points, lambda point: 1000 * point.p50, "solid")
    _draw_sizes(lower, points, lambda point: 1000 * point.p99, "dotted")
    _finish(lower, points, lambda point: 1000 * point.p99)
    lower.set(xlabel="plain consumers in the group", ylabel="milliseconds")
    return figure


def _draw_sizes(axes: Axes, points: Sequence[GroupPoint], value: Callable[[GroupPoint], float], style: str) -> None:
    sizes = [point.members for point in points if point.ordering is None]
    values = [value(point) for point in points if point.ordering is None]
    for point in sorted(points, key=lambda point: -_WIDTHS[point.ordering]):
        if point.ordering:
            across = [value(point)] * len(sizes)
            width = _WIDTHS[point.ordering] if style == "solid" else _WIDTHS[None]
            axes.plot(sizes, across, linestyle=style, color=_COLOURS[point.ordering], linewidth=width)
    axes.plot(sizes, values, "o", linestyle=style, color=INK, linewidth=2.4, markersize=7)


def _finish(axes: Axes, points: Sequence[GroupPoint], labelled: Callable[[GroupPoint], float]) -> None:
    sizes = [point.members for point in points if point.ordering is None]
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(0.92, sizes[-1] * 1.08)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.12, high * 1.12)
    use_log_scale(axes.yaxis)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    second = points[1]
    axes.annotate(
        "group of plain consumers", (second.members, labelled(second)), (10, 6), textcoords="offset points",
        color=INK, fontweight="bold",
    )  # fmt: skip
    label_ends(
        axes,
        [EndLabel(labelled(each), _NAMES[each.ordering], _COLOURS[each.ordering]) for each in points if each.ordering],
    )

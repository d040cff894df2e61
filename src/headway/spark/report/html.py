"""Makes the report as a self-contained HTML page with SVG plots. This module does no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, NamedTuple

Row = Mapping[str, Any]
Points = Sequence[tuple[float, float]]

COLOURS = ("#78909c", "#f0a030", "#c62828", "#5e35b1", "#00897b", "#3949ab")
"""The colours of the levels, lowest level first. They repeat if there are more levels."""

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 240, 70, 24, 10
TICKS = 4

DURATIONS = {
    "queue": "Queue time: from produced to read",
    "processing": "Processing time: from read to done",
    "end_to_end": "End to end: from produced to done",
}


class LevelCurve(NamedTuple):
    """One level's values over time: (seconds since the first window, value)."""

    level: int
    points: Points


def report_page(
    title: str, levels: Sequence[Row], windows: Sequence[Row], lags: Sequence[Row], seconds: int, left_out: int = 0
) -> str:
    """Return the HTML page of the report.

    The rows come from the functions in `headway.spark.report.figures`. `seconds` is the length of a window, and
    `left_out` is the number of records that the figures do not include.
    """
    plots = [plot("Records done per second", _lines(windows, "per_second"))]
    plots += [
        plot(f"{text}, p99 in ms, per window", _lines(windows, f"{name}_p99")) for name, text in DURATIONS.items()
    ]
    plots.append(plot("Lag: produced but not done", _lines(lags, "lag")))
    begins = min((row["window"] for row in windows), default=None)
    since = f"Windows of {seconds} s since {begins:%Y-%m-%d %H:%M:%S}." if begins else "No records."
    if left_out:
        since += (
            f" {left_out:,} records are left out: they lack a level or a time, or have one outside the allowed range."
        )
    body = "\n".join([f"<h1>{escape(title)}</h1>", f"<p>{since}</p>", _table(levels), *plots])
    return document(title, body)


def document(title: str, body: str) -> str:
    """Return an HTML page with this title and body."""
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n{_STYLE}\n{body}\n'


def plot(title: str, lines: Sequence[LevelCurve]) -> str:
    """Return an SVG plot of values over time, with one line per level. The vertical axis ends at the largest value."""
    right = max((x for line in lines for x, _ in line.points), default=0) or 1
    top = max((y for line in lines for _, y in line.points), default=0) or 1
    drawn = "".join(_polyline(line, right, top) for line in lines)
    return (
        f"<h2>{escape(title)}</h2>\n{_legend(lines)}\n"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{_grid(right, top)}{drawn}</svg>'
    )


def _polyline(line: LevelCurve, right: float, top: float) -> str:
    places = " ".join(f"{_x(x, right):.1f},{_y(y, top):.1f}" for x, y in line.points)
    colour = _colour(line.level)
    dots = "".join(
        f'<circle cx="{_x(x, right):.1f}" cy="{_y(y, top):.1f}" r="2.5" fill="{colour}">'
        f"<title>level {line.level}: {_number(y)} at {x:g} s</title></circle>"
        for x, y in line.points
    )
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dots}'


def _grid(right: float, top: float) -> str:
    rows = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{_y(value, top):.1f}" y2="{_y(value, top):.1f}" stroke="#ddd"/>'
        f'<text x="{LEFT - 6}" y="{_y(value, top) + 4:.1f}" text-anchor="end">{_number(value)}</text>'
        for value in (top * tick / TICKS for tick in range(TICKS + 1))
    )
    columns = "".join(
        f'<text x="{_x(value, right):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{value:.0f} s</text>'
        for value in (right * tick / TICKS for tick in range(TICKS + 1))
    )
    return rows + columns


def _legend(lines: Iterable[LevelCurve]) -> str:
    return "<p>" + " ".join(f'<b style="color:{_colour(line.level)}">level {line.level}</b>' for line in lines) + "</p>"


def _table(levels: Sequence[Row]) -> str:
    names = [f"{name}_{part}" for name in DURATIONS for part in ("p50", "p95", "p99", "max")]
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in ("level", "records", *names))
    rows = "".join(
        "<tr>" + "".join(f"<td>{_number(row[name])}</td>" for name in ("level", "records", *names)) + "</tr>"
        for row in sorted(levels, key=lambda row: -int(row["level"]))
    )
    return f"<p>Times in milliseconds.</p>\n<table><tr>{head}</tr>{rows}</table>"


def _lines(rows: Sequence[Row], value: str) -> list[LevelCurve]:
    """Return the values of each level over time, highest level first."""
    first: datetime | None = min((row["window"] for row in rows), default=None)
    points: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        seconds = (row["window"] - first).total_seconds()
        points.setdefault(int(row["level"]), []).append((seconds, float(row[value])))
    return [LevelCurve(level, sorted(points[level])) for level in sorted(points, reverse=True)]


def _x(value: float, right: float) -> float:
    return LEFT + 4 + value / right * (WIDTH - LEFT - 30)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - max(0.0, value) / top * (HEIGHT - BOTTOM - TOP)


def _colour(level: int) -> str:
    return COLOURS[level % len(COLOURS)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


_STYLE = """<style>
body { font: 15px system-ui, sans-serif; max-width: 900px; margin: 2em auto; color: #222 }
h2 { font-size: 1.05em; margin: 2em 0 0 } table { border-collapse: collapse; font-size: 12px }
td, th { padding: 3px 7px; text-align: right; border-bottom: 1px solid #ddd } svg text { font-size: 11px; fill: #555 }
</style>"""

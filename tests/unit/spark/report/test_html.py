"""A report's page, from rows."""

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

from headway.spark.report.html import DURATIONS, LevelCurve, plot, report_page

BEGIN = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def figures(value: int) -> dict[str, int]:
    return {f"{name}_{part}": value for name in DURATIONS for part in ("p50", "p95", "p99", "max")}


def test_the_page_has_the_levels_highest_first_and_a_plot_of_each_figure() -> None:
    levels = [{"level": level, "records": 1_000 * (level + 1), **figures(level)} for level in range(2)]
    windows = [
        {"level": level, "window": BEGIN + timedelta(seconds=10 * number), "per_second": 7.5, **figures(number)}
        for level in range(2)
        for number in range(3)
    ]
    lags = [{"level": 0, "window": BEGIN, "lag": 40}]

    made = report_page("Flights <b>", levels, windows, lags, 10)

    assert "Flights &lt;b&gt;" in made
    assert "Windows of 10 s since 2026-05-01 12:00:00." in made
    assert made.index("<td>2,000</td>") < made.index("<td>1,000</td>")
    assert made.count("<svg") == 5
    assert "level 1: 7.5 at 20 s" in made


def test_a_plot_is_well_formed_and_within_its_frame() -> None:
    made = plot("Lag", [LevelCurve(1, [(0, 0), (60, 12)]), LevelCurve(0, [(0, -3), (30, 1_500)])])
    svg = ElementTree.fromstring(made[made.index("<svg") :])  # noqa: S314 - our own text
    places = [
        tuple(map(float, place.split(","))) for line in svg.iter("polyline") for place in line.get("points", "").split()
    ]
    assert len(places) == 4
    assert all(0 <= x <= 860 and 0 <= y <= 240 for x, y in places)


def test_a_plot_of_nothing_is_empty() -> None:
    assert "<polyline" not in plot("Lag", [])

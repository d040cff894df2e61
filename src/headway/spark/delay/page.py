"""Shows the pending schedules in the delay topics as a self-contained HTML page."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headway.core.delay.ladder import Ladder, fit, writes_per_record
from headway.delay.pending import layout_of
from headway.delay.topic_names import DEFAULT_NAME
from headway.spark.delay.counting import delays, hot_seconds, occupancy
from headway.spark.delay.reading import pending
from headway.spark.report.html import COLOURS, Row, document

WIDTH, BAR, LABEL = 860, 14, 150
_MOST_HOURS = 96
_DELAY_TOPICS = 8


def schedules_page(
    title: str,
    occupancy: Sequence[Row],
    hot_seconds: Sequence[Row],
    delays: Mapping[int, float],
    ladders: Mapping[str, Ladder],
) -> str:
    """Return the page. The rows come from `headway.spark.delay.counting`.

    The keys of `ladders` are the names that the page shows, such as `in use`.
    """
    total = sum(int(row["pending"]) for row in occupancy)
    hours = sorted({row["hour"] for row in occupancy})
    left_out = f" (the first {_MOST_HOURS} of {len(hours)} hours)" if len(hours) > _MOST_HOURS else ""
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{total:,} schedules are pending.</p>",
        f"<h2>Schedules by the hour in which they are due, and the delay topic in which they wait now{left_out}</h2>",
        _bars(occupancy, hours[:_MOST_HOURS]),
        "<h2>The seconds in which most schedules are due</h2>",
        _table(("second", "pending"), ((_time(row["second"]), f"{row['pending']:,}") for row in hot_seconds)),
        "<h2>Delay topics</h2>",
        _table(
            ("", "delay topics", "writes per record", ""),
            (
                (name, str(len(ladder.delays)), _writes(ladder, delays), escape(str(ladder)))
                for name, ladder in ladders.items()
            ),
        ),
    ]
    return document(title, "\n".join(body))


def _bars(occupancy: Sequence[Row], hours: Sequence[datetime]) -> str:
    delay_topics = sorted({int(row["topic_delay_ms"]) for row in occupancy})
    colours = {delay_topic: COLOURS[number % len(COLOURS)] for number, delay_topic in enumerate(delay_topics)}
    by_hour: dict[datetime, dict[int, int]] = {hour: {} for hour in hours}
    for row in occupancy:
        if row["hour"] in by_hour:
            by_hour[row["hour"]][int(row["topic_delay_ms"])] = int(row["pending"])
    most = max((sum(counts.values()) for counts in by_hour.values()), default=0) or 1
    drawn = "".join(
        _bar(number, hour, counts, colours, most) for number, (hour, counts) in enumerate(sorted(by_hour.items()))
    )
    legend = " ".join(
        f'<b style="color:{colour}">{_delay_topic(delay_topic)}</b>' for delay_topic, colour in colours.items()
    )
    height = (BAR + 4) * len(hours)
    return f'<p>{legend}</p>\n<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="pending">{drawn}</svg>'


def _bar(number: int, hour: datetime, counts: Mapping[int, int], colours: Mapping[int, str], most: int) -> str:
    y, x = number * (BAR + 4), float(LABEL)
    parts = [f'<text x="{LABEL - 8}" y="{y + BAR - 3}" text-anchor="end">{_time(hour)[:16]}</text>']
    for delay_topic, count in sorted(counts.items()):
        width = count / most * (WIDTH - LABEL - 80)
        about = f"<title>{count:,} in {_delay_topic(delay_topic)}</title>"
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colours[delay_topic]}">{about}</rect>'
        )
        x += width
    parts.append(f'<text x="{x + 6:.1f}" y="{y + BAR - 3}">{sum(counts.values()):,}</text>')
    return "".join(parts)


def _table(names: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _writes(ladder: Ladder, delays: Mapping[int, float]) -> str:
    return f"{writes_per_record(ladder, delays):.1f}" if delays else "–"


def _delay_topic(milliseconds: int) -> str:
    return f"the delay topic of {milliseconds / 1000:,g} s" if milliseconds else "memory"


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"


def write_occupancy(
    spark: SparkSession,
    config: Mapping[str, Any],
    output: Path,
    name: str = DEFAULT_NAME,
    delay_topics: int = _DELAY_TOPICS,
) -> int:
    """Write the page, and return how many schedules are pending. All schedules are read once.

    The page proposes at most `delay_topics` delay topics.
    Raises `ConfigError` if the scheduler has no topics.
    """
    there = pending(spark, config, name).select("topic_delay_ms", "due", "scheduled").cache()
    try:
        counted, hottest, in_use = _rows(occupancy(there)), _rows(hot_seconds(there)), delays(there)
    finally:
        there.unpersist()
    ladders = {"in use": layout_of(config, name).ladder}
    if in_use:
        ladders["proposed"] = fit(in_use, delay_topics)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(
        schedules_page(f"Pending schedules of {name}", counted, hottest, in_use, ladders), encoding="utf-8"
    )
    return sum(int(row["pending"]) for row in counted)


def _rows(frame: DataFrame) -> list[Row]:
    return [row.asDict() for row in frame.collect()]

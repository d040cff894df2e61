"""Reports the progress of queries by level, and prints it as a table for each micro-batch."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headway.kafka.reading.topic_naming import TopicNaming
from headway.spark.source.offset_json import from_json
from headway.spark.stage.outcomes import OBSERVED_OUTPUTS, OBSERVED_STAGE


class LevelProgress(NamedTuple):
    """The progress of a level in a micro-batch: how many offsets were read, and how many are still waiting.

    There can be fewer records than offsets, because transaction markers and records that compaction has removed also
    have offsets. `oldest_wait` is how many seconds ago the query first saw the oldest waiting offset, or None if that
    is not known.
    """

    level: int
    read: int
    waiting: int
    oldest_wait: float | None


def level_progress(source: Mapping[str, Any]) -> list[LevelProgress]:
    """Return the progress of each level of a source in a micro-batch, highest level first.

    Use this function for your own metrics. `source` is an item of `sources` in `query.lastProgress`. The result is
    empty for a source that is not `format("headway")`.
    """
    start, end, latest = (_form(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
    if "offsets" not in end or "topicIds" not in end:
        return []
    naming = TopicNaming(None, end["priorities"]) if "priorities" in end else TopicNaming(1)
    reached = from_json(end["offsets"], naming)
    begun = from_json(end.get("begun", start.get("offsets", {})), naming)
    ends = from_json(latest.get("offsets", {}), naming)
    read, waiting = Counter[int](), Counter[int]()
    for at, stop in reached.items():
        read[at.level] += max(0, stop - begun.get(at, stop))
        waiting[at.level] += max(0, ends.get(at, stop) - stop)
    waits = latest.get("oldestWaitSeconds", {})
    return [
        LevelProgress(level, read[level], waiting[level], waits.get(str(level), None if waiting[level] else 0.0))
        for level in sorted(read, reverse=True)
    ]


def limit_of(source: Mapping[str, Any]) -> int | None:
    """Return the limit that targetTriggerTime set for the micro-batch, or None if it set no limit."""
    limit = _form(source.get("endOffset")).get("limit")
    return limit if isinstance(limit, int) else None


def outcomes_of(progress: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the counts of a query's stages from its progress, by the name of the stage.

    A stage of `parallel_map` counts the rows with each outcome and, as `retried`, the rows that had more than one
    attempt. A stage of `outputs` counts all records and, of these, the dead letters.
    """
    observed = progress.get("observedMetrics") or {}
    return {
        name: dict(counts)
        for name, counts in observed.items()
        if name.startswith((OBSERVED_STAGE, OBSERVED_OUTPUTS)) and counts
    }


def table(progress: Mapping[str, Any]) -> str:
    """Format a query's progress as text: one line for the micro-batch, one for each level, and one for each stage."""
    took = progress.get("durationMs", {}).get("triggerExecution", progress.get("batchDuration", 0)) / 1000
    name = progress.get("name") or progress.get("id")
    sources = progress.get("sources", [])
    levels = [level_progress(source) for source in sources]
    offsets, rows = sum(each.read for own in levels for each in own), progress.get("numInputRows", 0)
    lines = [f"{name}, micro-batch {progress.get('batchId')}: {_counted(rows, offsets, levels)} in {took:.1f} s"]
    lines[0] += "".join(f", limit {limit:,}" for source in sources if (limit := limit_of(source)) is not None)
    for each in chain.from_iterable(levels):
        oldest = "" if not each.oldest_wait else f", the oldest for {each.oldest_wait:,.0f} s"
        share = f"{each.read / offsets:>4.0%}" if offsets else "    "
        lines.append(f"  level {each.level}  {each.read:>11,} read {share}  {each.waiting:>11,} waiting{oldest}")
    # List the stages in the order in which they were created. Spark sorts them by name.
    for stage, counts in sorted(outcomes_of(progress).items(), key=lambda each: int(each[0].rpartition("#")[2])):
        listed = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in counts.items() if number)
        lines.append(f"  {stage.removeprefix('headway ').rpartition(' #')[0]}: {listed or 'nothing'}")
    return "\n".join(lines)


def _counted(rows: int, offsets: int, levels: Sequence[Sequence[LevelProgress]]) -> str:
    """Format the number of records in a micro-batch if it is known, and otherwise the number of offsets."""
    if not any(levels) or rows == offsets:
        return f"{rows:,} records"
    # There cannot be more records than offsets. But if a `foreachBatch` function computes the frame several times,
    # Spark counts its rows each time, so the number of records is not known.
    return f"{rows:,} records of {offsets:,} offsets" if rows < offsets else f"{offsets:,} offsets"


class ProgressListener(StreamingQueryListener):
    """A listener that prints the progress of each level after each micro-batch that had rows.

    Add it with `spark.streams.addListener(ProgressListener())`. The text is printed, or passed to `write` if that is
    given, on one of Spark's threads.
    """

    def __init__(self, write: Callable[[str], Any] = print) -> None:
        self._write = write

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Write the progress of a micro-batch, unless it had no rows."""
        if event.progress.numInputRows:
            self._write(table(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Write the error of a query that has failed."""
        if event.exception:
            self._write(f"{event.id} has ended: {event.exception.splitlines()[0]}")


def _form(offset: Any) -> Mapping[str, Any]:
    """Decode an offset from JSON. Returns an empty mapping if an offset of another source is not a JSON object."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            offset = None
    return offset if isinstance(offset, dict) else {}

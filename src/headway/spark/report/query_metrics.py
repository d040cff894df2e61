"""Makes samples of the progress of Spark's streaming queries, for the same exporters as those of Headway's clients."""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headway.metrics import table
from headway.metrics.histogram import Histogram
from headway.metrics.samples import Measure, Sample
from headway.spark.report.level_progress import LevelProgress, level_progress, outcomes_of

_MOST_ENDED = 100  # how many ended queries keep their totals
_MILLISECONDS = 1e3


class QueryMetrics(StreamingQueryListener):
    """A listener that measures all streaming queries of a session.

    >>> metrics = QueryMetrics()
    >>> spark.streams.addListener(metrics)  # doctest: +SKIP
    >>> register(metrics, producer)  # doctest: +SKIP

    `METRICS` in `headway.metrics` describes the samples, whose names begin with `headway_spark_`. A query without a
    name has its id in the label `query`. Any thread can call all methods.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _MeasuredQuery] = {}  # by the queries' ids, in the order of their starts

    def measure(self) -> Measure:
        """Return a function that returns the samples of all queries."""
        return self._samples

    def _samples(self) -> list[Sample]:
        with self._lock:
            return [sample for query in self._queries.values() for sample in query.samples()]

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Measure a query from now on."""
        with self._lock:
            query = self._find(str(event.id), event.name)
            query.is_running = True
            ended = [id_ for id_, each in self._queries.items() if not each.is_running]
            for id_ in ended[:-_MOST_ENDED]:
                del self._queries[id_]

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Add the figures of a micro-batch."""
        progress = json.loads(event.progress.json)
        with self._lock:
            query = self._find(str(event.progress.id), event.progress.name)
            query.is_running = True
            query.progressed(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing, because an idle query has the same figures as before."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Count the end of a query, and keep its totals."""
        with self._lock:
            self._find(str(event.id), None).ended(has_failed=event.exception is not None)

    def _find(self, id_: str, name: str | None) -> "_MeasuredQuery":
        if id_ not in self._queries:
            self._queries[id_] = _MeasuredQuery(name or id_)
        return self._queries[id_]


class _MeasuredQuery:
    """The totals of a query, and the state of its levels after the last micro-batch."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.is_running = False
        self._durations = Histogram(table.SPARK_BATCH_TIME.bounds)
        self._rows = 0
        self._failures = 0
        self._read: Counter[int] = Counter()
        self._levels: list[LevelProgress] = []
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Add the figures of a micro-batch."""
        rows = progress.get("numInputRows", 0)
        self._rows += rows
        if rows:
            took = progress.get("durationMs", {}).get("triggerExecution", progress.get("batchDuration", 0))
            self._durations.observe(took / _MILLISECONDS)
        self._levels = [level for source in progress.get("sources", ()) for level in level_progress(source)]
        self._read.update({each.level: each.read for each in _summed(self._levels)})
        for stage, counts in outcomes_of(progress).items():
            # The number at the end differs after each start, and is only needed to tell two stages of a query apart.
            self._outcomes[stage.removeprefix("headway ").rpartition(" #")[0]].update(counts)

    def ended(self, *, has_failed: bool) -> None:
        """Count the end of a run."""
        self.is_running = False
        self._failures += has_failed
        self._levels = []

    def samples(self) -> Iterator[Sample]:
        """Yield the samples."""
        yield Sample.of(table.SPARK_RUNNING, int(self.is_running), self._name)
        yield Sample.of(table.SPARK_FAILURES, self._failures, self._name)
        yield Sample.of(table.SPARK_ROWS, self._rows, self._name)
        yield Sample.of(table.SPARK_BATCH_TIME, self._durations.value(), self._name)
        for level, read in self._read.items():
            yield Sample.of(table.SPARK_READ, read, self._name, level)
        for each in _summed(self._levels):
            yield Sample.of(table.SPARK_WAITING, each.waiting, self._name, each.level)
            if each.oldest_wait is not None:
                yield Sample.of(table.SPARK_OLDEST, each.oldest_wait, self._name, each.level)
        for stage, outcomes in self._outcomes.items():
            for outcome, count in outcomes.items():
                yield Sample.of(table.SPARK_OUTCOMES, count, self._name, stage, outcome)


def _summed(levels: list[LevelProgress]) -> Iterator[LevelProgress]:
    """Yield the progress of each level over all sources of a query."""
    for level in sorted({each.level for each in levels}):
        of_level = [each for each in levels if each.level == level]
        waits = [each.oldest_wait for each in of_level if each.oldest_wait is not None]
        yield LevelProgress(
            level,
            sum(each.read for each in of_level),
            sum(each.waiting for each in of_level),
            max(waits) if len(waits) == len(of_level) else None,
        )

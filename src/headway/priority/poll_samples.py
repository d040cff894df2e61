"""Makes the samples of a priority consumer, on the thread that polls, because only that thread may use the consumer."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from headway.metrics import table
from headway.metrics.histogram import Histogram, HistogramValue
from headway.metrics.samples import Sample
from headway.records.record_types import ConsumerRecord, TopicPartition

_LOOK_EVERY = 0.5  # the time between two looks, in seconds


class PolledLevel(NamedTuple):
    """The state of a level after a poll."""

    share: int
    buffered: int
    returned: int
    partitions: int
    deleted_unread: int
    refused: bool


class PolledPartition(NamedTuple):
    """The next offset to return from a partition, and the end of its log as of the last fetch, if they are known."""

    position: int | None
    end: int | None
    is_paused: bool


class PollSamples:
    """Keeps the samples as of the last poll, so that other threads can read them.

    Args:
        group: The group, without the number of a level.
        levels: A function that returns the state of each level.
        partitions: A function that returns the state of each assigned partition.
        of_librdkafka: A function that returns the samples of librdkafka's statistics.
    """

    def __init__(
        self,
        group: str,
        levels: Callable[[], Sequence[PolledLevel]],
        partitions: Callable[[], Mapping[TopicPartition, PolledPartition]],
        of_librdkafka: Callable[[], Collection[Sample]],
    ) -> None:
        self._group = group
        self._levels = levels
        self._partitions = partitions
        self._of_librdkafka = of_librdkafka
        self._queue_times: defaultdict[int, Histogram] = defaultdict(lambda: Histogram(table.LEVEL_QUEUE_TIME.bounds))
        self._look_at = 0.0
        self._last: list[Sample] = []

    def samples(self) -> list[Sample]:
        """Return the samples as of the last poll. Any thread can call this."""
        return list(self._last)

    def took(self, records: Sequence[ConsumerRecord], counts: Sequence[int]) -> None:
        """Count how long the returned records have waited, highest level first.

        The records of a level that one poll returns count with the queue time of the first of them.
        """
        start = 0
        for level in reversed(range(len(counts))):
            if counts[level] and (created := records[start].timestamp) > 0:
                self._queue_times[level].observe(max(0.0, time.time() - created / 1000), counts[level])
            start += counts[level]

    def look(self, now: float, *, at_end: bool = False) -> None:
        """Make new samples, if it is time. The polling thread calls this in each poll, and once at the end."""
        if now >= self._look_at or at_end:
            self._look_at = now + _LOOK_EVERY
            self._last = [*self._of_levels(), *self._of_partitions(), *self._of_librdkafka()]

    def _of_levels(self) -> Iterator[Sample]:
        levels = self._levels()
        total = sum(each.share for each in levels)
        yield Sample.of(table.CONSUMER_REFUSED, int(any(each.refused for each in levels)), self._group)
        for level, each in enumerate(levels):
            of_metrics: dict[table.Metric, float | HistogramValue] = {
                table.LEVEL_SHARE: each.share / total if total else 0.0,
                table.LEVEL_READY: each.buffered,
                table.LEVEL_RETURNED: each.returned,
                table.LEVEL_PARTITIONS: each.partitions,
                table.LEVEL_DELETED_UNREAD: each.deleted_unread,
                table.LEVEL_QUEUE_TIME: self._queue_times[level].value(),
            }
            yield from (Sample.of(metric, value, self._group, level) for metric, value in of_metrics.items())

    def _of_partitions(self) -> Iterator[Sample]:
        not_done: defaultdict[tuple[str, int], int] = defaultdict(int)
        for partition, each in self._partitions().items():
            topic = partition.topic, partition.level
            labels = self._group, *topic, partition.partition
            not_done[topic] += 0
            if each.position is not None:
                yield Sample.of(table.PARTITION_POSITION, each.position, *labels)
            if each.end is not None:
                yield Sample.of(table.PARTITION_END, each.end, *labels)
            if each.position is not None and each.end is not None:
                left = max(0, each.end - each.position)
                not_done[topic] += left
                yield Sample.of(table.PARTITION_NOT_DONE, left, *labels)
            if each.is_paused:
                yield Sample.of(table.PARTITION_PAUSED, 1, *labels, "user")
        for topic, records in not_done.items():
            yield Sample.of(table.LEVEL_NOT_DONE, records, self._group, *topic)

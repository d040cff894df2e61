"""Plans each micro-batch on the driver: determines which offsets can be read, and lets the policy divide the limit."""

import logging
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from headway.errors import KafkaError
from headway.kafka.consumer.external_commits import ExternalCommits
from headway.kafka.reading.catalog import Catalog
from headway.kafka.reading.range_reader import HOW_TO_GO_ON, Offsets, Range, name_of, no_longer_holds
from headway.kafka.reading.topic_naming import kafka_topic
from headway.records.record_types import TopicPartition
from headway.spark.session.parallelism import cluster_parallelism
from headway.spark.source.level_split import LevelSplit, Sightings, longest_waits
from headway.spark.source.limit_control import START, LimitControl
from headway.spark.source.offset_bounds import refuse_beyond_end, resolve
from headway.spark.source.options import Options
from headway.spark.source.range_packing import TaskOptions, ranges
from headway.spark.source.stream_offset import StreamOffset

log = logging.getLogger(__name__)

IDLE_PAUSE_S = 0.15
"""How long an idle query pauses between two requests to Kafka, in seconds. Without a pause, Spark would make 80
requests a second, which would take an eighth of a core."""

_SIGHTINGS_PER_WAIT = 16  # sightings per strictMaxWait, which is therefore accurate to one sixteenth
_LEAST_LIMIT = 16  # targetTriggerTime does not lower the limit below this many records
_TOO_OFTEN = 10  # a warning is logged after this many micro-batches in a row have taken too long


class Bridged(NamedTuple):
    """The offset at which reading resumes in each existing partition, and a message for each loss of data."""

    start: Offsets
    losses: list[str]


class BatchPlanner:
    """Plans the micro-batches of one run of a query.

    The planner's state is lost in a restart. That is safe, because the state affects only how the policy divides later
    micro-batches.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._catalog = Catalog(options.kafka, options.isolation)
        self._commits = _commits(options)
        self._sightings = Sightings(spacing=options.strict_max_wait / _SIGHTINGS_PER_WAIT)
        self._admission = _admission(options, self._sightings)
        self._target: StreamOffset | None = None
        self._waiting_since: float | None = None
        self._found_nothing_at = -IDLE_PAUSE_S
        self._control = _control(options)
        self._planned: tuple[StreamOffset, int, float] | None = None
        self._last: StreamOffset | None = None
        self.seen: StreamOffset | None = None
        self.waits: dict[int, float] = {}

    def initial(self) -> StreamOffset:
        """Return the offsets that the option startingOffsets gives."""
        partitions, topic_ids = self._options.selection.find(self._catalog, self._options.naming)
        if not partitions:
            log.warning("%s yet. The query waits for one.", self._options.selection.none_found(self._options.naming))
        bound = self._options.start or "latest"
        offsets = resolve("startingOffsets", bound, partitions, self._catalog)
        refuse_beyond_end("startingOffsets", bound, self._catalog)
        if self._target is not None:
            # Set the end again. Records may have arrived since it was set, and the start must not be after the end.
            self.stop_at_what_is_there()
        return StreamOffset(offsets, topic_ids, begun=offsets)

    def stop_at_what_is_there(self) -> None:
        """Set the end of the query, so that it reads only the records that exist now."""
        self._target = self._ends()

    def next(self, begin: StreamOffset, *, limited: bool) -> StreamOffset:
        """Return the end of the micro-batch that starts at `begin`, or `begin` itself if too few records are waiting.

        Raises `KafkaError` if Kafka no longer has the next offsets, unless failOnDataLoss is false.
        """
        self._note_time(begin)
        self._pause_when_idle()
        self.seen = self._with_unfinished(begin, self._with_unlisted(begin, self._target or self._ends()))
        if self._commits is not None:
            # All records before the start of a micro-batch are done. If a topic has been recreated, its old offsets are
            # not committed, because they would skip records of the new topic.
            done = {at: offset for at, offset in begin.offsets.items() if begin.same_topic(self.seen, at)}
            if self._target and begin.offsets == self._target.offsets:
                self._commits.finish(done)  # wait for the commit, because the query ends and Spark kills this process
            else:
                self._commits.commit(done)
        start, losses = bridge(begin, self.seen, self._starts(begin, self.seen))
        if losses and self._options.fail_on_data_loss:
            raise KafkaError(f"{losses[0]} {HOW_TO_GO_ON}")
        # In a new partition, the end offset is set to the start offset, so that Spark's log has the start of the
        # partition's first range.
        end = {at: stop if at in begin.offsets else start[at] for at, stop in self.seen.offsets.items()}
        now = time.monotonic()
        if restarted := [at for at, offset in start.items() if begin.offsets.get(at) != offset]:
            self._sightings.forget(restarted)
        self._sightings.note(end, now)
        if self._too_early(start, end):
            self.waits = longest_waits(self._sightings, start, end, now)
            return self._nothing(begin)
        planned = StreamOffset(self._stops(start, end, now, limited=limited), self.seen.topic_ids)
        self.waits = longest_waits(self._sightings, planned.offsets, end, now)
        if planned == begin:
            return self._nothing(begin)
        _log(losses)
        is_first = begin.begun == begin.offsets  # `initial` makes them equal
        limit = self._control.limit if self._control else None
        planned = replace(planned, begun=start if is_first else None, limit=limit)
        wanted = ranges(begin, planned)
        records = sum(item.length for item in wanted)
        self._planned = planned, records, time.monotonic()
        slow = self._control is not None and self._control.is_slow(records)
        self._last = _divided(planned, wanted, self._options.tasks, slow=slow)
        return self._last

    def replaced_topics(self, end: StreamOffset) -> set[str]:
        """If this micro-batch is being replayed, return the Kafka topics that were recreated after it was planned.

        Raises `KafkaError` if there are any, unless failOnDataLoss is false.
        """
        if end == self._last:  # not a replay: this run has just planned the micro-batch
            return set()
        ids = self._catalog.topic_ids(end.topic_ids)
        replaced = {name for name, planned in end.topic_ids.items() if ids.get(name, planned) != planned}
        losses = [
            f"A micro-batch of the Kafka topic {name} must be read again, but the topic was deleted and recreated."
            for name in sorted(replaced)
        ]
        if losses and self._options.fail_on_data_loss:
            raise KafkaError(f"{losses[0]} {HOW_TO_GO_ON}")
        _log(losses)
        return replaced

    def close(self) -> None:
        """Close the connections."""
        if self._commits is not None:
            self._commits.close()

    def _ends(self) -> StreamOffset:
        partitions, topic_ids = self._options.selection.find(self._catalog, self._options.naming)
        return StreamOffset(self._catalog.ends(partitions), topic_ids)

    def _with_unlisted(self, begin: StreamOffset, seen: StreamOffset) -> StreamOffset:
        """Add the known partitions that Kafka has not listed, unless their topic has been recreated.

        Partitions cannot be removed from a topic, so they still exist. A broker whose metadata is out of date may leave
        out partitions that were added to the topic only recently.
        """
        if self._options.selection.assigned is not None:
            return seen
        ids = {name: topic_id for name, topic_id in seen.topic_ids.items() if begin.topic_ids.get(name) == topic_id}
        unlisted = {
            at: offset for at, offset in begin.offsets.items() if at not in seen.offsets and kafka_topic(at) in ids
        }
        return replace(seen, offsets=seen.offsets | unlisted) if unlisted else seen

    def _with_unfinished(self, begin: StreamOffset, seen: StreamOffset) -> StreamOffset:
        """Raise each end offset that is below the offset that the query has reached, if Kafka still has that offset.

        A query that is restarted with `isolation` changed to read_committed may already have read records of
        transactions that are still open.
        """
        behind = [
            at
            for at, reached in begin.offsets.items()
            if seen.offsets.get(at, reached) < reached and begin.is_surely_same_topic(seen, at)
        ]
        if not behind:
            return seen
        written = self._catalog.written(behind)
        kept = {at: begin.offsets[at] for at in behind if written[at] >= begin.offsets[at]}
        return replace(seen, offsets=seen.offsets | kept)

    def _starts(self, begin: StreamOffset, seen: StreamOffset) -> Offsets:
        """Return the first offset of each partition.

        For a partition that the query has read to its end, the end offset is returned without a request to Kafka,
        because that partition has no unread records that could be lost.
        """
        reached, ends = begin.offsets, seen.offsets
        asked = [at for at, end in ends.items() if reached.get(at) != end or not begin.same_topic(seen, at)]
        return ends | self._catalog.starts(asked)

    def _stops(self, start: Offsets, end: Offsets, now: float, *, limited: bool) -> Offsets:
        if self._admission is None or not limited:
            return end
        limit = self._control.limit if self._control else None
        return self._admission.stops(start, end, now, limit)

    def _note_time(self, begin: StreamOffset) -> None:
        """Record how long the last micro-batch took: until now, because Spark has requested the next micro-batch."""
        if self._control is None:
            return
        if self._planned is None:
            if begin.limit is not None:  # true after a restart of the query
                self._control = _control(self._options, begin.limit)
            self._planned = begin, 0, time.monotonic()
            return
        planned, records, since = self._planned
        if not records or planned != begin:
            return
        took = time.monotonic() - since
        self._planned = begin, 0, since
        self._control.note(records, took)
        if self._control.at_least_for == _TOO_OFTEN:
            log.warning(
                "The option `targetTriggerTime` is %g s, but micro-batches of %d records take %.1f s. Raise the "
                "option, or shorten the interval of the query's trigger.",
                *(self._control.target, records, took),
            )

    def _too_early(self, start: Offsets, end: Offsets) -> bool:
        """Return whether fewer records than minRecordsPerTrigger are waiting, and maxTriggerDelay has not passed."""
        waiting = sum(end.values()) - sum(start.values())
        if self._target is not None or not 0 < waiting < self._options.min_records:
            self._waiting_since = None
            return False
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < self._options.max_trigger_delay:
            return True
        self._waiting_since = None
        return False

    def _nothing(self, begin: StreamOffset) -> StreamOffset:
        self._found_nothing_at = time.monotonic()
        return begin

    def _pause_when_idle(self) -> None:
        if self._target is None:
            time.sleep(max(0, self._found_nothing_at + IDLE_PAUSE_S - time.monotonic()))


def _divided(planned: StreamOffset, wanted: Collection[Range], options: TaskOptions, *, slow: bool) -> StreamOffset:
    """Record the number of tasks in the plan.

    The number depends on the cluster, so a replay could not compute the same number again.
    """
    cores = cluster_parallelism() or os.cpu_count() or 1
    return replace(planned, tasks=options.count(wanted, cores, slow=slow), split=options.split)


def _commits(options: Options) -> ExternalCommits | None:
    if options.group is None:
        return None
    has_levels = options.naming.levels is not None or bool(options.naming.priorities)
    return ExternalCommits(options.kafka, options.group, has_levels=has_levels)


def _admission(options: Options, sightings: Sightings) -> LevelSplit | None:
    policy, most = options.make_policy(), options.most_records
    if policy is None or most is None:
        return None
    return LevelSplit(policy, options.naming.level_count, most, sightings)


def _control(options: Options, limit: int = START) -> LimitControl | None:
    if options.target_trigger_time is None or options.most_records is None:
        return None
    most = options.most_records
    return LimitControl(options.target_trigger_time, min(_LEAST_LIMIT, most), most, limit)


def _log(losses: Sequence[str]) -> None:
    for loss in losses:
        log.warning("%s The lost records are skipped.", loss)


def bridge(begin: StreamOffset, seen: StreamOffset, first: Offsets) -> Bridged:
    """Determine where reading resumes in each partition of `seen`, and which records have been lost.

    `begin` has the offsets that the query has reached, and `first` the first offset that each partition still holds.
    A partition that is not in `begin` is new, and is read from its first offset.

    >>> at = TopicPartition("orders", partition=0)
    >>> bridge(StreamOffset({at: 5}, {}), StreamOffset({at: 9}, {}), {at: 0})
    Bridged(start={TopicPartition(topic='orders', partition=0, level=0): 5}, losses=[])
    >>> print(*bridge(StreamOffset({at: 5}, {}), StreamOffset({at: 9}, {}), {at: 7}).losses)
    Partition 0 of the Kafka topic orders-0 no longer holds all offsets from 5 to before 9 (it begins at 7).
    """
    losses = [_gone(at) for at in begin.offsets if at not in seen.offsets]
    start: Offsets = {}
    for at, end in seen.offsets.items():
        reached = begin.offsets.get(at, first[at])
        if end < reached and begin.is_surely_same_topic(seen, at):
            losses.append(_lost_its_end(at, reached, end))
            start[at] = end
            continue
        loss = _loss(at, reached, begin, seen, first[at])
        losses += [loss] if loss else []
        start[at] = min(end, first[at] if loss else reached)
    return Bridged(start, losses)


def _lost_its_end(at: TopicPartition, reached: int, end: int) -> str:
    return (
        f"The query has read {name_of(at)} up to offset {reached}, but Kafka only holds offsets before {end}: a broker "
        "that did not have the last records became the partition's leader, so these records are lost."
    )


def _loss(at: TopicPartition, reached: int, begin: StreamOffset, seen: StreamOffset, first: int) -> str | None:
    end = seen.offsets[at]
    if not begin.same_topic(seen, at) or end < reached:
        return (
            f"The query has read {name_of(at)} up to offset {reached}, but the topic was deleted and recreated: it now "
            f"holds offsets from {first} to before {end}."
        )
    if reached < first:
        return no_longer_holds(Range(at, reached, end), f"it begins at {first}")
    return None


def _gone(at: TopicPartition) -> str:
    return (
        f"The query has read {name_of(at)}, but that partition no longer exists, or the options no longer include its "
        "topic or level."
    )

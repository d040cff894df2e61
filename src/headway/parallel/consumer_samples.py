"""Makes the samples of a parallel consumer, from what its parts have counted."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from headway.core.engine.assignment import PartitionProgress
from headway.core.levels.lending import Lending
from headway.execution.dispatch import Dispatch
from headway.execution.measurements import Measurements
from headway.execution.metrics import ParallelMetrics
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.metrics import table
from headway.metrics.samples import Sample, merge
from headway.parallel.commits import Commits
from headway.parallel.fetching import Fetching
from headway.parallel.observations import Observations
from headway.parallel.record_ages import AgeMark
from headway.parallel.run import Run
from headway.records.record_types import TopicPartition

_MOST_TENANTS = 20
_STATES = ("starting", "running", "paused", "stopping", "closed")


class _ConsumerMoment(NamedTuple):
    """What the dispatch and the engine hold at one moment, read under one lock."""

    progress: Sequence[PartitionProgress]
    marks: dict[TopicPartition, AgeMark | None]
    ready: Sequence[int]
    taken: Sequence[int]
    bytes: Sequence[int]
    slots: int
    mean: float | None
    tenants: dict[str, float]
    tenants_ready: dict[str, int]
    own: Sequence[Sample]


class ConsumerSamples:
    """Makes the samples of a parallel consumer. Any thread can call it, even after the consumer was closed.

    Args:
        group: The group, without the number of a level.
        client: The user's `client.id`.
        handler: A function that returns the name of the handler.
        metrics: A function that returns the consumer's metrics.
        dispatch: The dispatch, which measures attempts from now on.
        levels: The group members of all levels.
        fetching: Fetches the records.
        commits: Sends the commits.
        run: The run of the consumer.
        observations: What the control thread sees of Kafka.
    """

    def __init__(
        self,
        group: str,
        client: str,
        handler: Callable[[], str],
        metrics: Callable[[], ParallelMetrics],
        dispatch: Dispatch,
        levels: LevelConsumers,
        fetching: Fetching,
        commits: Commits,
        run: Run,
        observations: Observations,
    ) -> None:
        self._group = group
        self._client = client
        self._handler = handler
        self._metrics = metrics
        self._dispatch = dispatch
        self._levels = levels
        self._fetching = fetching
        self._commits = commits
        self._run = run
        self._seen = observations
        self._measurements = Measurements(levels.count)
        with dispatch.lock:
            dispatch.measure(self._measurements)

    def samples(self) -> list[Sample]:
        """Return the current samples, without a request to Kafka."""
        with self._dispatch.lock:
            moment = self._moment()
        return [
            *moment.own,
            *self._of_handler(self._metrics(), moment),
            *self._of_topics(moment),
            *self._of_levels(moment),
            *(sample for each in moment.progress for sample in self._of_partition(each, moment.marks[each.partition])),
            *self._of_member(),
            *self._of_librdkafka(),
        ]

    def _moment(self) -> _ConsumerMoment:
        engine, handler, measured = self._dispatch.engine, self._handler(), self._measurements
        progress = engine.observe(self._seen.positions, self._seen.log_ends)
        tenants = engine.busiest_tenants(_MOST_TENANTS)
        own = [
            Sample.of(table.HANDLER_DURATION, measured.durations(), self._group, handler),
            Sample.of(table.HANDLER_RETRIED, measured.retried, self._group, handler),
            Sample.of(table.HANDLER_TIMED_OUT, measured.timed_out, self._group, handler),
            *(
                Sample.of(table.HANDLER_FAILED, count, self._group, handler, error)
                for error, count in measured.failed.items()
            ),
            *(
                Sample.of(table.LEVEL_QUEUE_TIME, value, self._group, level)
                for level, value in enumerate(measured.queue_times())
            ),
            *(
                Sample.of(table.LEVEL_DONE, done + skipped, self._group, level)
                for level, (done, skipped) in enumerate(
                    zip_longest(measured.done_of_levels, engine.skipped, fillvalue=0)
                )
            ),
            *(
                Sample.of(table.PARTITION_FAILED, count, self._group, each.topic, each.level, each.partition)
                for each, count in measured.failed_of_partitions.items()
            ),
        ]
        return _ConsumerMoment(
            progress=progress,
            marks={each.partition: self._seen.ages.of(each.partition, each.committable) for each in progress},
            ready=engine.ready,
            taken=engine.slots_taken,
            bytes=engine.bytes_held,
            slots=self._dispatch.usable_slots(),
            mean=measured.mean,
            tenants=tenants,
            tenants_ready=engine.ready_of_tenants(tenants),
            own=own,
        )

    def _of_handler(self, counts: ParallelMetrics, moment: _ConsumerMoment) -> Iterator[Sample]:
        labels = self._group, self._handler()
        of_metrics = {
            table.HANDLER_RUNNING: counts.running,
            table.HANDLER_READY: counts.ready,
            table.HANDLER_WAITING: max(0, counts.remaining - counts.running),
            table.HANDLER_LANES: sum(each.lanes for each in moment.progress),
            table.HANDLER_SLOTS: moment.slots,
            table.HANDLER_DONE: counts.done,
            table.HANDLER_DEAD: counts.dead_letters,
            table.HANDLER_EXPIRED: counts.expired,
            table.HANDLER_SKIPPED: counts.skipped,
            table.HANDLER_ABANDONED: counts.abandoned,
            table.HANDLER_LATE: counts.late,
            table.HANDLER_HELD: counts.held,
            table.HANDLER_HELD_FAILURES: counts.held_failures,
            table.HANDLER_DROPPED: counts.dropped,
            table.HANDLER_MOVED: counts.moved,
            table.CIRCUIT_OPEN: int(counts.circuit_open),
        }
        yield from (Sample.of(metric, value, *labels) for metric, value in of_metrics.items())
        yield Sample.of(table.CONSUMER_REFUSED, int(counts.refused is not None), self._group)
        for rule, held in counts.held_by_rule.items():
            yield Sample.of(table.RULE_HELD, held, self._group, rule)
        for tenant, seconds in moment.tenants.items():
            yield Sample.of(table.TENANT_TIME, seconds, self._group, tenant)
            yield Sample.of(table.TENANT_WAITING, moment.tenants_ready[tenant], self._group, tenant)

    def _of_topics(self, moment: _ConsumerMoment) -> Iterator[Sample]:
        not_done: defaultdict[tuple[str, int], int] = defaultdict(int)
        oldest: defaultdict[tuple[str, int], float] = defaultdict(float)
        now = time.time()
        for each in moment.progress:
            topic = each.partition.topic, each.partition.level
            not_done[topic] += each.incomplete + (each.unread or 0)
            mark = moment.marks[each.partition]
            if each.incomplete and mark and mark.created is not None:
                oldest[topic] = max(oldest[topic], now - mark.created)
        for topic, records in not_done.items():
            yield Sample.of(table.LEVEL_NOT_DONE, records, self._group, *topic)
            yield Sample.of(table.LEVEL_OLDEST, oldest[topic], self._group, *topic)
            if moment.mean is not None:
                yield Sample.of(table.LEVEL_WORK, records * moment.mean / max(1, moment.slots), self._group, *topic)

    def _of_levels(self, moment: _ConsumerMoment) -> Iterator[Sample]:
        partitions = [0] * self._levels.count
        for partition in self._levels.assignment():
            partitions[partition.level] += 1
        deleted = {level: count for member in self._levels for level, count in member.membership.deleted_unread.items()}
        shares = self._dispatch.engine.shares
        lending = Lending.of(shares, moment.taken, moment.slots) if shares else None
        for level in range(self._levels.count):
            labels = self._group, level
            yield Sample.of(table.LEVEL_READY, moment.ready[level], *labels)
            yield Sample.of(table.LEVEL_RUNNING, moment.taken[level], *labels)
            yield Sample.of(table.LEVEL_BUFFER, moment.bytes[level], *labels)
            yield Sample.of(table.LEVEL_PARTITIONS, partitions[level], *labels)
            yield Sample.of(table.LEVEL_DELETED_UNREAD, deleted.get(level, 0), *labels)
            if lending:
                yield Sample.of(table.LEVEL_SHARE, lending.ratios[level], *labels)
                yield Sample.of(table.LEVEL_LENT, lending.lent[level], *labels)
                yield Sample.of(table.LEVEL_BORROWED, lending.borrowed[level], *labels)

    def _of_partition(self, each: PartitionProgress, mark: AgeMark | None) -> Iterator[Sample]:
        topic, number, level = each.partition
        labels = self._group, topic, level, number
        stands = each.incomplete > 0 and each.highest_done > each.committable and mark is not None
        of_metrics = {
            table.PARTITION_INCOMPLETE: each.incomplete,
            table.PARTITION_COMMITTED: each.committed,
            table.PARTITION_COMMITTABLE: each.committable,
            table.PARTITION_HIGHEST_DONE: each.highest_done,
            table.PARTITION_POSITION: each.end,
            table.PARTITION_MAP: each.map_characters,
            table.PARTITION_EPOCH: each.epoch,
            table.PARTITION_STUCK: time.monotonic() - mark.arrived if stands and mark else 0.0,
        }
        yield from (Sample.of(metric, value, *labels) for metric, value in of_metrics.items())
        if each.unread is not None:
            yield Sample.of(table.PARTITION_NOT_DONE, each.incomplete + each.unread, *labels)
        if (end := self._seen.log_ends.get(each.partition)) is not None:
            yield Sample.of(table.PARTITION_END, end, *labels)
        reason = self._seen.reasons_to_wait.get(each.partition)
        if each.is_full:
            reason = reason or ("map" if each.is_pressed else "buffer")
        if reason:
            yield Sample.of(table.PARTITION_PAUSED, 1, *labels, reason)

    def _of_member(self) -> Iterator[Sample]:
        yield from (
            Sample.of(table.CONSUMER_STATE, int(state == self._state()), self._group, state) for state in _STATES
        )
        yield Sample.of(table.CONSUMER_COMMITS, self._commits.acknowledged, self._group)
        yield Sample.of(table.CONSUMER_COMMIT_FAILURES, self._commits.failed, self._group)
        yield Sample.of(table.CONSUMER_COMMIT_TIME, self._commits.times.value(), self._group)
        yield Sample.of(table.CONSUMER_MAP_TIME, self._commits.map_times.value(), self._group)
        yield Sample.of(table.CONSUMER_REBALANCES, self._fetching.rebalances, self._group)

    def _state(self) -> str:
        if self._run.has_ended:
            return "closed"
        if self._run.is_stopping:
            return "stopping"
        if self._seen.round_at is None:
            return "starting"
        return "paused" if self._dispatch.paused else "running"

    def _of_librdkafka(self) -> list[Sample]:
        return merge(member.client.statistics.samples(self._client) for member in self._levels)

"""The priority consumer: it has one group member per level, and polls all of them together.

In each poll the policy decides how many records to fetch from each level. The fetched records go into the level
buffers, and the policy then decides how many records of each buffer are returned. Positions and commits never include
records that are still in the buffers, because these have not been returned yet.
"""

import contextlib
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headway.core.levels.capacity import Distributor
from headway.core.levels.level_buffer import LevelBuffer
from headway.core.levels.naming import checked_topics, subscriptions
from headway.core.levels.policies import PolicyName, make_policy
from headway.declarations import check_function, check_place, check_whole, checked_timeout
from headway.errors import ClosedError, ConfigError, HeadwayError, KafkaError, WakeupError
from headway.kafka.binding.capi import is_of_a_member
from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.kafka.consumer.commits import AsyncCommits, OnCommit, log_failure
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.kafka.consumer.level_consumers import END_WITHIN, MemberOffsets, Partitions, members_of
from headway.kafka.consumer.standing import Standing, not_a_member, standing
from headway.metrics.samples import Measure, Sample, merge
from headway.priority.poll_samples import PolledLevel, PolledPartition, PollSamples
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.deferred_signals import defer_signals
from headway.runtime.end_steps import EndSteps, Step, construction
from headway.runtime.extras import how_to_install
from headway.runtime.gc_pause import GcPause
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config, ConsumerSettings

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 30.0
"""How long a call waits for Kafka by default, in seconds."""

OnRebalance = Callable[[list[TopicPartition]], Any]

# The longest time in seconds between two calls of librdkafka by a waiting poll. These calls keep the member in its
# group and run rebalance callbacks.
_LONGEST_WAIT = 1.0
# How many seconds a member that is leaving waits for the answer to a commit. Then it abandons the commit, because its
# group is waiting for it to leave.
_LEAVE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class LevelMetrics:
    """The metrics of one level of a consumer.

    `share` is the number of records that the level gets of each poll's capacity. `demand` is the maximum number of
    records that the next poll fetches. `buffered` counts the records that were fetched and not returned yet, and
    `returned` the records that were returned since the start. `lag` is the number of records in Kafka that were not
    fetched yet, as of the last fetch. `refused` names the permission that the client lacks, or is None.
    `deleted_unread` counts the offsets that were deleted, by retention or by a user, before this consumer read them.
    """

    level: int
    share: int
    demand: int
    buffered: int
    returned: int
    lag: int
    partitions: int
    refused: str | None = None
    deleted_unread: int = 0


class PriorityConsumer:
    """A consumer that reads all levels of its topics and divides the capacity of each poll among the levels.

    Level i of the topic `orders` is the Kafka topic `orders-i`, which the group `<group.id>-i` reads. `policy` is
    `fair` (each level has a share, and capacity that a level does not use goes to the others), `strict` (the highest
    level first, with a limit on how long a record waits) or `capacity_burst` (the policy of the Java priority client).
    `distributor` divides `max.poll.records` into the levels' shares. The settings are listed in
    `headway.settings.config`; all other keys are passed to librdkafka. Raises `ConfigError` if a setting is not valid.

    Only `wakeup` and `set_sasl_credentials` are thread-safe. `close`, or the end of the `with` block, leaves the
    groups.
    """

    def __init__(self, config: Config, *, distributor: Distributor | None = None, policy: PolicyName = "fair") -> None:
        settings = ConsumerSettings.parse(config)
        self._shares, self._policy = make_policy(
            policy,
            distributor,
            settings.levels,
            settings.capacity,
            window_size=settings.window_size,
            threshold=settings.threshold,
            max_wait=settings.max_wait,
        )
        self._settings = settings
        # Whenever a rebalance callback can run, each fetched record is in `_buffers` or `_batch` until it is returned.
        self._buffers: list[LevelBuffer[ConsumerRecord]] = [LevelBuffer() for _ in range(settings.levels)]
        # The next records of an iteration or of an Arrow batch. The deque is changed only in place.
        self._batch: deque[ConsumerRecord] = deque()
        self._returned = [0] * settings.levels
        self._subscription: Sequence[str] | Mapping[str, int] = ()
        self._woken = False
        self._closed = self._closing = self._is_forked = False
        self._samples: PollSamples | None = None
        self._end = EndSteps(self._steps_to_end)
        self._closes_by = math.inf
        self._called_back_for: set[int] | None = None  # the levels whose rebalance callback is running, or None
        self._auto_commits = settings.auto_commit_interval is not None
        self._commit_at = time.monotonic() + (settings.auto_commit_interval or 0)
        with construction(self.close):
            register_for_forks(self)
            self._levels = members_of(settings)
            self._commits = AsyncCommits(self._levels.commit)
            self.wake = Wakeup()
            for member in self._levels:
                member.client.wake_with(self.wake)

    # Subscription

    def subscribe(
        self,
        topics: str | Iterable[str] | Mapping[str, int],
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> None:
        """Subscribe to these topics at all levels, or to each topic of a mapping at its level (KIP-349).

        The topics replace the earlier subscription. A name that starts with `^` is a pattern. The callbacks are called
        during a poll, with a list of `TopicPartition`. `on_assign` can seek, and `on_revoke` can commit. `on_lost`, by
        default the same function as `on_revoke`, is called for partitions that another member may already own. Raises
        `ConfigError` for a level that does not exist.
        """
        self._check_open()
        self._check_not_in_callback("subscribe")
        topics = checked_topics(topics)
        for name, callback in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
            if callback is not None:
                check_function(name, callback, ("partitions",))
        listener = _Listener(self, on_assign, on_revoke, on_lost or on_revoke)
        self._levels.subscribe(subscriptions(topics, self._settings.levels), listener)
        self._subscription = topics

    def unsubscribe(self) -> None:
        """Leave the groups, as `close` does. The consumer can subscribe again afterwards."""
        self._check_open()
        self._check_not_in_callback("unsubscribe")
        self._levels.unsubscribe()
        self._subscription = ()

    def subscription(self) -> Sequence[str] | Mapping[str, int]:
        """Return the topics, or the mapping of topics to levels, that were given to `subscribe`."""
        return self._subscription

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions, of all levels, that are assigned to this consumer."""
        return self._levels.assignment()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for each new login, and log in at once if a broker has refused the earlier ones.

        Open connections stay open. Thread-safe. Raises `ConfigError` for credentials that librdkafka does not accept.
        """
        self._check_open()
        for member in self._levels:
            member.client.set_sasl_credentials(username, password)

    # Records

    def poll(self, timeout: float | None = None) -> list[ConsumerRecord]:
        """Return the next records, at most `max.poll.records`: highest level first, offset order within a partition.

        Waits for a record for at most `timeout` seconds, or without a limit if `timeout` is None. Raises `FetchError`
        if a level could not fetch since the last poll, `WakeupError` after `wakeup`, or the error that a rebalance
        callback raised. An error loses no record, because the next poll returns the records that this poll would have
        returned.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        while not (records := self.poll_now(now)) and (deadline is None or now < deadline):
            self.wake.wait(longest_wait(now, deadline))
            now = time.monotonic()
        return records

    def poll_now(self, now: float) -> list[ConsumerRecord]:
        """Poll without waiting. `now` is the current time of `time.monotonic`."""
        self._begin_poll(now)
        if self._batch:
            return self._rest_of_batch()
        with GcPause():
            self._fetch(now)
            return self._take(now)

    def consume_arrow(
        self, max_records: int, timeout: float | None = None, *, headers: bool = False
    ) -> "pyarrow.RecordBatch":
        """Return the next records as a batch of Arrow columns, for example for pandas, Polars or DuckDB.

        The columns are `key`, `value`, `topic`, `level`, `partition`, `offset` and `timestamp`, and with `headers` also
        `headers`. Keys and values are always the raw bytes: deserialisers are not used.

        Waits for a record as `poll` does. Then it returns all records that have arrived, but at most `max_records`; the
        batch is empty if `timeout` is over. A batch with more than `max.poll.records` records has the records of
        several polls, one after the other, and the policy divides each of them. Positions, commits and errors are
        those of `poll`. Raises `ConfigError` if `max_records` is not at least 1, or if pyarrow is not installed.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        self.check_arrow(max_records)
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        while not self.collect_now(max_records, now) and (deadline is None or now < deadline):
            self.wake.wait(longest_wait(now, deadline))
            now = time.monotonic()
        return self.collected(max_records, headers=headers)

    @staticmethod
    def check_arrow(max_records: int) -> None:
        """Raise `ConfigError` if `consume_arrow` cannot be called with this argument, or without pyarrow."""
        check_whole("max_records", max_records, 1)
        if find_spec("pyarrow") is None:
            raise ConfigError(f"consume_arrow needs pyarrow. Install it: {how_to_install('arrow')}.")

    def collect_now(self, count: int, now: float) -> bool:
        """Fetch without waiting until `count` records are collected or no more have arrived.

        Returns whether any record is collected. `now` is the current time of `time.monotonic`.
        """
        self._begin_poll(now)
        with GcPause():
            while len(self._batch) < count:
                self._fetch(now)
                # An exception from a signal handler would lose the records that were just taken from a buffer.
                with defer_signals():
                    records = self._take(now)
                    self._batch.extend(records)
                if not records:
                    break
                now = time.monotonic()
        return bool(self._batch)

    def collected(self, count: int, *, headers: bool) -> "pyarrow.RecordBatch":
        """Return at most `count` of the collected records as Arrow columns."""
        from headway.kafka.reading.arrow_columns import batch_of  # noqa: PLC0415 - needs pyarrow, which is optional

        # If this raises an error, for example because of Ctrl-C, the next call returns the same records.
        records = list(itertools.islice(self._batch, min(count, len(self._batch))))
        batch = batch_of(records, headers=headers)
        with defer_signals():
            for _ in records:
                self._batch.popleft()
        return batch

    def _begin_poll(self, now: float) -> None:
        self._check_open()
        self._check_not_in_callback("poll")
        self._raise_pending()
        self._commits.settle()
        self._auto_commit(now)

    def wakeup(self) -> None:
        """Make the waiting poll raise `WakeupError`, or the next poll if none is waiting. Thread-safe."""
        self._woken = True
        self.wake.set()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """Wait for the next record and return it. Commits include only the records that were returned."""
        if self._batch:
            return self._batch.popleft()
        now = time.monotonic()
        while (record := self.next_now(now)) is None:
            self.wake.wait(longest_wait(now, None))
            now = time.monotonic()
        return record

    def next_now(self, now: float) -> ConsumerRecord | None:
        """Return the next record, or None if no record is available yet. `now` is the time of `time.monotonic`."""
        if not self._batch:
            self._begin_poll(now)
            with GcPause():
                self._fetch(now)
                # An exception from a signal handler would lose the records that were just taken from a buffer.
                with defer_signals():
                    self._batch.extend(self._take(now))
        return self._batch.popleft() if self._batch else None

    def _fetch(self, now: float) -> None:
        """Fetch as many records as the policy demands. All rebalance callbacks run in this call."""
        demand = self._policy.demand(self._buffers)
        with defer_signals():  # an exception from a signal handler would lose the records that were just fetched
            for level, member in self._levels.highest_first():
                if demand[level]:
                    self._buffers[level].put(member.fetch(level, demand[level], now), now)
                else:
                    member.serve(now)
        if self._samples:
            self._samples.look(now)
        for member in self._levels:
            for error in member.membership.callback_errors:
                if not isinstance(error, Exception):  # Ctrl-C in a callback must be raised now, not by the next poll
                    member.membership.callback_errors.remove(error)
                    raise error

    def _take(self, now: float) -> list[ConsumerRecord]:
        counts = self._policy.split(self._buffers, self._settings.capacity, now)
        records: list[ConsumerRecord] = []
        for level in reversed(range(len(counts))):
            if counts[level]:
                records += self._buffers[level].take(counts[level])
                self._returned[level] += counts[level]
        if self._samples:
            self._samples.took(records, counts)
        return records

    def _rest_of_batch(self) -> list[ConsumerRecord]:
        records = list(self._batch)
        self._batch.clear()
        return records

    def _raise_pending(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError("The poll was interrupted by wakeup(). No record was lost.")
        for member in reversed(self._levels):
            for errors in (member.membership.callback_errors, member.client.errors):
                if errors:
                    raise errors.popleft()

    # Commits

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        *,
        asynchronous: bool = False,
        on_commit: OnCommit | None = None,
        timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        """Commit the next offset to read of each partition.

        By default, this is the offset after the last record that was returned from the partition.

        If a rebalance callback calls this method without offsets, only the levels of the group that is rebalancing are
        committed. Another group may also be rebalancing and waiting for this member, and would then not answer a commit
        until its rebalance has ended.

        A synchronous commit raises `KafkaError` if Kafka refuses it or does not answer within `timeout` seconds. An
        asynchronous commit does not wait: a later poll calls `on_commit(error, offsets)` with the outcome. Without
        `on_commit`, errors are logged. Asynchronous commits that are requested while another commit is under way are
        sent together after the answer to that commit.
        """
        timeout = checked_timeout(timeout)
        self._check_open()
        if offsets is None:
            offsets = self._returned_offsets(self._called_back_for)
        else:
            for offset in offsets.values():
                check_place("offset", offset)
        self._levels.require_read(offsets)
        if asynchronous:
            self._commits.add(offsets, on_commit)
            return
        deadline = time.monotonic() + timeout
        # First wait for an earlier commit, because librdkafka must not retry it after this one. But stop waiting after
        # half of the timeout, so that a commit that Kafka never answers does not prevent this one.
        self._commits.finish(timeout / 2)
        self._levels.commit(offsets).wait(deadline, timeout)

    def hear_refusal(self, level: int, error: KafkaError) -> None:
        """If the error means that the member was expelled from a level's group, rejoin the group, and call `on_lost`.

        `error` is the error with which Kafka refused the level's offsets in a transaction. Kafka reported the error to
        the producer, so librdkafka's consumer might notice only minutes later, when it sends a heartbeat, that the
        member was expelled. This method need not be called when Kafka refuses the consumer's own commit.
        """
        if standing(error) is Standing.EXPELLED and self._called_back_for is None and not self._closing:
            log.warning("The consumer for level %d was expelled from its group and joins it again: %s", level, error)
            self._levels[level].membership.rejoin()

    def _auto_commit(self, now: float) -> None:
        interval = self._settings.auto_commit_interval
        if interval is not None and now >= self._commit_at:
            self._commit_at = now + interval
            self._try_commit(self._returned_offsets(), asynchronous=True)

    def _try_commit(self, offsets: Mapping[TopicPartition, int], *, asynchronous: bool) -> None:
        try:
            self.commit(offsets, asynchronous=asynchronous, timeout=self._leave_timeout())
        except HeadwayError as error:
            log_failure(error, offsets)

    def _leave_timeout(self) -> float:
        return max(0.0, min(_LEAVE_TIMEOUT, self._closes_by - time.monotonic()))

    # Positions

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll will return from this partition."""
        self._check_open()
        self._levels.of(partition)
        known = self._returned_offsets().get(partition)
        return self._start(partition) if known is None else known

    def _start(self, partition: TopicPartition) -> int:
        committed = self.committed([partition])[partition]
        if committed is not None:
            return committed
        reset = str(self._settings.kafka.get("auto.offset.reset", "latest"))
        ends = self.beginning_offsets if reset in ("earliest", "smallest", "beginning") else self.end_offsets
        return ends([partition])[partition]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading an assigned partition at this offset."""
        check_place("offset", offset)
        self._check_open()
        self._levels.of(partition).seek(partition, offset)
        self._discard(partition.level, lambda record: record.topic_partition == partition)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Continue reading these partitions, or all assigned partitions if None, at their beginnings."""
        self._check_open()
        for partition in self.assignment() if partitions is None else partitions:
            self.seek(partition, self.beginning_offsets([partition])[partition])

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Skip all records that are now stored in these partitions, or in all assigned partitions if None."""
        self._check_open()
        for partition in self.assignment() if partitions is None else partitions:
            self.seek(partition, self.end_offsets([partition])[partition])

    def seek_to_time(self, timestamp: int, partitions: Partitions | None = None) -> None:
        """Continue at the first record with this timestamp (ms since the epoch) or a later one.

        If there is no such record, continue at the end.
        """
        check_place("timestamp", timestamp)
        chosen = list(self.assignment() if partitions is None else partitions)
        found = self.offsets_for_times(dict.fromkeys(chosen, timestamp))
        ends = self.end_offsets([partition for partition, offset in found.items() if offset is None])
        for partition, offset in found.items():
            self.seek(partition, ends[partition] if offset is None else offset)

    def pause(
        self, partitions: Partitions | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Pause partitions, a topic, a level, or everything: polls return none of their records until `resume`.

        Only partitions that are assigned now are paused. If a rebalance revokes a partition and assigns it again, the
        partition is no longer paused.
        """
        self._check_open()
        unreturned = self._first_unreturned()
        for member, chosen in self._levels.chosen(partitions, level, topic).items():
            member.pause(chosen)
            for partition in chosen & unreturned.keys():
                self.seek(partition, unreturned[partition])

    def resume(
        self, partitions: Partitions | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Resume partitions, a topic, a level, or everything that was paused."""
        self._check_open()
        for member, chosen in self._levels.chosen(partitions, level, topic).items():
            member.resume(chosen)

    def paused(self) -> set[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return self._levels.paused()

    # Information from Kafka

    def committed(self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, or None if it has no commit."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels.committed(partitions, timeout)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float = REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's first offset at or after a time, or None if there is none.

        Times are in milliseconds since the epoch.
        """
        timeout = checked_timeout(timeout)
        for timestamp in times.values():
            check_place("timestamp", timestamp)
        self._check_open()
        return self._levels.offsets_for_times(times, timeout)

    def beginning_offsets(self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return {each: first for each, (first, _) in self._levels.bounds(partitions, timeout).items()}

    def end_offsets(self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT) -> dict[TopicPartition, int]:
        """Return the end offset of each partition, which follows its last record."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return {each: end for each, (_, end) in self._levels.bounds(partitions, timeout).items()}

    def partitions_for(self, topic: str, timeout: float = REQUEST_TIMEOUT) -> list[TopicPartition]:
        """Return a topic's partitions at all levels whose subscription includes the topic. Empty before `subscribe`."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels.partitions_for(topic, timeout)

    def list_topics(self, timeout: float = REQUEST_TIMEOUT) -> dict[str, int]:
        """Return the topics in Kafka, each with its number of partitions."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels[0].client.topics(None, timeout)

    def transaction_offsets(self) -> list[MemberOffsets]:
        """Return the offsets after the returned records, grouped by member. A transactional producer commits them.

        Raises `KafkaError` if a member is not in its group at the moment, because Kafka would then accept the member's
        offsets even if the partitions are assigned to another member.
        """
        self._check_open()
        parts = self._levels.for_transaction({each: (offset, "") for each, offset in self._returned_offsets().items()})
        for part in parts:
            if not is_of_a_member(part.group_metadata):
                raise not_a_member(f"The consumer for level {min(part.levels)}")
        return parts

    # Records that were fetched and not returned yet

    def _returned_offsets(self, levels: Collection[int] | None = None) -> dict[TopicPartition, int]:
        unreturned = self._first_unreturned()
        positions = self._levels.positions(levels)
        return {partition: unreturned.get(partition, offset) for partition, offset in positions.items()}

    def _first_unreturned(self) -> dict[TopicPartition, int]:
        """Return, for each partition, the offset of the first record that was fetched and not returned yet."""
        first: dict[TopicPartition, int] = {}
        for record in itertools.chain(self._batch, *self._buffers):
            first.setdefault(record.topic_partition, record.offset)
        return first

    def _discard(self, level: int, unwanted: Callable[[ConsumerRecord], bool]) -> None:
        self._buffers[level].discard(unwanted)
        kept = [record for record in self._batch if record.level != level or not unwanted(record)]
        self._batch.clear()
        self._batch.extend(kept)

    def metrics(self) -> list[LevelMetrics]:
        """Return the metrics of each level, lowest level first, without a request to Kafka."""
        demand = self._policy.demand(self._buffers)
        positions = self._returned_offsets()
        assigned: list[list[TopicPartition]] = [[] for _ in range(self._levels.count)]
        for partition in self._levels.assignment():
            assigned[partition.level].append(partition)
        return [
            LevelMetrics(
                level=level,
                share=self._shares[level],
                demand=demand[level],
                buffered=len(self._buffers[level]),
                returned=self._returned[level],
                lag=sum(_lag(self._levels[level], partition, positions) for partition in assigned[level]),
                partitions=len(assigned[level]),
                refused=self._levels[level].client.refused,
                deleted_unread=self._levels[level].membership.deleted_unread[level],
            )
            for level in range(self._levels.count)
        ]

    def measure(self) -> Measure:
        """Measure this consumer from now on, and return a function that returns its samples.

        `METRICS` in `headway.metrics` describes the samples, in which "done" means returned. They are made while the
        consumer polls, at most twice a second, without a request to Kafka. Any thread can call the function, also after
        the consumer was closed, and it returns the state as of the last poll. Further calls return the same function.
        """
        self._check_open()
        if self._samples is None:
            self._samples = PollSamples(
                self._settings.group, self._polled_levels, self._polled_partitions, self._librdkafka_samples
            )
        return self._samples.samples

    def _polled_levels(self) -> list[PolledLevel]:
        return [
            PolledLevel(
                each.share, each.buffered, each.returned, each.partitions, each.deleted_unread, each.refused is not None
            )
            for each in self.metrics()
        ]

    def _polled_partitions(self) -> dict[TopicPartition, PolledPartition]:
        positions, paused = self._returned_offsets(), self._levels.paused()
        return {
            each: PolledPartition(
                positions.get(each), self._levels[each.level].client.known_end(each), is_paused=each in paused
            )
            for each in self._levels.assignment()
        }

    def _librdkafka_samples(self) -> list[Sample]:
        client = str(self._settings.kafka.get("client.id") or "headway")
        return merge(member.client.statistics.samples(client) for member in self._levels)

    # Closing

    def close(self) -> None:
        """Commit the returned records, if `enable.auto.commit` is on, and leave the groups, within about 10 s.

        If a rebalance callback raises an error while the consumer leaves the groups, `close` raises that error once
        everything is closed.
        """
        if self._is_forked or self._end.is_over:
            return
        self._check_not_in_callback("close")
        self._closing = True
        if self._samples:
            self._samples.look(time.monotonic(), at_end=True)
        try:
            self._end.take()
        finally:
            self._closed = True
        for error in itertools.chain.from_iterable(member.membership.callback_errors for member in self._levels):
            raise error

    def _steps_to_end(self) -> list[Step]:
        # No member must write to `wake` once `wake` is closed, and a member whose client is closing must not be used.
        # So all members stop writing to `wake` before the first of them leaves.
        commits = self._commits
        return [self._finish_commits, commits.settle, commits.forget, self._stop_waking, self._leave, self.wake.close]

    def _finish_commits(self) -> None:
        self._closes_by = time.monotonic() + (0 if self._end.hurries else END_WITHIN)
        self._commits.finish(self._leave_timeout())

    def _stop_waking(self) -> None:
        for member in self._levels:
            member.client.wake_with(None)

    def _leave(self) -> None:
        if self._end.hurries:
            self._closes_by = time.monotonic()
        self._levels.close(self._closes_by)  # this call revokes the partitions, so the listener commits their offsets

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error, the last records might not have been processed. So their offsets are not committed, and
        # another member will read the records again.
        self._auto_commits = self._auto_commits and error is None
        self.close()

    def forked(self) -> None:
        """Disable this copy in a forked process, because librdkafka's threads do not exist there."""
        self._closed = self._is_forked = True

    def _check_open(self) -> None:
        if self._is_forked:
            raise made_before_fork("consumer")
        if self._closed:
            raise ClosedError("The consumer is closed. Create a new one to continue.")

    def _check_not_in_callback(self, call: str) -> None:
        if self._called_back_for is not None:
            raise HeadwayError(
                f"{call}() was called in a rebalance callback, which runs during another call of this consumer. Set a "
                f"flag in the callback instead, and call {call}() once the other call has returned."
            )

    # Rebalances

    @contextlib.contextmanager
    def _calling_back(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        self._called_back_for = self._levels.with_same_member(partition.level for partition in partitions)
        try:
            yield
        finally:
            self._called_back_for = None

    def _commit_before_leaving(self, partitions: Collection[TopicPartition]) -> None:
        if self._auto_commits:
            returned = self._returned_offsets({partition.level for partition in partitions})
            self._try_commit({each: returned[each] for each in partitions if each in returned}, asynchronous=False)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        self._commits.drop(partitions)
        for level in {partition.level for partition in partitions}:
            self._discard(level, lambda record: record.topic_partition in partitions)


def longest_wait(now: float, deadline: float | None) -> float:
    """Return how many seconds a poll can wait before it must fetch again.

    `deadline` is None if the poll has no timeout.
    """
    return _LONGEST_WAIT if deadline is None else min(_LONGEST_WAIT, deadline - now)


class _Listener:
    """Calls the user's rebalance callbacks, and drops the buffered records of revoked or lost partitions."""

    def __init__(
        self,
        consumer: PriorityConsumer,
        on_assign: OnRebalance | None,
        on_revoke: OnRebalance | None,
        on_lost: OnRebalance | None,
    ) -> None:
        self._consumer = consumer
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost

    def assigned(self, partitions: list[TopicPartition]) -> None:
        self._tell(self._on_assign, partitions)

    def revoked(self, partitions: list[TopicPartition]) -> None:
        try:
            self._consumer._commits.finish(self._consumer._leave_timeout())
            self._consumer._commit_before_leaving(partitions)
            self._tell(self._on_revoke, partitions)
        finally:
            self._consumer._forget(partitions)

    def lost(self, partitions: list[TopicPartition]) -> None:
        try:
            self._tell(self._on_lost, partitions)
        finally:
            self._consumer._forget(partitions)

    def _tell(self, callback: OnRebalance | None, partitions: list[TopicPartition]) -> None:
        if callback and partitions:
            with self._consumer._calling_back(partitions):
                callback(partitions)


def _lag(member: LevelConsumer, partition: TopicPartition, positions: Mapping[TopicPartition, int]) -> int:
    end = member.client.known_end(partition)
    return max(0, end - positions[partition]) if end is not None and partition in positions else 0

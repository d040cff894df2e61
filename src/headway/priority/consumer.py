"""The priority consumer: one group member per level, one poll over all of them.

A poll asks the policy how much to fetch from each level and puts the fetched records into the level buffers. The policy
then decides how many records each buffer hands out. Positions and commits stop before the records in the buffers,
because these have not been returned yet.
"""

import contextlib
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from headway.core.levels.capacity import Distributor
from headway.core.levels.level_buffer import LevelBuffer
from headway.core.levels.naming import checked_topics, subscriptions
from headway.core.levels.policies import PolicyName, make_policy
from headway.declarations import check_function, check_place, checked_timeout
from headway.errors import ClosedError, HeadwayError, KafkaError, WakeupError
from headway.kafka.binding.capi import is_of_a_member
from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.kafka.consumer.commits import AsyncCommits, OnCommit, log_failure
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.kafka.consumer.level_consumers import END_WITHIN, MemberOffsets, Partitions, members_of
from headway.kafka.consumer.standing import Standing, not_a_member, standing
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.deferred_signals import defer_signals
from headway.runtime.end_steps import EndSteps, Step, construction
from headway.runtime.gc_pause import GcPause
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config, ConsumerSettings

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 30.0
"""The seconds that a call waits for Kafka by default."""

OnRebalance = Callable[[list[TopicPartition]], Any]

# A waiting poll still calls librdkafka this often, so that the member stays in its group and callbacks run.
_LONGEST_WAIT = 1.0
# Seconds after which a leaving member abandons a commit without an answer, because its group waits for it meanwhile.
_LEAVE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class LevelMetrics:
    """The state of one level, as its consumer knows it.

    `share` is the level's fraction of the capacity, in records. `demand` is the most records that the next poll
    fetches. `buffered` counts the records that were fetched and not returned yet, and `returned` the records that were
    returned since the start. `lag` counts the records that wait in Kafka, as of the last fetch. `refused` names the
    missing right, if one is missing. `deleted_unread` counts offsets that were deleted, by retention or by hand, before
    this consumer read them.
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
    """A consumer that reads all levels of its topics and shares each poll's capacity between them.

    Level i of the topic `orders` is the Kafka topic `orders-i`, read by the group `<group.id>-i`. `policy` is
    `fair` (work-conserving shares), `strict` (highest first, with a longest wait) or `capacity_burst` (the Java
    priority client's). `distributor` splits `max.poll.records` into the levels' shares. For the settings see
    `headway.settings.config`; the other keys go to librdkafka. Raises `ConfigError` for settings out of bounds.

    Only `wakeup` is thread-safe. `close`, or the end of the `with` block, leaves the groups.
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
        # Whenever a callback can run, every fetched record that was not handed out is in `_buffers` or `_batch`.
        self._buffers: list[LevelBuffer[ConsumerRecord]] = [LevelBuffer() for _ in range(settings.levels)]
        self._batch: deque[ConsumerRecord] = deque()  # an iteration's next records; changed, never replaced
        self._returned = [0] * settings.levels
        self._subscription: Sequence[str] | Mapping[str, int] = ()
        self._woken = False
        self._closed = self._closing = self._is_forked = False
        self._end = EndSteps(self._steps_to_end)
        self._closes_by = math.inf
        self._called_back_for: set[int] | None = None  # the levels of the rebalance callback that runs
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
        """Read these topics at all levels, or each topic of a mapping at its level (KIP-349).

        They replace the earlier subscription. A name that starts with `^` is a pattern. The callbacks are called during
        a poll with a list of `TopicPartition`. `on_assign` can seek and `on_revoke` can commit. `on_lost`, by default
        `on_revoke`, gets partitions that another member may own already. Raises `ConfigError` for a level that does not
        exist.
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
        """Leave the groups, as `close` does; the consumer can subscribe again."""
        self._check_open()
        self._check_not_in_callback("unsubscribe")
        self._levels.unsubscribe()
        self._subscription = ()

    def subscription(self) -> Sequence[str] | Mapping[str, int]:
        """Return the topics, or the mapping of topics, given to `subscribe`."""
        return self._subscription

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions of all levels that this member reads."""
        return self._levels.assignment()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for each new login, and log in at once if a broker has refused the earlier ones.

        Open connections stay open. Thread-safe. Raises `ConfigError` for credentials that librdkafka does not accept.
        """
        self._check_open()
        for member in self._levels:
            member.client.set_sasl_credentials(username, password)

    # Records

    def poll(self, timeout: float | None = None) -> list[ConsumerRecord]:
        """Return the next records, at most `max.poll.records`: highest level first, offset order within a partition.

        Waits for a record for at most `timeout` seconds, or without a limit if it is None. Raises `FetchError` if a
        level could not fetch since the last poll, `WakeupError` after `wakeup`, or the error of a rebalance callback.
        No error loses a record: the next poll returns the same records.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        while not (records := self.poll_now(now)) and (deadline is None or now < deadline):
            self.wake.wait(longest_wait(now, deadline))
            now = time.monotonic()
        return records

    def poll_now(self, now: float) -> list[ConsumerRecord]:
        """Poll without waiting; `now` is a reading of `time.monotonic`."""
        self._begin_poll(now)
        if self._batch:
            return self._rest_of_batch()
        with GcPause():
            self._fetch(now)
            return self._take(now)

    def _begin_poll(self, now: float) -> None:
        self._check_open()
        self._check_not_in_callback("poll")
        self._raise_pending()
        self._commits.settle()
        self._auto_commit(now)

    def wakeup(self) -> None:
        """Make the poll that is waiting, or the next one, raise `WakeupError`. Thread-safe."""
        self._woken = True
        self.wake.set()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """Return the next record, and wait for it. Commits cover only the records that were handed out."""
        now = time.monotonic()
        while (record := self.next_now(now)) is None:
            self.wake.wait(longest_wait(now, None))
            now = time.monotonic()
        return record

    def next_now(self, now: float) -> ConsumerRecord | None:
        """Return the next record, or None if there is none yet."""
        if not self._batch:
            self._begin_poll(now)
            with GcPause():
                self._fetch(now)
                with defer_signals():  # a signal between the buffer and the batch would lose records
                    self._batch.extend(self._take(now))
        return self._batch.popleft() if self._batch else None

    def _fetch(self, now: float) -> None:
        """Fetch as many records as the policy demands. All callbacks run in here, before a record is returned."""
        demand = self._policy.demand(self._buffers)
        with defer_signals():  # a signal between librdkafka and a buffer would lose records
            for level, member in self._levels.highest_first():
                if demand[level]:
                    self._buffers[level].put(member.fetch(level, demand[level], now), now)
                else:
                    member.serve(now)
        for member in self._levels:
            for error in member.membership.callback_errors:
                if not isinstance(error, Exception):  # Ctrl-C in a callback must not wait for the next poll
                    member.membership.callback_errors.remove(error)
                    raise error

    def _take(self, now: float) -> list[ConsumerRecord]:
        counts = self._policy.split(self._buffers, self._settings.capacity, now)
        records: list[ConsumerRecord] = []
        for level in reversed(range(len(counts))):
            if counts[level]:
                records += self._buffers[level].take(counts[level])
                self._returned[level] += counts[level]
        return records

    def _rest_of_batch(self) -> list[ConsumerRecord]:
        records = list(self._batch)
        self._batch.clear()
        return records

    def _raise_pending(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError("The poll was woken by wakeup(); no record was lost.")
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
        """Commit the next offset to read of each partition; by default, after all records that were returned.

        Without offsets, a call in a rebalance callback commits only the levels of the callback's own group. Another
        group may be waiting for this member, and would answer the commit only afterwards.

        A synchronous commit raises `KafkaError` if Kafka refuses it or does not answer within `timeout` seconds. An
        asynchronous commit does not wait: a later poll calls `on_commit(error, offsets)` with the outcome, which by
        default logs an error. Those made while another is under way are sent together once it is answered.
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
        started = time.monotonic()
        # librdkafka must not repeat an earlier commit after this one, but one without an answer must not prevent it.
        self._commits.finish(timeout / 2)
        self._levels.commit(offsets).wait(max(0.0, started + timeout - time.monotonic()))

    def hear_refusal(self, level: int, error: KafkaError) -> None:
        """Join a level's group again, if the error says that the member was expelled. Calls `on_lost`.

        `error` is why a transaction refused the level's offsets. Kafka sent that answer to the producer, so the
        consumer of librdkafka does not know it, and might learn it from its heartbeats only minutes later. A refusal of
        the consumer's own commit needs no such call.
        """
        if standing(error) is Standing.EXPELLED and self._called_back_for is None and not self._closing:
            log.warning("The member of level %d was expelled from its group, and joins it again: %s", level, error)
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

    # Places in the log

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record of a partition that a poll will return."""
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
        """Continue an assigned partition at this offset."""
        check_place("offset", offset)
        self._check_open()
        self._levels.of(partition).seek(partition, offset)
        self._discard(partition.level, lambda record: record.topic_partition == partition)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Continue these partitions, or all assigned ones, at their beginnings."""
        self._check_open()
        for partition in self.assignment() if partitions is None else partitions:
            self.seek(partition, self.beginning_offsets([partition])[partition])

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Skip the records that are in these partitions, or in all assigned ones, now."""
        self._check_open()
        for partition in self.assignment() if partitions is None else partitions:
            self.seek(partition, self.end_offsets([partition])[partition])

    def seek_to_time(self, timestamp: int, partitions: Partitions | None = None) -> None:
        """Continue at the first record of this time or later (milliseconds since the epoch), or else at the end."""
        check_place("timestamp", timestamp)
        chosen = list(self.assignment() if partitions is None else partitions)
        found = self.offsets_for_times(dict.fromkeys(chosen, timestamp))
        ends = self.end_offsets([partition for partition, offset in found.items() if offset is None])
        for partition, offset in found.items():
            self.seek(partition, ends[partition] if offset is None else offset)

    def pause(
        self, partitions: Partitions | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Return no records from these partitions, from a topic, from a level, or from all, until they are resumed.

        Only partitions that are assigned now are paused. A partition that comes back after a rebalance is not paused.
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
        """Return records from these partitions, from a topic, from a level, or from all again."""
        self._check_open()
        for member, chosen in self._levels.chosen(partitions, level, topic).items():
            member.resume(chosen)

    def paused(self) -> set[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return self._levels.paused()

    # What Kafka has

    def committed(self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, or None if it has no commit."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels.committed(partitions, timeout)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float = REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's first offset at or after a time in milliseconds since the epoch, or None."""
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
        """Return the offset after the last record of each partition."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return {each: end for each, (_, end) in self._levels.bounds(partitions, timeout).items()}

    def partitions_for(self, topic: str, timeout: float = REQUEST_TIMEOUT) -> list[TopicPartition]:
        """Return the partitions of a topic at all levels that read it. It is empty before `subscribe`."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels.partitions_for(topic, timeout)

    def list_topics(self, timeout: float = REQUEST_TIMEOUT) -> dict[str, int]:
        """Return the topics in Kafka with their numbers of partitions."""
        timeout = checked_timeout(timeout)
        self._check_open()
        return self._levels[0].client.topics(None, timeout)

    def transaction_offsets(self) -> list[MemberOffsets]:
        """Return the offsets after the returned records, by member, as a transactional producer commits them.

        Raises `KafkaError` if a member is not in its group at the moment, because Kafka would accept its offsets even
        if another member has the partitions.
        """
        self._check_open()
        parts = self._levels.for_transaction({each: (offset, "") for each, offset in self._returned_offsets().items()})
        for part in parts:
            if not is_of_a_member(part.group_metadata):
                raise not_a_member(f"Level {min(part.levels)}")
        return parts

    # What was not returned

    def _returned_offsets(self, levels: Collection[int] | None = None) -> dict[TopicPartition, int]:
        unreturned = self._first_unreturned()
        positions = self._levels.positions(levels)
        return {partition: unreturned.get(partition, offset) for partition, offset in positions.items()}

    def _first_unreturned(self) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first record that was fetched and not handed out."""
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
        """Return the state of each level, lowest first, without asking Kafka."""
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

    # Life

    def close(self) -> None:
        """Commit the returned records, if `enable.auto.commit` is on, and leave the groups, within about 10 s.

        Once everything is closed, it raises the error of a rebalance callback that ran meanwhile, if there was one.
        """
        if self._is_forked or self._end.is_over:
            return
        self._check_not_in_callback("close")
        self._closing = True
        try:
            self._end.take()
        finally:
            self._closed = True
        for error in itertools.chain.from_iterable(member.membership.callback_errors for member in self._levels):
            raise error

    def _steps_to_end(self) -> list[Step]:
        # No member must write to the wake-up once it is closed, and a member whose client is closing must not be used.
        # So all members stop writing to the wake-up before the first one leaves.
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
        self._levels.close(self._closes_by)  # this revokes the partitions, and the listener commits

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error the last records might not have been processed, so they are left to the next member.
        self._auto_commits = self._auto_commits and error is None
        self.close()

    def forked(self) -> None:
        """Disable this copy of the object in a forked process, which has none of its threads."""
        self._closed = self._is_forked = True

    def _check_open(self) -> None:
        if self._is_forked:
            raise made_before_fork("consumer")
        if self._closed:
            raise ClosedError("The consumer is closed. Make a new one to go on.")

    def _check_not_in_callback(self, call: str) -> None:
        if self._called_back_for is not None:
            raise HeadwayError(
                f"{call}() was called in a rebalance callback, during another call of this consumer. Note in the "
                f"callback that {call}() must be called, and call it when the other call has returned."
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
    """Return the seconds for which a poll can wait before it fetches again. None means that there is no deadline."""
    return _LONGEST_WAIT if deadline is None else min(_LONGEST_WAIT, deadline - now)


class _Listener:
    """Calls the user's rebalance callbacks, and drops the buffered records of partitions that leave."""

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

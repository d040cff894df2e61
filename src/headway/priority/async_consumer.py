"""The priority consumer for an event loop.

librdkafka wakes the event loop through a file descriptor, without a thread or a timer. Calls that wait for Kafka run
on a worker thread, one at a time, because the priority consumer is not thread-safe.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headway.core.levels.capacity import Distributor
from headway.core.levels.policies import PolicyName
from headway.declarations import checked_timeout
from headway.kafka.consumer.level_consumers import Partitions
from headway.metrics.samples import Measure
from headway.priority.consumer import REQUEST_TIMEOUT, LevelMetrics, OnRebalance, PriorityConsumer, longest_wait
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.end_steps import construction
from headway.settings.config import Config

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

T = TypeVar("T")


class AsyncPriorityConsumer:
    """A `PriorityConsumer` for asyncio. It has the same settings and guarantees, and supports `await` and `async for`.

    Several tasks can poll and iterate at the same time; each record goes to one task. Cancelling a call loses no
    record. Rebalance callbacks run during a poll, in the event loop's thread. When `unsubscribe` or `close` revokes
    partitions, the callbacks run in another thread, while the loop continues.
    """

    def __init__(self, config: Config, *, distributor: Distributor | None = None, policy: PolicyName = "fair") -> None:
        self._one_at_a_time = asyncio.Lock()
        with construction(lambda: self._consumer.close()):  # noqa: PLW0108 - the consumer does not exist yet
            self._consumer = PriorityConsumer(config, distributor=distributor, policy=policy)

    def subscribe(
        self,
        topics: str | Iterable[str] | Mapping[str, int],
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> None:
        """Subscribe to these topics; see `PriorityConsumer.subscribe`."""
        self._consumer.subscribe(topics, on_assign, on_revoke, on_lost)

    def subscription(self) -> Sequence[str] | Mapping[str, int]:
        """Return the topics, or the mapping of topics to levels, that were given to `subscribe`."""
        return self._consumer.subscription()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions, of all levels, that are assigned to this consumer."""
        return self._consumer.assignment()

    def paused(self) -> set[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return self._consumer.paused()

    def wakeup(self) -> None:
        """Make the waiting poll raise `WakeupError`, or the next poll if none is waiting. Thread-safe."""
        self._consumer.wakeup()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for each new login; see `PriorityConsumer.set_sasl_credentials`."""
        self._consumer.set_sasl_credentials(username, password)

    async def poll(self, timeout: float | None = None) -> list[ConsumerRecord]:
        """Return the next records, at most `max.poll.records`; see `PriorityConsumer.poll`."""
        timeout = None if timeout is None else checked_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while await self._has_turn(deadline):
            try:
                now = time.monotonic()
                records = self._consumer.poll_now(now)
            finally:
                self._one_at_a_time.release()
            if records or (deadline is not None and now >= deadline):
                return records
            await self._consumer.wake.wait_async(longest_wait(now, deadline))
        return []

    async def consume_arrow(
        self, max_records: int, timeout: float | None = None, *, headers: bool = False
    ) -> "pyarrow.RecordBatch":
        """Return the next records as a batch of Arrow columns; see `PriorityConsumer.consume_arrow`.

        The columns are made in the event loop's thread, which takes about a millisecond for 1,000 records.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        self._consumer.check_arrow(max_records)
        deadline = None if timeout is None else time.monotonic() + timeout
        while await self._has_turn(deadline):
            try:
                now = time.monotonic()
                if self._consumer.collect_now(max_records, now) or (deadline is not None and now >= deadline):
                    return self._consumer.collected(max_records, headers=headers)
            finally:
                self._one_at_a_time.release()
            await self._consumer.wake.wait_async(longest_wait(now, deadline))
        return self._consumer.collected(0, headers=headers)

    async def _has_turn(self, deadline: float | None) -> bool:
        """Acquire the lock that allows only one call at a time. Returns False if the deadline passes first."""
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                return await self._one_at_a_time.acquire()
        except TimeoutError:
            return False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Wait for the next record and return it. Commits include only the records that were returned."""
        while True:
            async with self._one_at_a_time:
                record = self._consumer.next_now(time.monotonic())
            if record is not None:
                return record
            await self._consumer.wake.wait_async(longest_wait(0, None))

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the next offset to read of each partition.

        By default, this is the offset after the last record that was returned from the partition.
        """
        await self._call(self._consumer.commit, offsets)

    async def committed(
        self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, or None if it has no commit."""
        return await self._call(self._consumer.committed, partitions, timeout)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll will return from this partition."""
        return await self._call(self._consumer.position, partition)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading an assigned partition at this offset."""
        await self._call(self._consumer.seek, partition, offset)

    async def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Continue reading these partitions, or all assigned partitions if None, at their beginnings."""
        await self._call(self._consumer.seek_to_beginning, partitions)

    async def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Skip all records that are now stored in these partitions, or in all assigned partitions if None."""
        await self._call(self._consumer.seek_to_end, partitions)

    async def seek_to_time(self, timestamp: int, partitions: Partitions | None = None) -> None:
        """Continue at the first record with this timestamp (ms since the epoch) or a later one.

        If there is no such record, continue at the end.
        """
        await self._call(self._consumer.seek_to_time, timestamp, partitions)

    async def pause(
        self, partitions: Partitions | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Pause partitions, a topic, a level, or everything: polls return none of their records until `resume`."""
        await self._call(lambda: self._consumer.pause(partitions, topic=topic, level=level))

    async def resume(
        self, partitions: Partitions | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Resume partitions, a topic, a level, or everything that was paused."""
        await self._call(lambda: self._consumer.resume(partitions, topic=topic, level=level))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float = REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's first offset at or after a time, or None if there is none.

        Times are in milliseconds since the epoch.
        """
        return await self._call(self._consumer.offsets_for_times, times, timeout)

    async def beginning_offsets(
        self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return await self._call(self._consumer.beginning_offsets, partitions, timeout)

    async def end_offsets(self, partitions: Partitions, timeout: float = REQUEST_TIMEOUT) -> dict[TopicPartition, int]:
        """Return the end offset of each partition, which follows its last record."""
        return await self._call(self._consumer.end_offsets, partitions, timeout)

    async def partitions_for(self, topic: str, timeout: float = REQUEST_TIMEOUT) -> list[TopicPartition]:
        """Return the partitions of a topic at all levels whose subscription includes it."""
        return await self._call(self._consumer.partitions_for, topic, timeout)

    async def list_topics(self, timeout: float = REQUEST_TIMEOUT) -> dict[str, int]:
        """Return the topics in Kafka, each with its number of partitions."""
        return await self._call(self._consumer.list_topics, timeout)

    async def metrics(self) -> list[LevelMetrics]:
        """Return the metrics of each level, lowest level first."""
        return await self._call(self._consumer.metrics)

    async def measure(self) -> Measure:
        """Measure this consumer from now on, and return a function that returns its samples as of the last poll."""
        return await self._call(self._consumer.measure)

    async def unsubscribe(self) -> None:
        """Leave the groups. The consumer can subscribe again afterwards."""
        await self._call(self._consumer.unsubscribe)

    async def close(self) -> None:
        """Commit the returned records, if `enable.auto.commit` is on, and leave the groups."""
        await self._call(self._consumer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._call(self._consumer.__exit__, kind, error, trace)

    async def lend(self, use: Callable[[PriorityConsumer], T]) -> T:
        """Call `use` with the plain consumer on a worker thread. No other call uses it until `use` returns."""
        return await self._call(use, self._consumer)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        async def alone() -> T:
            async with self._one_at_a_time:
                return await asyncio.to_thread(function, *args)

        # A thread cannot be cancelled. So even if the caller is cancelled, the lock is held until the thread is done.
        return await asyncio.shield(asyncio.ensure_future(alone()))

"""The async twins: the same clients for an event loop.

Waiting is the loop's: librdkafka wakes it through a descriptor, without a thread or a timer. Calls that ask Kafka
something run on a thread, one at a time, since the clients beneath are not thread-safe.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from headway.config import Config
from headway.consumer import LevelMetrics, OnRebalance, PriorityConsumer, longest_wait
from headway.core.capacity import Distributor
from headway.core.fairness import PolicyName
from headway.delay.times import When
from headway.delivery import DeliveryFuture
from headway.errors import ConfigError
from headway.kafka.level_consumers import Partitions
from headway.producer import PriorityProducer, ProducerMetrics
from headway.records import ConsumerRecord, Header, RecordMetadata, TopicPartition

T = TypeVar("T")
_Reported = deque[tuple[asyncio.Future[RecordMetadata], Exception | None, RecordMetadata | None]]

_REQUEST_TIMEOUT = 30.0


class AsyncPriorityConsumer:
    """`PriorityConsumer` for asyncio: the same settings and promises, with `await` and `async for`.

    Rebalance callbacks run in the event loop's thread, during a poll.
    """

    def __init__(
        self, config: Config, *, distributor: Distributor | None = None, policy: PolicyName = "capacity_burst"
    ) -> None:
        self._consumer = PriorityConsumer(config, distributor=distributor, policy=policy)
        self._one_at_a_time = asyncio.Lock()
        self.assignment = self._consumer.assignment
        self.subscription = self._consumer.subscription
        self.paused = self._consumer.paused
        self.wakeup = self._consumer.wakeup

    def subscribe(
        self,
        topics: str | Sequence[str] | Mapping[str, int],
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> None:
        """Read these topics; see `PriorityConsumer.subscribe`."""
        self._consumer.subscribe(topics, on_assign, on_revoke, on_lost)

    async def poll(self, timeout: float | None = None) -> list[ConsumerRecord]:
        """The next records, at most `max.poll.records`; see `PriorityConsumer.poll`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            async with self._one_at_a_time:
                now = time.monotonic()
                records = self._consumer.poll_now(now)
            if records or (deadline is not None and now >= deadline):
                return records
            await self._consumer.wake.wait_async(longest_wait(now, deadline))

    async def __aiter__(self) -> AsyncGenerator[ConsumerRecord, None]:
        """Record by record; one that was not handed out yet is not committed either."""
        while True:
            async with self._one_at_a_time:
                record = self._consumer.next_now(time.monotonic())
            if record is not None:
                yield record
            else:
                await self._consumer.wake.wait_async(longest_wait(0, None))

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit offsets, each the next to read; without any, everything that was returned."""
        await self._call(self._consumer.commit, offsets)

    async def committed(
        self, partitions: Partitions, timeout: float = _REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int | None]:
        """The committed offset of each partition, None where there is none."""
        return await self._call(self._consumer.committed, partitions, timeout)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record of a partition that a poll returns."""
        return await self._call(self._consumer.position, partition)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Return records of an assigned partition from this offset on."""
        await self._call(self._consumer.seek, partition, offset)

    async def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Start over with these partitions, or with all."""
        await self._call(self._consumer.seek_to_beginning, partitions)

    async def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Skip what these partitions, or all, hold now."""
        await self._call(self._consumer.seek_to_end, partitions)

    async def pause(self, partitions: Partitions | None = None, *, level: int | None = None) -> None:
        """Return nothing from these partitions, from a level, or from all, until they are resumed."""
        await self._call(lambda: self._consumer.pause(partitions, level=level))

    async def resume(self, partitions: Partitions | None = None, *, level: int | None = None) -> None:
        """Return records from these partitions, from a level, or from all again."""
        await self._call(lambda: self._consumer.resume(partitions, level=level))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float = _REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time in milliseconds since the epoch, None where there is none."""
        return await self._call(self._consumer.offsets_for_times, times, timeout)

    async def beginning_offsets(
        self, partitions: Partitions, timeout: float = _REQUEST_TIMEOUT
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._call(self._consumer.beginning_offsets, partitions, timeout)

    async def end_offsets(self, partitions: Partitions, timeout: float = _REQUEST_TIMEOUT) -> dict[TopicPartition, int]:
        """The offset after the last of each partition."""
        return await self._call(self._consumer.end_offsets, partitions, timeout)

    async def partitions_for(self, topic: str, timeout: float = _REQUEST_TIMEOUT) -> list[TopicPartition]:
        """The partitions of a topic, of all levels."""
        return await self._call(self._consumer.partitions_for, topic, timeout)

    async def list_topics(self, timeout: float = _REQUEST_TIMEOUT) -> dict[str, int]:
        """Kafka's topics and how many partitions each has."""
        return await self._call(self._consumer.list_topics, timeout)

    async def metrics(self) -> list[LevelMetrics]:
        """What is known of each level, lowest first."""
        return await self._call(self._consumer.metrics)

    async def unsubscribe(self) -> None:
        """Leave the groups; the consumer can subscribe again."""
        await self._call(self._consumer.unsubscribe)

    async def close(self) -> None:
        """Commit what was returned, if `enable.auto.commit` is on, and leave the groups."""
        await self._call(self._consumer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._call(self._consumer.__exit__, kind, error, trace)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        async def alone() -> T:
            async with self._one_at_a_time:
                return await asyncio.to_thread(function, *args)

        # A thread cannot be cancelled: whoever is, leaves it the lock until it is done.
        return await asyncio.shield(asyncio.ensure_future(alone()))


class _Reports:
    """An `on_delivery` that hands over to the loop: an object of its own costs less than a closure."""

    __slots__ = ("_delivered", "_reported")

    def __init__(self, reported: _Reported, delivered: asyncio.Future[RecordMetadata]) -> None:
        self._reported = reported
        self._delivered = delivered

    def __call__(self, error: Exception | None, metadata: RecordMetadata | None) -> None:
        self._reported.append((self._delivered, error, metadata))


_Place = tuple[str, int, int | None]


class _Line:
    """Those who wait for room at the same place; who is first holds the lock."""

    def __init__(self) -> None:
        self.first = asyncio.Lock()
        self.length = 0


class AsyncPriorityProducer:
    """`PriorityProducer` for asyncio: `await send(...)` means delivered.

    Thousands of sends can be under way at once. Without room `send` waits, in the order of the calls to a topic, and
    nothing else does; with `on_full="raise"` it raises `NoRoomError`.
    """

    def __init__(
        self,
        config: Config,
        *,
        policy: Literal["fair", "strict"] = "fair",
        distributor: Distributor | None = None,
        on_full: Literal["await", "raise"] = "await",
    ) -> None:
        if on_full not in ("await", "raise"):
            raise ConfigError(f"on_full is {on_full!r}; it must be 'await' or 'raise'.")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits = on_full == "await"
        self._reported: _Reported = deque()
        self._room = asyncio.Event()
        self._lines: dict[_Place, _Line] = {}
        self._producer = PriorityProducer(
            config, policy=policy, distributor=distributor, after_reports=self._after_reports
        )
        self.metrics: Callable[[], ProducerMetrics] = self._producer.metrics
        self.purge: Callable[..., int] = self._producer.purge

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        priority: int = 0,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        due: When | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is delivered; see `PriorityProducer.send`. Raises `DeliveryError`."""
        producer = self._producer
        if due is not None:
            more = {"priority": priority, "headers": headers, "partition": partition, "timestamp": timestamp}
            send = partial(producer.send, topic, value, key, due=due, **more)  # type: ignore[arg-type]
            return await asyncio.wrap_future(await asyncio.to_thread(send))  # the first looks for the topics
        loop = self._loop = asyncio.get_running_loop()
        delivered: asyncio.Future[RecordMetadata] = loop.create_future()
        destination = producer.destination(topic, priority)
        future = DeliveryFuture(destination, _Reports(self._reported, delivered))
        record = (future, destination.queues, value, key, partition, timestamp, headers)
        place = (topic, priority, partition)
        if (self._lines and place in self._lines) or not producer.offer(*record):
            await self._line_up(place, *record)
        return await delivered

    async def _line_up(self, place: _Place, future: DeliveryFuture, *record: Any) -> None:
        """Wait for room behind those who wait for the same already."""
        producer = self._producer
        if not self._waits:
            raise producer.no_room(future)
        line = self._lines.setdefault(place, _Line())
        line.length += 1
        try:
            async with asyncio.timeout(producer.max_block), line.first:
                self._room.clear()
                while not producer.offer(future, *record):
                    await self._room.wait()
                    self._room.clear()
        except TimeoutError:
            future.destination.count_unsent()
            future.destination.count_failure()
            raise producer.no_room(future, f" within max.block.ms={producer.max_block * 1000:.0f}") from None
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[place]

    def _after_reports(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits anything any more
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        """In the loop, all that was reported so far: one wake-up a batch, not one a record."""
        while self._reported:
            delivered, error, metadata = self._reported.popleft()
            if delivered.done():  # who waited was cancelled
                continue
            if error is not None:
                delivered.set_exception(error)
            elif metadata is not None:
                delivered.set_result(metadata)
        self._room.set()

    async def flush(self, timeout: float | None = None, *, topic: str | None = None, level: int | None = None) -> int:
        """Wait until what was sent is delivered or failed; see `PriorityProducer.flush`."""
        return await asyncio.to_thread(self._producer.flush, timeout, topic=topic, level=level)

    async def partitions_for(self, topic: str, timeout: float = _REQUEST_TIMEOUT) -> list[TopicPartition]:
        """The partitions of a topic, of all levels."""
        return await asyncio.to_thread(self._producer.partitions_for, topic, timeout)

    async def init_transactions(self, timeout: float = _REQUEST_TIMEOUT) -> None:
        """Fence off earlier producers with the same `transactional.id`, once before the first transaction."""
        await asyncio.to_thread(self._producer.init_transactions, timeout)

    @asynccontextmanager
    async def transaction(self, timeout: float = _REQUEST_TIMEOUT) -> AsyncIterator[None]:
        """A transaction for the length of an `async with` block: committed at its end, aborted on an error."""
        self._producer.begin_transaction()
        try:
            yield
            await asyncio.to_thread(self._producer.commit_transaction, timeout)
        except BaseException:
            await asyncio.to_thread(self._producer.abort_transaction, timeout)
            raise

    async def send_offsets(self, consumer: AsyncPriorityConsumer, timeout: float = _REQUEST_TIMEOUT) -> None:
        """Commit with the transaction what the consumer has returned, in the groups of all its levels."""
        await consumer._call(self._producer.send_offsets, consumer._consumer, timeout)

    async def close(self, timeout: float | None = None) -> int:
        """Deliver what was sent and let go; how many records were not, after `timeout` seconds."""
        return await asyncio.to_thread(self._producer.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

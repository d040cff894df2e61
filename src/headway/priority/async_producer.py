"""The producer for an event loop.

librdkafka wakes the event loop through a file descriptor, without a thread or a timer. Calls that ask Kafka run on a
thread.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from headway.core.levels.capacity import Distributor
from headway.declarations import checked_timeout
from headway.delay.async_scheduler import AsyncScheduler
from headway.delay.due_time import When, with_expiry
from headway.errors import ClosedError, ConfigError, DeliveryError
from headway.kafka.producer.delivery import DeliveryFuture, Destination
from headway.kafka.producer.headers import header_list
from headway.kafka.producer.sendable import Offered
from headway.priority.async_consumer import AsyncPriorityConsumer
from headway.priority.awaited_record import AwaitedRecord, Waiters
from headway.priority.producer import REQUEST_TIMEOUT, Producer, ProducerMetrics
from headway.priority.producers_scheduler import AsyncProducersScheduler
from headway.priority.record_fields import fields_of, fields_of_now
from headway.records.record_types import Header, ProducerRecord, RecordMetadata, TopicPartition
from headway.runtime.end_steps import construction
from headway.runtime.lifecycle import time_left_of
from headway.settings.config import Config

# The milliseconds for which an awaited record waits for Kafka. With librdkafka's default, a web request that awaits the
# record would wait for five minutes.
_AWAITED_FOR = 60_000

T = TypeVar("T")

_QueueKey = tuple[Destination, int | None]
"""The topic and level of a record, with its partition."""


class AsyncProducer:
    """A `Producer` for asyncio: `await send(...)` means delivered.

    Tens of thousands of sends can be under way at once: `send` returns a future, and needs no task. When the buffer is
    full, `send` still returns, and the futures wait for space in the order of the calls to a topic. With
    `on_full="raise"`, `send` raises `BufferFullError` instead. A producer is for one event loop at a time, which also
    takes Kafka's delivery reports.
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
        self._thread: int | None = None  # the loop's
        self._reported: deque[AwaitedRecord] = deque()
        self._space = asyncio.Event()
        self._waiters: dict[_QueueKey, Waiters] = {}
        self._waiting: dict[asyncio.Task[RecordMetadata], AwaitedRecord] = {}  # for buffer space, then for delivery
        self._turns = ThreadPoolExecutor(1, "headway-sends-in-turn")  # starts its thread at the first call
        with construction(lambda: self._producer.close(0)):
            self._producer = Producer(
                _awaited(config), policy=policy, distributor=distributor, after_reports=self._after_reports
            )
            self._scheduler = AsyncProducersScheduler(lambda: self._producer.scheduler, self._in_turn)

    def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        level: int | None = None,
        due: When | None = None,
        expires: When | None = None,
        *,
        id: str | None = None,
        if_pending: Literal["replace", "keep"] = "replace",
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record; the future resolves when it is delivered. See `Producer.send`.

        Records are sent in the order of the calls, whether or not their futures are awaited. The futures raise
        `DeliveryError`. Call `send` in the event loop.
        """
        loop, producer = asyncio.get_running_loop(), self._producer
        if loop is not self._loop:
            self._settle_in(loop)
        if topic.__class__ is not str and isinstance(topic, ProducerRecord):  # quicker than `isinstance` alone
            given = (value, key, headers, partition, timestamp, level, due, expires, id)
            return self.send(**fields_of(topic, producer.destinations.has_levels, *given))
        if due is not None or id is not None:
            fields = (topic, value, key, headers, partition, timestamp, level, due, expires)
            sent = self._in_turn(partial(producer.send, *fields, id=id, if_pending=if_pending))
            return loop.create_task(_reported(sent))
        if expires is not None:
            headers = with_expiry(headers, expires)
        try:
            destination = producer.destinations.open[level][topic]
        except KeyError:
            destination = producer.destination(topic, level)
        if headers is not None:
            headers = header_list(headers)
        awaited: asyncio.Future[RecordMetadata] = loop.create_future()
        record = AwaitedRecord(destination, awaited, self._reported)
        if self._waiters and (destination, partition) in self._waiters:
            taken = False
        else:
            taken = producer.sender.offer(record, destination, value, key, partition, timestamp, headers)
        if taken:
            return awaited
        return self._wait_for_space(record, (record, destination, value, key, partition, timestamp, headers))

    def _in_turn(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Make a call on the thread of calls that may block, in their order: for due times and transactions."""
        self._producer.check_open()
        return asyncio.get_running_loop().run_in_executor(self._turns, call)

    def try_send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        level: int | None = None,
        expires: When | None = None,
    ) -> asyncio.Future[RecordMetadata] | None:
        """Send a record as `send` does if the buffer has space now. Otherwise send nothing and return None.

        If earlier records for the same partition are waiting for buffer space, this returns None even if some is free.
        """
        loop, producer = asyncio.get_running_loop(), self._producer
        if loop is not self._loop:
            self._settle_in(loop)
        if isinstance(topic, ProducerRecord):
            given = (value, key, headers, partition, timestamp, level, expires)
            return self.try_send(**fields_of_now(topic, producer.destinations.has_levels, *given))
        if expires is not None:
            headers = with_expiry(headers, expires)
        destination = producer.destination(topic, level)
        if headers is not None:
            headers = header_list(headers)
        awaited: asyncio.Future[RecordMetadata] = loop.create_future()
        record = AwaitedRecord(destination, awaited, self._reported)
        if (destination, partition) in self._waiters:
            return None
        taken = producer.sender.offer(record, destination, value, key, partition, timestamp, headers)
        return awaited if taken else None

    def metrics(self) -> ProducerMetrics:
        """Return the counts since the start."""
        return self._producer.metrics()

    def purge(self, *, topic: str | None = None, level: int | None = None) -> int:
        """Give up waiting records, and return how many; see `Producer.purge`."""
        return self._producer.purge(topic=topic, level=level)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for each new login; see `Producer.set_sasl_credentials`."""
        self._producer.set_sasl_credentials(username, password)

    @property
    def scheduler(self) -> AsyncScheduler:
        """The scheduler that stores records with a due time; it makes its topics at the first use."""
        self._producer.check_open()
        return self._scheduler

    def _settle_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the delivery reports in this event loop, instead of in a thread or in a loop that has ended."""
        self._producer.check_open()
        self._producer.sender.client.reports.serve_in(loop)
        self._space = asyncio.Event()
        self._waiters.clear()
        self._waiting.clear()
        self._loop, self._thread = loop, threading.get_ident()

    def _wait_for_space(self, record: AwaitedRecord, offered: Offered) -> asyncio.Future[RecordMetadata]:
        """Wait for buffer space, behind earlier records that wait for the same partition."""
        _, destination, _, _, partition, _, _ = offered
        if not self._waits:
            raise self._producer.destinations.buffer_full(destination)
        place = destination, partition
        waiters = self._waiters.setdefault(place, Waiters())
        waiters.count += 1
        waiting = asyncio.get_running_loop().create_task(self._wait(waiters, record, offered))
        self._waiting[waiting] = record
        waiting.add_done_callback(lambda _: self._leave(waiting, place, waiters))
        return waiting

    def _leave(self, waiting: "asyncio.Task[RecordMetadata]", place: _QueueKey, waiters: Waiters) -> None:
        self._waiting.pop(waiting, None)
        waiters.count -= 1
        if not waiters.count:
            del self._waiters[place]

    async def _wait(self, waiters: Waiters, record: AwaitedRecord, offered: Offered) -> RecordMetadata:
        producer, taken = self._producer, False
        try:
            async with asyncio.timeout(producer.max_block), waiters.first:
                self._space.clear()
                while record.error is None and not (taken := producer.sender.offer(*offered)):
                    await self._space.wait()
                    self._space.clear()
        except TimeoutError:
            record.destination.count_unsent().count_failure()
            within = f" within max.block.ms={producer.max_block * 1000:.0f}"
            raise producer.destinations.buffer_full(record.destination, within) from None
        if record.error is not None and not taken:  # its transaction was aborted
            record.destination.count_unsent().count_failure()
            raise record.error
        return await record.awaited

    async def _have_no_waiting(self, timeout: float | None, topic: str | None = None, level: int | None = None) -> int:
        """Wait until the records that wait for buffer space are delivered. Returns how many still wait."""
        of_these = {
            task
            for task, record in self._waiting.items()
            if topic in (None, record.destination.topic) and level in (None, record.destination.level)
        }
        return len((await asyncio.wait(of_these, timeout=timeout))[1]) if of_these else 0

    def _give_up_waiting(self) -> None:
        """Fail the records that still wait for buffer space, so that they are not sent."""
        for record in self._waiting.values():
            record.error = record.error or DeliveryError("A record was not sent: its transaction was aborted.")
        self._space.set()

    def _after_reports(self) -> None:
        if threading.get_ident() == self._thread:
            self._resolve()
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no future is awaited any more
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        """Resolve all records reported so far, in the loop, with one wake-up per batch instead of one per record."""
        while self._reported:
            self._reported.popleft().resolve()
        self._space.set()

    async def flush(self, timeout: float | None = None, *, topic: str | None = None, level: int | None = None) -> int:
        """Wait until the records sent before are delivered or failed; see `Producer.flush`."""
        timeout = None if timeout is None else checked_timeout(timeout)
        left_over = time_left_of(timeout)
        waiting = await self._have_no_waiting(timeout, topic, level)
        if not self._producer.is_closed:
            await asyncio.wait([self._in_turn(lambda: None)], timeout=left_over())  # for records with a due time
        return waiting + await asyncio.to_thread(self._producer.flush, left_over(), topic=topic, level=level)

    async def partitions_for(self, topic: str, timeout: float = REQUEST_TIMEOUT) -> list[TopicPartition]:
        """Return the partitions of a topic at all levels."""
        return await asyncio.to_thread(self._producer.partitions_for, topic, timeout)

    async def init_transactions(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Fence off earlier producers with the same `transactional.id`; call it once, before the first transaction."""
        await asyncio.to_thread(self._producer.init_transactions, timeout)

    async def begin_transaction(self) -> None:
        """Start a transaction; see `Producer.begin_transaction`."""
        await self._in_turn(self._producer.begin_transaction)

    async def commit_transaction(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Commit the transaction. Raises `KafkaError` if it must be aborted.

        If cancelled, it waits until the commit has ended. Otherwise the caller could not know what to call next.
        """
        timeout = checked_timeout(timeout)
        if left := await self._have_no_waiting(timeout):
            raise DeliveryError(
                f"The send buffer had no space for {left} records of the transaction within {timeout:g} seconds. "
                "Abort the transaction, or commit with a longer timeout."
            )
        await self._to_its_end(partial(self._producer.commit_transaction, timeout))

    async def abort_transaction(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Abort the transaction. If cancelled, it waits until the abort has ended."""
        timeout = checked_timeout(timeout)
        self._give_up_waiting()
        await self._to_its_end(partial(self._producer.abort_transaction, timeout))

    @asynccontextmanager
    async def transaction(self, timeout: float = REQUEST_TIMEOUT) -> AsyncIterator[None]:
        """Run an `async with` block as a transaction that is committed at its end, or aborted after an error.

        If cancelled during the commit, it waits until the commit has ended, and aborts only if the commit was refused.
        """
        timeout = checked_timeout(timeout)
        await self.begin_transaction()
        try:
            yield
            if left := await self._have_no_waiting(timeout):
                raise DeliveryError(
                    f"The send buffer had no space for {left} records of the transaction within {timeout:g} seconds. "
                    "The transaction is aborted; start it again with a longer timeout."
                )
        except BaseException as error:
            self._give_up_waiting()
            with contextlib.suppress(ClosedError):  # the block has closed the producer, which ended the transaction
                await self._to_its_end(partial(self._producer.abort_after, error, timeout))
            raise
        await self._to_its_end(partial(self._commit_or_abort, timeout))

    async def _to_its_end(self, call: Callable[[], None]) -> None:
        """Make a call in its turn, and wait for its end even if cancelled, because another call would conflict."""
        running = self._in_turn(call)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled:
            raise cancelled from running.exception()
        running.result()

    def _commit_or_abort(self, timeout: float) -> None:
        try:
            self._producer.commit_transaction(timeout)
        except BaseException as error:
            self._producer.abort_after(error, timeout)
            raise

    async def send_offsets(self, consumer: AsyncPriorityConsumer, timeout: float = REQUEST_TIMEOUT) -> None:
        """Commit the consumer's position with the transaction; see `Producer.send_offsets`."""
        await consumer.lend(lambda lent: self._producer.send_offsets(lent, timeout))

    async def close(self, timeout: float | None = None) -> int:
        """Deliver the records and close. Returns how many records were not delivered within `timeout` seconds."""
        timeout = None if timeout is None else checked_timeout(timeout)
        if self._producer.is_closed:
            return 0
        left_over = time_left_of(timeout)
        left = await self._have_no_waiting(timeout)
        self._producer.sender.client.reports.leave_loop()
        try:
            return left + await self._in_turn(lambda: self._producer.close(left_over()))
        finally:
            self._turns.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _reported(sent: asyncio.Future[DeliveryFuture]) -> RecordMetadata:
    """Return the metadata of a record once it is delivered. A cancelled wait does not cancel the send."""
    return await asyncio.wrap_future(await asyncio.shield(sent))


def _awaited(config: Config) -> Config:
    """Return settings in which the delivery of awaited records has a time limit, unless they have their own."""
    if "message.timeout.ms" in config:
        return config
    return {"delivery.timeout.ms": _AWAITED_FOR, **config}

"""The producer for an event loop.

librdkafka wakes the event loop through a file descriptor, without a thread or a timer. Calls that wait for Kafka run
on a worker thread.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
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
from headway.metrics.samples import Measure
from headway.priority.async_consumer import AsyncPriorityConsumer
from headway.priority.awaited_record import AwaitedRecord, Waiters
from headway.priority.producer import REQUEST_TIMEOUT, Producer, ProducerMetrics
from headway.priority.producers_scheduler import AsyncProducersScheduler
from headway.priority.record_fields import fields_of, fields_of_now
from headway.records.record_types import Header, ProducerRecord, RecordMetadata, TopicPartition
from headway.runtime.end_steps import construction
from headway.runtime.lifecycle import time_left_of
from headway.settings.config import Config
from headway.tracing.tracing import Tracing, checked_spans

# The default delivery timeout of awaited records, in milliseconds. With librdkafka's default, a web request that awaits
# a record could wait for five minutes.
_AWAITED_FOR = 60_000

T = TypeVar("T")

_QueueKey = tuple[Destination, int | None]
"""A record's destination (its topic and level), and its partition if the caller specified one."""


class AsyncProducer:
    """A `Producer` for asyncio: once `await send(...)` returns, the record is delivered.

    Tens of thousands of sends can be under way at once, because `send` returns a future and needs no task. When the
    buffer is full, `send` still returns at once, and its record waits for space behind earlier records for the same
    partition. With `on_full="raise"`, `send` raises `BufferFullError` instead. A producer belongs to one event loop at
    a time, and also processes Kafka's delivery reports in that loop.
    """

    def __init__(
        self,
        config: Config,
        *,
        policy: Literal["fair", "strict"] = "fair",
        distributor: Distributor | None = None,
        on_full: Literal["await", "raise"] = "await",
        tracing: Tracing | None = None,
    ) -> None:
        if on_full not in ("await", "raise"):
            raise ConfigError(f"on_full is {on_full!r}; it must be 'await' or 'raise'.")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits = on_full == "await"
        self._thread: int | None = None  # the id of the event loop's thread
        self._reported: deque[AwaitedRecord] = deque()
        self._space = asyncio.Event()
        self._waiters: dict[_QueueKey, Waiters] = {}
        # The tasks of records for which the buffer had no space. They wait for space, and then for delivery.
        self._waiting: dict[asyncio.Task[RecordMetadata], AwaitedRecord] = {}
        self._turns = ThreadPoolExecutor(1, "headway-sends-in-turn")  # the executor starts its thread at the first call
        with construction(lambda: self._producer.close(0)):
            self._producer = Producer(
                _awaited(config),
                policy=policy,
                distributor=distributor,
                after_reports=self._after_reports,
                tracing=tracing,
            )
            self._scheduler = AsyncProducersScheduler(self._producer, self._in_turn)
        if spans := checked_spans(tracing):
            from headway.priority.traced_producer import trace_sends  # noqa: PLC0415 - only programs that trace need it

            trace_sends(self, self._producer.destinations, spans)

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
        """Send a record, and return a future that resolves once the record is delivered; see `Producer.send`.

        Records are sent in the order of the calls, whether or not their futures are awaited. If a record cannot be
        delivered, its future raises `DeliveryError`. Call `send` in the event loop.
        """
        loop, producer = asyncio.get_running_loop(), self._producer
        if loop is not self._loop:
            self._settle_in(loop)
        if topic.__class__ is not str and isinstance(topic, ProducerRecord):  # faster for str than `isinstance` alone
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
        """Run a call on the thread for calls that may block (due times and transactions), in the order of the calls.

        The call has the context variables of the caller, such as the current span.
        """
        self._producer.check_open()
        return asyncio.get_running_loop().run_in_executor(self._turns, copy_context().run, call)

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

        The result is also None if earlier records for the same partition are still waiting for buffer space.
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
        """Return the counts of records: sent, delivered and failed since the start, and queued now."""
        return self._producer.metrics()

    def measure(self) -> Measure:
        """Measure this producer from now on, and return a function that returns its samples; see `Producer.measure`."""
        return self._producer.measure()

    def purge(self, *, topic: str | None = None, level: int | None = None) -> int:
        """Drop the waiting records, and return how many were dropped; see `Producer.purge`."""
        return self._producer.purge(topic=topic, level=level)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for each new login; see `Producer.set_sasl_credentials`."""
        self._producer.set_sasl_credentials(username, password)

    @property
    def scheduler(self) -> AsyncScheduler:
        """The scheduler that stores records with a due time. The scheduler creates its topics when it is first used."""
        self._producer.check_open()
        return self._scheduler

    def _settle_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Process delivery reports in this event loop from now on, instead of in a thread or an earlier event loop."""
        self._producer.check_open()
        self._producer.sender.client.reports.serve_in(loop)
        self._space = asyncio.Event()
        self._waiters.clear()
        self._waiting.clear()
        self._loop, self._thread = loop, threading.get_ident()

    def _wait_for_space(self, record: AwaitedRecord, offered: Offered) -> asyncio.Future[RecordMetadata]:
        """Return a task that sends the record once the buffer has space and earlier records of the queue are sent."""
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
        producer, taken, began = self._producer, False, time.monotonic()
        try:
            async with asyncio.timeout(producer.max_block), waiters.first:
                self._space.clear()
                while record.error is None and not (taken := producer.sender.offer(*offered)):
                    await self._space.wait()
                    self._space.clear()
        except TimeoutError:
            within = f" within max.block.ms={producer.max_block * 1000:.0f}"
            error = producer.destinations.buffer_full(record.destination, within)
            record.destination.count_unsent().count_failure(error)
            raise error from None
        finally:
            producer.count_wait(began)
        if record.error is not None and not taken:  # the record's transaction was aborted while the record waited
            record.destination.count_unsent().count_failure(record.error)
            raise record.error
        return await record.awaited

    async def _have_no_waiting(self, timeout: float | None, topic: str | None = None, level: int | None = None) -> int:
        """Wait until the records for which the buffer had no space are delivered.

        Returns the number of these records that are still waiting after `timeout` seconds.
        """
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
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing awaits the futures any longer
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        """Resolve the futures of all reported records, in the event loop.

        The loop is woken once for all of them.
        """
        while self._reported:
            self._reported.popleft().resolve()
        self._space.set()

    async def flush(self, timeout: float | None = None, *, topic: str | None = None, level: int | None = None) -> int:
        """Wait until the records sent before this call are delivered or have failed; see `Producer.flush`."""
        timeout = None if timeout is None else checked_timeout(timeout)
        left_over = time_left_of(timeout)
        waiting = await self._have_no_waiting(timeout, topic, level)
        if not self._producer.is_closed:
            # Records with a due time are sent on the thread for blocking calls, so first let that thread catch up.
            await asyncio.wait([self._in_turn(lambda: None)], timeout=left_over())
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
        """Commit the transaction. Raises `KafkaError` if the transaction must be aborted.

        Even if the call is cancelled, it first waits until the commit has ended, so that the caller knows whether the
        transaction is still open.
        """
        timeout = checked_timeout(timeout)
        if left := await self._have_no_waiting(timeout):
            raise DeliveryError(
                f"The send buffer had no space for {left} records of the transaction within {timeout:g} seconds. "
                "Abort the transaction, or commit with a longer timeout."
            )
        await self._to_its_end(partial(self._producer.commit_transaction, timeout))

    async def abort_transaction(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Abort the transaction. Even if this call is cancelled, it first waits until the abort has ended."""
        timeout = checked_timeout(timeout)
        self._give_up_waiting()
        await self._to_its_end(partial(self._producer.abort_transaction, timeout))

    @asynccontextmanager
    async def transaction(self, timeout: float = REQUEST_TIMEOUT) -> AsyncIterator[None]:
        """Run an `async with` block as a transaction, which is committed at the end or aborted after an error.

        If the task is cancelled during the commit, the end of the block still waits for the result of the commit. In
        that case the transaction is aborted only if the commit failed.
        """
        timeout = checked_timeout(timeout)
        await self.begin_transaction()
        try:
            yield
            if left := await self._have_no_waiting(timeout):
                raise DeliveryError(
                    f"The send buffer had no space for {left} records of the transaction within {timeout:g} seconds. "
                    "The transaction is aborted. Start it again with a longer timeout."
                )
        except BaseException as error:
            self._give_up_waiting()
            with contextlib.suppress(ClosedError):  # the block closed the producer, which has ended the transaction
                await self._to_its_end(partial(self._producer.abort_after, error, timeout))
            raise
        await self._to_its_end(partial(self._commit_or_abort, timeout))

    async def _to_its_end(self, call: Callable[[], None]) -> None:
        """Run a call on the thread for blocking calls. Waits until the call has ended, even if this task is cancelled.

        A transaction call that began after the cancellation would otherwise conflict with this one.
        """
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
        """Commit the consumer's offsets as part of the transaction; see `Producer.send_offsets`."""
        await consumer.lend(lambda lent: self._producer.send_offsets(lent, timeout))

    async def close(self, timeout: float | None = None) -> int:
        """Deliver all sent records, then close. Returns how many were not delivered within `timeout` seconds."""
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
    """Wait until a record is delivered, and return its metadata. Cancelling the wait does not cancel the send."""
    return await asyncio.wrap_future(await asyncio.shield(sent))


def _awaited(config: Config) -> Config:
    """Return the settings, with a default delivery timeout for awaited records unless the user has set a timeout."""
    if "message.timeout.ms" in config:
        return config
    return {"delivery.timeout.ms": _AWAITED_FOR, **config}

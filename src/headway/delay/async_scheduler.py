"""The scheduler for asyncio."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from headway.core.delay.changes import IfPending
from headway.core.delay.recurrence import Misfire
from headway.declarations import checked_timeout
from headway.delay.change_request import AsyncChangeRequest, ChangeRequest
from headway.delay.commands import ANSWER_WITHIN, settled_in_loop
from headway.delay.due_time import When
from headway.delay.handle import ScheduleHandle
from headway.delay.scheduler import Scheduler
from headway.delay.topic_names import DEFAULT_NAME
from headway.errors import HeadwayError
from headway.records.record_types import Header
from headway.runtime.lifecycle import time_left_of
from headway.settings.config import Config
from headway.tracing.tracing import Tracing

T = TypeVar("T")


class RecordOptions(TypedDict, total=False):
    """The options that `send_later` and `every` have in common."""

    headers: Sequence[Header]
    level: int | None
    partition: int | None
    id: str | None
    if_pending: IfPending


class OnceOptions(RecordOptions, total=False):
    """The options of `send_later`."""

    expires: When | None


class RecurringOptions(RecordOptions, total=False):
    """The options of `every`."""

    zone: str
    misfire: Misfire
    older_than: float
    expires_after: float | None


class AsyncScheduler:
    """A `Scheduler` for asyncio, with the same guarantees. `await send_later(...)` returns when the record is stored.

    Use the scheduler in an `async with` block, or call `close` at the end. When the block is entered, or on first use,
    the scheduler looks for its topics and creates missing topics.
    """

    def __init__(self, config: Config, *, name: str = DEFAULT_NAME, tracing: Tracing | None = None) -> None:
        self._config = config
        self._tracing = tracing
        self._name = name
        self._scheduler: Scheduler | None = None
        self._making: asyncio.Future[Scheduler] | None = None

    async def send_later(
        self, key: Any, value: Any, topic: str, when: When, **options: Unpack[OnceOptions]
    ) -> ScheduleHandle:
        """Deliver a record to a topic at a given time. Returns when the record is stored; see `Scheduler.send_later`.

        The options are `headers`, `level`, `partition`, `id`, `if_pending` and `expires`.
        """
        scheduler = await self._made()
        send = partial(scheduler.send_later, key, value, topic, when, **options)
        return await _stored(await self._call(send) if self._may_block(scheduler, when) else send())

    # `AsyncProducersScheduler` overrides the following three methods.

    def _make(self) -> Scheduler:
        return Scheduler(self._config, name=self._name, tracing=self._tracing)

    def _may_block(self, scheduler: Scheduler, when: When) -> bool:
        return scheduler.may_wait_for_delay_topics(when)

    def _call(self, call: Callable[[], T]) -> Awaitable[T]:
        """In another thread, run a call that might block."""
        return asyncio.to_thread(call)

    async def every(
        self, rule: str | When, key: Any, value: Any, topic: str, **options: Unpack[RecurringOptions]
    ) -> ScheduleHandle:
        """Deliver a record repeatedly; see `Scheduler.every`.

        The options are `headers`, `level`, `partition`, `id`, `if_pending`, `zone`, `misfire`, `older_than` and
        `expires_after`.
        """
        scheduler = await self._made()
        return await _stored(await self._call(partial(scheduler.every, rule, key, value, topic, **options)))

    async def cancel(
        self, handle: ScheduleHandle | str, timeout: float = ANSWER_WITHIN, *, answered: bool = True
    ) -> AsyncChangeRequest:
        """Request that a schedule be cancelled, and wait until the request is stored; see `Scheduler.cancel`.

        To get the outcome, await `settled` of the returned request.
        """
        return await self._asked(lambda scheduler, left: scheduler.cancel(handle, left, answered=answered), timeout)

    async def reschedule(
        self, handle: ScheduleHandle | str, when: When, timeout: float = ANSWER_WITHIN, *, answered: bool = True
    ) -> AsyncChangeRequest:
        """Request a new due time for a schedule, and wait until the request is stored; see `Scheduler.reschedule`."""
        return await self._asked(
            lambda scheduler, left: scheduler.reschedule(handle, when, left, answered=answered), timeout
        )

    async def _asked(self, ask: Callable[[Scheduler, float], ChangeRequest], timeout: float) -> AsyncChangeRequest:
        timeout = checked_timeout(timeout)
        left = time_left_of(timeout)
        scheduler = await self._made()
        request = await self._call(partial(ask, scheduler, left() or 0.0))
        await request.stored_async(left() or 0.0)
        return AsyncChangeRequest(request)

    async def close(self) -> None:
        """Wait until all schedules are stored, then close all connections."""
        # The creation of the scheduler continues if the call that began it is cancelled. So wait for the creation to
        # end before closing.
        if self._making is not None:
            with contextlib.suppress(HeadwayError):
                await self._made()
        if self._scheduler is not None:
            await asyncio.to_thread(self._scheduler.close)

    async def __aenter__(self) -> Self:
        await self._made()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _made(self) -> Scheduler:
        """Return the scheduler. If there is none yet, create it.

        All callers share one scheduler. If the caller that began to create it is cancelled, the creation continues, and
        the next caller waits for that.
        """
        while self._scheduler is None:
            if self._making is None:
                self._making = asyncio.ensure_future(self._call(self._make))
            making = self._making
            try:
                self._scheduler = await asyncio.shield(making)
            finally:
                if making.done() and self._making is making:
                    self._making = None
        return self._scheduler


async def _stored(handle: ScheduleHandle) -> ScheduleHandle:
    await asyncio.wrap_future(handle.future)
    if handle.answer is not None:
        handle.check(await settled_in_loop(handle.answer, ANSWER_WITHIN))
    return handle

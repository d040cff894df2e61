"""Makes calls, and reads their results, in an event loop."""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from headway.calls.call import Call, CallResult
from headway.calls.calls import Calls
from headway.delay.due_time import When
from headway.priority.async_producer import AsyncProducer
from headway.records.record_types import Header, RecordMetadata
from headway.settings.config import Config


class AsyncCalls:
    """`Calls` for asyncio.

        async with AsyncProducer(config) as producer, AsyncCalls(config, "image-results") as calls:
            async with asyncio.timeout(30):
                thumbnail = await calls.call(producer, "resize", b"...", level=2)

    The arguments are those of `Calls`. Entering the block creates the result topic if it does not exist.
    """

    def __init__(self, config: Config, topic: str) -> None:
        self._calls = Calls(config, topic)

    def call(
        self,
        producer: AsyncProducer,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Iterable[Header] = (),
        *,
        level: int | None = None,
        partition: int | None = None,
        due: When | None = None,
        expires: When | None = None,
        returns: Any = Any,
    ) -> Call:
        """Send a record, and return a `Call`. Awaiting it returns what the handler returned.

        The arguments and errors are those of `Calls.call`. If the task that awaits the call is cancelled, the result is
        no longer waited for, but the record is handled all the same.
        """
        call = self._calls.expect(returns)
        sent = [*headers, self._calls.header(call)]

        def delivered(sending: asyncio.Future[RecordMetadata]) -> None:
            if not sending.cancelled():
                call.delivered(sending.exception(), None)

        sending = producer.send(topic, value, key, sent, partition, level=level, due=due, expires=expires)
        sending.add_done_callback(delivered)
        return call

    async def get(self, id: str, returns: Any = Any) -> CallResult | None:
        """Return the result of a call, or None if there is none yet; see `Calls.get`."""
        return await asyncio.to_thread(self._calls.get, id, returns)

    async def attach(self, id: str, returns: Any = Any) -> Call:
        """Return a `Call` for a call that was made earlier; see `Calls.attach`."""
        return await asyncio.to_thread(self._calls.attach, id, returns)

    async def close(self) -> None:
        """Close the connections. Calls without a result fail with `ClosedError`."""
        await asyncio.to_thread(self._calls.close)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._calls.prepare)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

"""An `async def` that is told of stored outputs, in the caller's own event loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from headway.parallel.output_stream import Backlog, StoredOutput
from headway.records.record_types import ProducerRecord, RecordMetadata

log = logging.getLogger(__name__)

AsyncOnOutput = Callable[[Any, ProducerRecord, RecordMetadata], Awaitable[Any]]

_Told = tuple[Any, ProducerRecord, RecordMetadata] | None


class OutputTasks:
    """The calls of an `async def` for stored outputs, one after the other, in a task of the running loop.

    Calling it, from any thread, adds a call. What a call raises is logged, and the next one follows. With many of them
    in the `backlog` no record starts.
    """

    def __init__(self, on_output: AsyncOnOutput, backlog: Backlog) -> None:
        self._on_output = on_output
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[_Told] = asyncio.Queue()
        self._task = self._loop.create_task(self._run())

    def __call__(self, input: Any, output: ProducerRecord, metadata: RecordMetadata) -> None:
        self._backlog.add(StoredOutput(input, output, metadata))
        self._loop.call_soon_threadsafe(self._told.put_nowait, (input, output, metadata))

    async def _run(self) -> None:
        while told := await self._told.get():
            self._backlog.take()
            try:
                await self._on_output(*told)
            except BaseException as error:  # one that leaves a task would end the loop
                if isinstance(error, asyncio.CancelledError) and self._task.cancelling():
                    raise
                log.exception("The on_output callback for a record of %s raised.", told[1].topic)

    async def end(self) -> None:
        """Wait until all calls have ended; a cancellation of the caller ends them."""
        self._loop.call_soon(self._told.put_nowait, None)  # behind what threads have handed to the loop
        try:
            await asyncio.wait([self._task])
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the call that runs, and make no other."""
        self._task.cancel()

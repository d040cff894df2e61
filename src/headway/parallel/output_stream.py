"""Streams of stored outputs.

The caller iterates over a stream, or passes an `async def` that is called for each output.

Once an output is stored, its record is done, whether or not the caller takes the output. So unlike a stream of results,
a stream of outputs does not affect what is committed. A stream of outputs only holds up the run while too many outputs
wait.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from headway.core.record_size import size_of
from headway.declarations import called, takes
from headway.errors import ConfigError
from headway.execution.dispatch import Dispatch
from headway.kafka.producer.headers import header_list
from headway.parallel.outputs import OnOutput
from headway.parallel.stream import Owner, PutResult, Stream
from headway.records.record_types import ConsumerRecord, ProducerRecord, RecordMetadata

log = logging.getLogger(__name__)

AsyncOnOutput = Callable[[Any, ProducerRecord, RecordMetadata], Awaitable[Any]]

# How many outputs can wait for the caller, and how many bytes they can have. If the caller pauses only briefly, these
# limits are never reached.
_MOST = 1000
_MOST_BYTES = 64 * 2**20


class StoredOutput(NamedTuple):
    """An output that Kafka has stored, with the record or records that it was made from, and its position in Kafka."""

    input: ConsumerRecord | list[ConsumerRecord]
    output: ProducerRecord
    metadata: RecordMetadata


class UntakenOutputs:
    """Counts the stored outputs that the caller has not taken. While there are too many of them, no record starts.

    The limit is 1,000 outputs, or 64 MiB of outputs and the records that they were made from. Records that are already
    running, or whose transaction is open, can still add outputs. Records start again when the number of outputs has
    fallen to half of the limit. Any thread can call the methods.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._lock = threading.Lock()  # protects the counts of outputs that the caller has not taken
        self._sizes = deque[int]()
        self._bytes = 0
        self._waits = False

    def add(self, stored: StoredOutput) -> None:
        """Count an output that waits for the caller."""
        size = _size_of(stored)
        with self._lock:
            self._sizes.append(size)
            self._bytes += size
            if not self._waits and (len(self._sizes) >= _MOST or self._bytes >= _MOST_BYTES):
                self._waits = True
                self._dispatch.wait_for_outputs(True)

    def take(self) -> None:
        """Stop counting the oldest waiting output. The caller takes outputs in the order in which they were added."""
        with self._lock:
            self._bytes -= self._sizes.popleft()
            if self._waits and len(self._sizes) <= _MOST // 2 and self._bytes <= _MOST_BYTES // 2:
                self._waits = False
                self._dispatch.wait_for_outputs(False)


def _size_of(stored: StoredOutput) -> int:
    """Estimate the size of a stored output and its inputs in bytes.

    A key or value that is not str or bytes counts as 0.
    """
    inputs = stored.input if isinstance(stored.input, list) else [stored.input]
    output = stored.output
    value, key = (field if isinstance(field, str | bytes) else None for field in (output.value, output.key))
    return size_of(value, key, header_list(output.headers)) + sum(
        size_of(record.raw_value, record.raw_key, record.headers) for record in inputs
    )


class OutputStream(Stream[StoredOutput]):
    """An iterable and async iterable over stored outputs, in the order in which Kafka stored them.

    It can be iterated over only once. The iteration ends when the consumer has stopped and the caller has taken the
    last output. If an error ended the run, the iteration raises that error. If the caller leaves the iteration, the
    consumer stops; outputs that the caller has not taken remain stored.

    Args:
        produce: A function that runs the consumer, and calls the function that it gets as argument for each stored
            output.
        stop: A function that stops the consumer. Its argument is True to drain.
        dispatch: The dispatch, which starts no record while too many outputs wait.
    """

    drops_untaken_at_end = False

    def __init__(
        self, produce: Callable[[OnOutput, Owner], None], stop: Callable[[bool], None], dispatch: Dispatch
    ) -> None:
        super().__init__(stop)
        self._produce = produce
        self._untaken = UntakenOutputs(dispatch)

    def run(self, put: PutResult, owner: Owner) -> None:
        """Run the consumer, and call `put` with each stored output."""

        def stored(input: Any, output: ProducerRecord, metadata: RecordMetadata) -> None:
            output_stored = StoredOutput(input, output, metadata)
            self._untaken.add(output_stored)
            put(output_stored)

        self._produce(stored, owner)

    def handed_out(self, item: StoredOutput) -> StoredOutput:
        """Count this output as taken, and return it."""
        self._untaken.take()
        return item


class OutputTasks:
    """Calls an `async def` for each stored output, one call after another, in a task of the running loop.

    The object itself is used as the `on_output` callback: any thread can call it, and each call adds a call of the
    `async def` to the queue. If the `async def` raises an error, the error is logged, and the next call is made. While
    too many calls wait, no record starts.

    Raises `ConfigError` if the function cannot be called with (input, output, metadata).
    """

    def __init__(self, on_output: AsyncOnOutput, dispatch: Dispatch) -> None:
        if not takes(on_output, 3):
            raise ConfigError(
                f"on_output is {called(on_output)}, which cannot be called with (input, output, metadata)."
            )
        self._on_output = on_output
        self._untaken = UntakenOutputs(dispatch)
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[StoredOutput | None] = asyncio.Queue()
        self._task = self._loop.create_task(self._run())

    def __call__(self, input: Any, output: ProducerRecord, metadata: RecordMetadata) -> None:
        stored = StoredOutput(input, output, metadata)
        self._untaken.add(stored)
        self._loop.call_soon_threadsafe(self._waiting.put_nowait, stored)

    async def _run(self) -> None:
        while stored := await self._waiting.get():
            self._untaken.take()
            try:
                await self._on_output(*stored)
            except BaseException as error:  # includes SystemExit, which would end the event loop if the task raised it
                if isinstance(error, asyncio.CancelledError) and self._task.cancelling():
                    raise
                log.exception("The on_output callback for a record of %s raised an error.", stored.output.topic)

    async def end(self) -> None:
        """Wait until all calls have ended. If this coroutine is cancelled, the calls are cancelled too."""
        # `None` ends the task. It is added through the loop, so that it is queued after outputs that other threads have
        # passed to the loop.
        self._loop.call_soon(self._waiting.put_nowait, None)
        try:
            await asyncio.wait([self._task])
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the running call, and make no further calls."""
        self._task.cancel()

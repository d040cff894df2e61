"""The stored outputs for a caller who iterates over them, or who awaits a call for each.

A stored output's record is done, whoever is told of it. So a stream of outputs, unlike one of results, does not decide
what is committed: it only slows the run down while too many wait to be taken.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from headway.core.record_size import size_of
from headway.execution.dispatch import Dispatch
from headway.kafka.producer.headers import header_list
from headway.parallel.outputs import OnOutput
from headway.parallel.stream import Owner, Stream
from headway.records.record_types import ConsumerRecord, ProducerRecord, RecordMetadata

log = logging.getLogger(__name__)

AsyncOnOutput = Callable[[Any, ProducerRecord, RecordMetadata], Awaitable[Any]]

_MOST = 1000
_MOST_BYTES = 64 * 2**20


class StoredOutput(NamedTuple):
    """An output that is in Kafka: the record, or records, it came from; itself; and where it is stored."""

    input: ConsumerRecord | list[ConsumerRecord]
    output: ProducerRecord
    metadata: RecordMetadata


class UntakenOutputs:
    """A counter of stored outputs that wait to be taken, for any thread: with many of them no record starts.

    Many are 1,000, or fewer if they take 64 MiB with the records that they came from. What runs, or waits for its
    commit, may still add its outputs. Records start again when half of that is left.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._lock = threading.Lock()
        self._sizes = deque[int]()
        self._bytes = 0
        self._waits = False

    def add(self, stored: StoredOutput) -> None:
        """Count an output that waits."""
        size = _size_of(stored)
        with self._lock:
            self._sizes.append(size)
            self._bytes += size
            if not self._waits and (len(self._sizes) >= _MOST or self._bytes >= _MOST_BYTES):
                self._waits = True
                self._dispatch.wait_for_outputs(True)

    def take(self) -> None:
        """Count the next output as taken; they are taken in the order in which they were added."""
        with self._lock:
            self._bytes -= self._sizes.popleft()
            if self._waits and len(self._sizes) <= _MOST // 2 and self._bytes <= _MOST_BYTES // 2:
                self._waits = False
                self._dispatch.wait_for_outputs(False)


def _size_of(stored: StoredOutput) -> int:
    """Return about how many bytes a stored output takes: what a serialiser was given is not known."""
    inputs = stored.input if isinstance(stored.input, list) else [stored.input]
    output = stored.output
    value, key = (field if isinstance(field, str | bytes) else None for field in (output.value, output.key))
    return size_of(value, key, header_list(output.headers)) + sum(
        size_of(record.raw_value, record.raw_key, record.headers) for record in inputs
    )


class OutputStream(Stream[StoredOutput]):
    """An iterable and async iterable, for one iteration, of stored outputs, in the order in which Kafka stored them.

    It ends after the consumer was stopped and the last output was taken. Raises the error that ended the run, if one
    did. Leaving the iteration stops the consumer; what was not taken by then is stored all the same.

    Args:
        produce: Runs the consumer; a function is called for each stored output.
        stop: Stops it, with draining if it gets True.
        dispatch: The dispatch that starts nothing while many outputs wait.
    """

    def __init__(
        self, produce: Callable[[OnOutput, Owner], None], stop: Callable[[bool], None], dispatch: Dispatch
    ) -> None:
        super().__init__(_StoredOutputs(produce, UntakenOutputs(dispatch)), stop)


class _StoredOutputs:
    """The stored outputs of a run."""

    comes_again = False

    def __init__(self, produce: Callable[[OnOutput, Owner], None], untaken: UntakenOutputs) -> None:
        self._produce = produce
        self._untaken = untaken

    def run(self, put: Callable[[Any], Any], owner: Owner) -> None:
        def stored(input: Any, output: ProducerRecord, metadata: RecordMetadata) -> None:
            output_stored = StoredOutput(input, output, metadata)
            self._untaken.add(output_stored)
            put(output_stored)

        self._produce(stored, owner)

    def given(self, item: StoredOutput) -> StoredOutput:
        self._untaken.take()
        return item

    def taken(self, item: StoredOutput) -> None:
        pass


class OutputTasks:
    """The calls of an `async def` for stored outputs, one after the other, in a task of the running loop.

    Calling it, from any thread, adds a call. What a call raises is logged, and the next one follows. While many calls
    wait, no record starts.
    """

    def __init__(self, on_output: AsyncOnOutput, dispatch: Dispatch) -> None:
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
            except BaseException as error:  # one that leaves a task would end the loop
                if isinstance(error, asyncio.CancelledError) and self._task.cancelling():
                    raise
                log.exception("The on_output callback for a record of %s raised.", stored.output.topic)

    async def end(self) -> None:
        """Wait until all calls have ended; a cancellation of the caller ends them."""
        self._loop.call_soon(self._waiting.put_nowait, None)  # behind what threads have handed to the loop
        try:
            await asyncio.wait([self._task])
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the call that runs, and make no other."""
        self._task.cancel()

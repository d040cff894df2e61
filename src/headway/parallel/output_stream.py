"""The stored outputs as a stream for the caller to iterate over, and the bound on those that nobody has taken yet.

A stored output's record is done, whoever hears of it. So a stream of outputs has no say in what is committed, as one of
results has: it only slows the run down.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from headway.core.record_size import size_of
from headway.execution.dispatch import Dispatch
from headway.kafka.producer.headers import header_list
from headway.parallel.outputs import OnOutput
from headway.parallel.stream import Stream
from headway.records.record_types import ConsumerRecord, ProducerRecord, RecordMetadata

_MOST = 1000
_MOST_BYTES = 64 * 2**20


class StoredOutput(NamedTuple):
    """An output that is in Kafka: the record, or records, it came from; itself; and where it is stored."""

    input: ConsumerRecord | list[ConsumerRecord]
    output: ProducerRecord
    metadata: RecordMetadata


Produce = Callable[[OnOutput, asyncio.Task[Any] | None], None]


class Backlog:
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
    """

    def __init__(self, produce: Produce, stop: Callable[[bool], None], backlog: Backlog) -> None:
        super().__init__(stop)
        self._produce = produce
        self._backlog = backlog

    def _run(self, put: Callable[[Any], Any], owner: asyncio.Task[Any] | None) -> None:
        def stored(input: Any, output: ProducerRecord, metadata: RecordMetadata) -> None:
            output_stored = StoredOutput(input, output, metadata)
            self._backlog.add(output_stored)
            put(output_stored)

        self._produce(stored, owner)

    def _given(self, item: StoredOutput) -> StoredOutput:
        self._backlog.take()
        return item

    def _taken(self, item: StoredOutput) -> None:
        pass

"""The stored outputs as a stream for the caller to iterate over, and the bound on those that nobody has taken yet.

A stored output's record is done, whoever hears of it. So a stream of outputs has no say in what is committed, as one of
results has: it only slows the run down.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from headway.execution.dispatch import Dispatch
from headway.parallel.outputs import OnOutput
from headway.parallel.stream import Stream
from headway.records import ConsumerRecord, ProducerRecord, RecordMetadata

_MOST = 1000
_FEW = 500


class StoredOutput(NamedTuple):
    """An output that is in Kafka: the record, or records, it came from; itself; and where it is stored."""

    input: ConsumerRecord | list[ConsumerRecord]
    output: ProducerRecord
    metadata: RecordMetadata


Produce = Callable[[OnOutput, asyncio.Task[Any] | None], None]


class Backlog:
    """A counter of stored outputs that wait to be taken, for any thread: with many of them no record starts.

    What runs, or waits for its commit, may still add its outputs.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._lock = threading.Lock()
        self._waiting = 0

    def add(self) -> None:
        """Count an output that waits."""
        with self._lock:
            self._waiting += 1
            if self._waiting == _MOST:
                self._dispatch.wait_for_outputs(True)

    def take(self) -> None:
        """Count an output as taken."""
        with self._lock:
            self._waiting -= 1
            if self._waiting == _FEW:
                self._dispatch.wait_for_outputs(False)


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
            self._backlog.add()
            put(StoredOutput(input, output, metadata))

        self._produce(stored, owner)

    def _given(self, item: StoredOutput) -> StoredOutput:
        self._backlog.take()
        return item

    def _taken(self, item: StoredOutput) -> None:
        pass

"""Streams of handlers' results.

The caller iterates over a stream, or passes a function that is called with each result.

A record is done when the caller requests the next result, or when the function returns. So if the caller does not take
a result, the next run handles its record again. A record keeps its slot until it is done, so there are never more
waiting results than slots.
"""

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from headway.execution.dispatch import Dispatch
from headway.execution.handler_calls import ResultReceiver, not_run
from headway.execution.jobs import Job
from headway.parallel.callbacks import check_callback
from headway.parallel.stream import Owner, PutResult, Stream
from headway.records.record_types import ConsumerRecord


class Result(NamedTuple):
    """A record, and the value that the handler returned for it."""

    record: ConsumerRecord
    value: Any


class BatchResult(NamedTuple):
    """The records of a batch, and the value that the handler returned for them."""

    records: Sequence[ConsumerRecord]
    value: Any


R = TypeVar("R")

OnResult = Callable[[Any, Any], Any]
"""A function that is called with (input, value) for each result. For batches, the input is a list of records."""

_Item = tuple[Job, Any]


class ResultStream(Stream[R]):
    """An iterable and async iterable over the results of handlers, in the order in which the handlers return.

    It can be iterated over only once. The iteration ends when the consumer has stopped. If the consumer drains, the
    iteration first yields all remaining results. If an error ended the run, the iteration raises that error. If the
    caller leaves the iteration, the consumer stops.

    Args:
        run: A function that runs the consumer, and passes the handlers' return values to the receiver that it gets.
        stop: A function that stops the consumer. Its argument is True to drain.
        dispatch: The dispatch, to which the stream reports finished records.
        in_batches: True if each result is the result of a batch.
    """

    drops_untaken_at_end = True

    def __init__(
        self,
        run: Callable[[ResultReceiver, Owner], None],
        stop: Callable[[bool], None],
        dispatch: Dispatch,
        *,
        in_batches: bool,
    ) -> None:
        super().__init__(stop)
        self._run = run
        self._dispatch = dispatch
        self._in_batches = in_batches

    def for_each(self, on_result: OnResult) -> None:
        """Call `on_result(record, value)` for each result, one at a time in this thread, until the consumer is stopped.

        A record is done when the call returns. If the call raises an exception, the attempt has failed, as if the
        handler had raised that exception. Only a KeyboardInterrupt ends the run, because Ctrl-C raises it in this
        thread.
        """
        check_callback("on_result", on_result, ("input", "value"))
        items: SimpleQueue[_Item | None] = SimpleQueue()
        with self.running(items.put):
            while (item := items.get()) and not self.has_ended:
                failure = _failure_of(on_result, self.handed_out(item))
                self.check_process()
                self._dispatch.complete_elsewhere(item[0], failure)

    def run(self, put: PutResult, owner: Owner) -> None:
        """Run the consumer, and call `put` with each job and its result."""
        self._run(_PutResults(put, self._dispatch), owner)

    def handed_out(self, item: _Item) -> Any:
        """Return the job's `Result`, or its `BatchResult` if the handler takes batches."""
        job, value = item
        records = [attempt.record for attempt in job]
        return BatchResult(records, value) if self._in_batches else Result(records[0], value)

    def finished(self, item: _Item) -> None:
        """Report to the dispatch that the records of a result are done."""
        if self._in_batches:
            self._dispatch.complete_elsewhere(item[0])
        else:
            self._dispatch.stored(item[0][0])


class _PutResults:
    """Puts each job with its result into the stream.

    A job keeps its slot until the stream reports that the job is done.
    """

    def __init__(self, put: PutResult, dispatch: Dispatch) -> None:
        self._put = put
        self._dispatch = dispatch

    def take_result(self, job: Job, returned: Any) -> Job | None:
        """Put a job with its result into the stream. Returns another job if a slot is free, or None."""
        self._put((job, returned))
        return self._dispatch.next()


def _failure_of(on_result: OnResult, result: Any) -> BaseException | None:
    """Call `on_result` with a result. If the call raises, the attempt has failed, and the error is returned."""
    try:
        return not_run(on_result(*result), "on_result")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error

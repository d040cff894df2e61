"""The handlers' results as a stream for the caller to iterate over, plain or async, or to be handed to a function.

A record is done when the next result is asked for, or when the function returns. Results that the caller did not reach
therefore come again. Until then a record keeps its slot, so no more results wait than there are slots.
"""

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from headway.execution.dispatch import Dispatch
from headway.execution.handlers import TakeResult, not_run
from headway.execution.jobs import Job
from headway.parallel.callbacks import check_callback
from headway.parallel.stream import Owner, Stream
from headway.records.record_types import ConsumerRecord


class Result(NamedTuple):
    """A record and what its handler returned."""

    record: ConsumerRecord
    value: Any


class BatchResult(NamedTuple):
    """The records of a batch and what its handler returned."""

    records: Sequence[ConsumerRecord]
    value: Any


R = TypeVar("R")

OnResult = Callable[[Any, Any], Any]
"""The function for a result: (input, value). The input is a `ConsumerRecord`, or for batches a list of them."""

_Item = tuple[Job, Any]


class ResultStream(Stream[R]):
    """An iterable and async iterable, for one iteration, of results in the order in which handlers end.

    It ends after the consumer was stopped, with draining after the last result was taken. Raises the error that ended
    the run, if one did. Leaving the iteration stops the consumer.

    Args:
        run: Runs the consumer; a function takes what handlers return.
        stop: Stops it, with draining if it gets True.
        dispatch: The dispatch to which results that were taken are reported.
        in_batches: True for one result of each batch.
    """

    def __init__(
        self,
        run: Callable[[TakeResult, Owner], None],
        stop: Callable[[bool], None],
        dispatch: Dispatch,
        *,
        in_batches: bool,
    ) -> None:
        self._results = _Results(run, dispatch, in_batches)
        self._dispatch = dispatch
        super().__init__(self._results, stop)

    def for_each(self, on_result: OnResult) -> None:
        """Call `on_result(record, value)` for each result, one at a time in this thread, until the consumer is stopped.

        A record is done when the call returns. Whatever it raises is a failed attempt, as if the handler had raised it;
        only KeyboardInterrupt ends the run, for Ctrl-C raises it here.
        """
        check_callback("on_result", on_result, ("input", "value"))
        items: SimpleQueue[_Item | None] = SimpleQueue()
        with self.running(items.put):
            while (item := items.get()) and not self.has_ended:
                failure = _failure_of(on_result, self._results.given(item))
                self.check_process()
                self._dispatch.complete_elsewhere(item[0], failure)


class _Results:
    """The results of a run, each with its job."""

    comes_again = True

    def __init__(self, run: Callable[[TakeResult, Owner], None], dispatch: Dispatch, in_batches: bool) -> None:
        self._run = run
        self._dispatch = dispatch
        self._in_batches = in_batches

    def run(self, put: Callable[[Any], Any], owner: Owner) -> None:
        def take_result(job: Job, value: Any) -> Job | None:
            put((job, value))
            return self._dispatch.next()

        self._run(take_result, owner)

    def given(self, item: _Item) -> Any:
        job, value = item
        records = [work.record for work in job]
        return BatchResult(records, value) if self._in_batches else Result(records[0], value)

    def taken(self, item: _Item) -> None:
        if self._in_batches:
            self._dispatch.complete_elsewhere(item[0])
        else:
            self._dispatch.stored(item[0][0])


def _failure_of(on_result: OnResult, result: Any) -> BaseException | None:
    """Call the function; return the error that it raised, or None."""
    try:
        return not_run(on_result(*result), "on_result")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error

"""The handlers' results as a stream for the caller to iterate over, plain or async, or to be handed to a function.

A record is done when the next result is asked for, or when the function returns. Results that the caller did not reach
therefore come again. Until then a record keeps its slot, so no more results wait than there are slots.
"""

import asyncio
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from headway.declarations import is_coroutine_function
from headway.execution.dispatch import Dispatch
from headway.execution.handlers import Handlers, WithContext, for_batches, for_each_record, not_run
from headway.execution.jobs import Job
from headway.parallel.stream import Stream
from headway.parallel.validation import check_callback
from headway.records.record_types import ConsumerRecord
from headway.runtime.sigterm import on_terminate


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

Run = Callable[[Handlers, asyncio.Task[Any] | None], None]
_Item = tuple[Job, Any]


class ResultStream(Stream[R]):
    """An iterable and async iterable, for one iteration, of results in the order in which handlers end.

    It ends after the consumer was stopped, with draining after the last result was taken. Raises the error that ended
    the run, if one did. Leaving the iteration stops the consumer.
    """

    _ends_at_once = True  # results that were not taken come again

    def __init__(
        self,
        handler: WithContext,
        dispatch: Dispatch,
        run: Run,
        stop: Callable[[bool], None],
        *,
        in_batches: bool = False,
    ) -> None:
        super().__init__(stop)
        self._handler = handler
        self._in_batches = in_batches
        self._dispatch = dispatch
        self._run_calls = run

    def for_each(self, on_result: OnResult) -> None:
        """Call `on_result(record, value)` for each result, one at a time in this thread, until the consumer is stopped.

        A record is done when the call returns. Whatever it raises is a failed attempt, as if the handler had raised it;
        only KeyboardInterrupt ends the run, for Ctrl-C raises it here.
        """
        check_callback("on_result", on_result, ("input", "value"))
        items: SimpleQueue[_Item | None] = SimpleQueue()
        running = self._start(items.put, None)
        try:
            with on_terminate(self._stop):
                while (item := items.get()) and not self._has_ended:
                    failure = _failure_of(on_result, self._given(item))
                    self.check_process()
                    self._dispatch.settle_later(item[0], failure)
        finally:
            self._leave()
            running.join()
        if self._failure:
            raise self._failure

    def _run(self, put: Callable[[Any], Any], owner: asyncio.Task[Any] | None) -> None:
        def settle(job: Job, value: Any) -> Job | None:
            put((job, value))
            return self._dispatch.next()

        calls = (for_batches if self._in_batches else for_each_record)(self._handler, settle, self._dispatch)
        self._run_calls(calls, owner if is_coroutine_function(self._handler) else None)

    def _taken(self, item: _Item) -> None:
        if self._in_batches:
            self._dispatch.settle_later(item[0])
        else:
            self._dispatch.stored(item[0][0])

    def _given(self, item: _Item) -> R:
        job, value = item
        records = [work.record for work in job]
        result: Any = BatchResult(records, value) if self._in_batches else Result(records[0], value)
        return result  # type: ignore[no-any-return]


def _failure_of(on_result: OnResult, result: Any) -> BaseException | None:
    """Call the function; return what it raised, or None."""
    try:
        return not_run(on_result(*result), "on_result")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error

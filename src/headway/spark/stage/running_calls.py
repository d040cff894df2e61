"""The running calls of a stage, among them calls that never end.

Python interrupts a thread only between two steps of its own code, and a coroutine only where it waits. A call that
never returns from a library, or that swallows each interruption, would keep its task from ending. So after three times
the time limit the row fails permanently: the call may still run, and a retry would run beside it.

At its deadline a task no longer waits for its running calls. Their rows come back later, while a call that cannot be
interrupted may still run. A call that began in the second half of the task's time does not count as an attempt, so that
a busy hour does not turn healthy rows into dead letters.
"""

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from headway.errors import FatalError, HandlerError, RetriableError, TimeLimitError
from headway.spark.stage.deadline import Deadline

_TIMES = 3  # a call is abandoned after this many times its time limit
LONGER_BY = 10.0  # seconds beyond its limit that a call gets at least: a busy machine easily exceeds a short limit
MOST_STUCK = 100  # calls in this process: each holds a thread and its objects
MOST_LEFT = 1_000  # the same, for calls that were left at a deadline
_FAIR_FRACTION = 0.5  # of the deadline; a call that had less of it does not count as an attempt
# The most calls of a row that do not count. A row that always begins late and never ends becomes a dead letter, too.
_MOST_UNCOUNTED = 50

# The works of all tasks of this process whose calls still run although they were abandoned, or left at a deadline.
given_up: set[Any] = set()
left_behind: set[Any] = set()


class _RunningCall(NamedTuple):
    job: Sequence[Any]
    began: float
    task: "asyncio.Task[Any] | None"


class RunningCalls:
    """The calls that a stage runs, by the first work of their jobs. Without a limit and a deadline it watches none.

    Invariant: for a call that was abandoned or left, `end` returns False; a call that has ended is never abandoned.
    """

    def __init__(self, time_limit: float | None, deadline: Deadline) -> None:
        self._limit = time_limit
        self._deadline = deadline
        self._watches = bool(time_limit) or deadline.seconds < math.inf
        self._patience = max(_TIMES * time_limit, time_limit + LONGER_BY) if time_limit else 0.0
        self._running: dict[Any, _RunningCall] = {}
        self._ending = threading.Lock()  # enough: a call that has not ended does not begin again either

    def begin(self, job: Sequence[Any], task: "asyncio.Task[Any] | None" = None) -> None:
        """Record that a call begins. `task` is the asyncio task of a coroutine."""
        if self._watches:
            self._running[job[0]] = _RunningCall(job, time.monotonic(), task)

    def end(self, work: Any) -> bool:
        """Record that a call has ended. Returns whether its result counts; False if the call was abandoned or left."""
        if not self._watches:
            return True
        with self._ending:
            self._running.pop(work, None)  # it is missing if the call was interrupted before it was noted
            if work not in given_up and work not in left_behind:
                return True
            _has_ended(work)
            return False

    def overdue(self) -> Sequence[Any]:
        """Return the works whose calls have exceeded their time limit by so much that they must be abandoned."""
        if not self._limit:
            return []
        now = time.monotonic()
        return [work for work, call in list(self._running.items()) if now - call.began > self._patience]

    def leave(self) -> Sequence[tuple[Sequence[Any], TimeLimitError | RetriableError]]:
        """Stop waiting for all calls, and cancel coroutines. Returns each job with its error.

        Raises `HandlerError` if more than `MOST_LEFT` earlier calls still run in this process, because a service that
        only hangs now and then cannot be the reason.
        """
        with self._ending:
            earlier = len(left_behind)  # before adding the calls that are cancelled only now
            left = dict(self._running)
            self._running.clear()
            left_behind.update(left)
        for work, call in left.items():
            if call.task:
                call.task.get_loop().call_soon_threadsafe(_cancel, call.task, work)
        if earlier > MOST_LEFT:
            raise HandlerError(
                f"{earlier} calls of handlers were left at the deadlines of their tasks in one of Spark's Python "
                "workers, and none of them has ended. Give whatever they wait for a time limit of its own, such as "
                "the timeout of a socket or client."
            )
        return [(call.job, self._cut_off(call)) for call in left.values()]

    def _cut_off(self, call: _RunningCall) -> TimeLimitError | RetriableError:
        """Return the error for a call that the deadline ends."""
        what = f"The handler had not ended at the deadline, {self._deadline.seconds:g} s after its task's first rows"
        had = self._deadline.at - call.began
        if had >= _FAIR_FRACTION * self._deadline.seconds or any(work.untried >= _MOST_UNCOUNTED for work in call.job):
            return TimeLimitError(f"{what}.")
        return RetriableError(
            f"{what}; this does not count as an attempt, since it had begun only {had:.3g} s before.", untried=True
        )

    def give_up(self, work: Any) -> tuple[Sequence[Any], FatalError] | None:
        """Stop waiting for an overdue call. Returns its job and error, or None if it has ended meanwhile.

        Raises `HandlerError` if more than `MOST_STUCK` calls that were abandoned still run in this process, because no
        single row can be to blame then.
        """
        with self._ending:
            call = self._running.get(work)
            if call is None or time.monotonic() - call.began <= self._patience:
                return None
            del self._running[work]
            given_up.add(work)
        if call.task:  # needed because nothing calls `end` if the task ends together with the run
            call.task.get_loop().call_soon_threadsafe(call.task.add_done_callback, lambda _: _has_ended(work))
        if len(given_up) > MOST_STUCK:
            raise HandlerError(
                f"{len(given_up)} calls of handlers have not ended in one of Spark's Python workers, each much longer "
                f"than its time limit; the last, of {self._limit:g} s, is for {work.record!r}. Give whatever they "
                "wait for a time limit of its own, such as the timeout of a socket or client."
            )
        return call.job, FatalError(
            f"The handler did not end within its time limit of {self._limit:g} s, and could not be interrupted. After "
            f"{self._patience:g} s its row fails permanently, while the call may still run. Give whatever it waits for "
            "a time limit of its own."
        )

    def holding_up(self, loop: asyncio.AbstractEventLoop) -> HandlerError:
        """Return the error for an event loop that one coroutine blocks."""
        patience = self._patience or LONGER_BY
        task = asyncio.current_task(loop)
        rows = [repr(work.record) for work, call in list(self._running.items()) if task and call.task is task]
        return HandlerError(
            f"The coroutine for {rows[0] if rows else 'a row'} has blocked its event loop for {patience:g} s, so that "
            "no other can go on. Wait with await for whatever takes time, or make the handler a plain function, which "
            "runs on a thread."
        )


def _has_ended(work: Any) -> None:
    given_up.discard(work)
    left_behind.discard(work)


def _cancel(task: "asyncio.Task[Any]", work: Any) -> None:
    """Cancel a task in its loop; the callback frees its work if the run ends with it, so that `end` is never called."""
    task.add_done_callback(lambda _: _has_ended(work))
    task.cancel()

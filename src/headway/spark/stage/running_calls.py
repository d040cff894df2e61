"""Tracks the running calls of a stage, and abandons calls that never end.

Python can interrupt a thread only between two steps of Python code, and a coroutine only where it awaits something. A
call that never returns from a library, or that suppresses each interruption, would keep its task from ending. So after
about three times the time limit, the call is abandoned and its row fails permanently. The row is not retried, because
the abandoned call may still run, and a retry would run at the same time.

At its deadline, a task no longer waits for its running calls. Their rows are handled again later, while a call that
cannot be interrupted may still run. A call that began in the second half of the task's time does not count as an
attempt, so that rows do not become dead letters only because the system is busy.
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
LONGER_BY = 10.0  # nor is a call abandoned before it is this many seconds late, because the machine can be busy
MOST_STUCK = 100  # at most this many abandoned calls can still run in this process, because each holds a thread
MOST_LEFT = 1_000  # at most this many calls that were left at a deadline can still run in this process
_FAIR_FRACTION = 0.5  # a call that had less than this fraction of the deadline's time does not count as an attempt
# The maximum number of calls for a row that do not count as attempts. Further calls count, so that a row whose calls
# always begin late and never end becomes a dead letter.
_MOST_UNCOUNTED = 50

# The attempts, of all tasks in this process, whose calls may still run. `given_up` has the attempts that were abandoned
# after their time limit, and `left_behind` has the attempts that were left at a deadline.
given_up: set[Any] = set()
left_behind: set[Any] = set()


class _RunningCall(NamedTuple):
    job: Sequence[Any]
    began: float
    task: "asyncio.Task[Any] | None"


class RunningCalls:
    """The running calls of a stage. If there is neither a time limit nor a deadline, calls are not tracked.

    A call is identified by the first attempt of its job.

    Invariants: for a call that was abandoned or left, `end` returns False. A call that has ended is never abandoned.
    """

    def __init__(self, time_limit: float | None, deadline: Deadline) -> None:
        self._limit = time_limit
        self._deadline = deadline
        self._watches = bool(time_limit) or deadline.seconds < math.inf
        self._patience = max(_TIMES * time_limit, time_limit + LONGER_BY) if time_limit else 0.0
        self._running: dict[Any, _RunningCall] = {}
        self._ending = threading.Lock()  # `begin` takes no lock, because a row's next call begins only after `end`

    def begin(self, job: Sequence[Any], task: "asyncio.Task[Any] | None" = None) -> None:
        """Record that a call begins. If the handler is a coroutine, `task` is its asyncio task."""
        if self._watches:
            self._running[job[0]] = _RunningCall(job, time.monotonic(), task)

    def end(self, attempt: Any) -> bool:
        """Record that a call has ended.

        Returns whether the result of the call counts. The result of a call that was abandoned, or left at the deadline,
        does not count.
        """
        if not self._watches:
            return True
        with self._ending:
            self._running.pop(attempt, None)  # not there if the call was interrupted before `begin` recorded it
            if attempt not in given_up and attempt not in left_behind:
                return True
            _has_ended(attempt)
            return False

    def overdue(self) -> Sequence[Any]:
        """Return the attempts whose calls have exceeded the time limit by so much that the calls must be abandoned."""
        if not self._limit:
            return []
        now = time.monotonic()
        return [attempt for attempt, call in list(self._running.items()) if now - call.began > self._patience]

    def leave(self) -> Sequence[tuple[Sequence[Any], TimeLimitError | RetriableError]]:
        """Stop waiting for all running calls at the deadline, and cancel coroutines. Returns each call's job and error.

        Raises `HandlerError` if more than `MOST_LEFT` calls that were left earlier still run in this process. A service
        that only hangs occasionally cannot be the cause of this many calls.
        """
        with self._ending:
            earlier = len(left_behind)  # counted before the calls that are cancelled now are added
            left = dict(self._running)
            self._running.clear()
            left_behind.update(left)
        for attempt, call in left.items():
            if call.task:
                call.task.get_loop().call_soon_threadsafe(_cancel, call.task, attempt)
        if earlier > MOST_LEFT:
            raise HandlerError(
                f"In one of Spark's Python workers, {earlier} calls of handlers were still running at the deadlines of "
                "their tasks, and none of them has ended since. Set a time limit on the operation that they wait for, "
                "such as the timeout of a socket or client."
            )
        return [(call.job, self._cut_off(call)) for call in left.values()]

    def _cut_off(self, call: _RunningCall) -> TimeLimitError | RetriableError:
        """Return the error for a call that is still running at the deadline."""
        what = f"The handler had not ended at the deadline, {self._deadline.seconds:g} s after its task's first rows"
        had = self._deadline.at - call.began
        if had >= _FAIR_FRACTION * self._deadline.seconds or any(
            attempt.untried >= _MOST_UNCOUNTED for attempt in call.job
        ):
            return TimeLimitError(f"{what}.")
        return RetriableError(
            f"{what}; this does not count as an attempt, because the call had begun only {had:.3g} s before.",
            untried=True,
        )

    def give_up(self, attempt: Any) -> tuple[Sequence[Any], FatalError] | None:
        """Abandon an overdue call. Returns its job and error, or None if the call has ended in the meantime.

        Raises `HandlerError` if more than `MOST_STUCK` abandoned calls still run in this process, because then a single
        row cannot be the cause.
        """
        with self._ending:
            call = self._running.get(attempt)
            if call is None or time.monotonic() - call.began <= self._patience:
                return None
            del self._running[attempt]
            given_up.add(attempt)
        if call.task:  # needed because `end` is not called if the asyncio task ends after the stage has ended
            call.task.get_loop().call_soon_threadsafe(call.task.add_done_callback, lambda _: _has_ended(attempt))
        if len(given_up) > MOST_STUCK:
            raise HandlerError(
                f"In one of Spark's Python workers, {len(given_up)} calls of handlers are still running long after "
                f"their time limits. The last of them, with a limit of {self._limit:g} s, is for {attempt.record!r}. "
                "Set a time limit on the operation that they wait for, such as the timeout of a socket or client."
            )
        return call.job, FatalError(
            f"The handler did not end within its time limit of {self._limit:g} s, and could not be interrupted. After "
            f"{self._patience:g} s its row fails permanently, while the call may still run. Set a time limit on the "
            "operation that it waits for."
        )

    def holding_up(self, loop: asyncio.AbstractEventLoop) -> HandlerError:
        """Return the error for an event loop that a coroutine blocks."""
        patience = self._patience or LONGER_BY
        task = asyncio.current_task(loop)
        rows = [repr(attempt.record) for attempt, call in list(self._running.items()) if task and call.task is task]
        return HandlerError(
            f"The coroutine for {rows[0] if rows else 'a row'} has blocked its event loop for {patience:g} s, so no "
            "other coroutine can continue. Use await for operations that take time, or make the handler a plain "
            "function, which runs on a thread."
        )


def _has_ended(attempt: Any) -> None:
    given_up.discard(attempt)
    left_behind.discard(attempt)


def _cancel(task: "asyncio.Task[Any]", attempt: Any) -> None:
    """Cancel an asyncio task. Must be called in the task's event loop.

    The callback stops tracking the attempt even if `end` is never called, which happens if the stage ends first.
    """
    task.add_done_callback(lambda _: _has_ended(attempt))
    task.cancel()

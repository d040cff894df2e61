"""Whatever goes wrong beside the handler is told to the run; the executor goes on."""

import threading
from typing import Any

import pytest

from headway.errors import HandlerError, HeadwayError
from headway.execution.event_loop import EventLoop
from headway.execution.threads import Threads


class Reports:
    """Jobs are words here; the report of the unlucky one raises."""

    def __init__(self, handler: Any) -> None:
        self.call = handler
        self.ended: list[tuple[Any, Any]] = []
        self.failures: list[HeadwayError] = []
        self.all_there = threading.Event()

    def raised(self, job: Any, error: BaseException) -> None:
        self.returned(job, error)

    def returned(self, job: Any, result: Any) -> None:
        if job == "unlucky":
            raise MemoryError("no more")
        self.ended.append((job, result))
        self._note()

    def give_up(self, failure: HeadwayError) -> None:
        self.failures.append(failure)
        self._note()

    def _note(self) -> None:
        if self.ended and self.failures:
            self.all_there.set()


def raises(job: Any) -> None:
    raise OSError(job)


def returns(job: Any) -> Any:
    return job


async def returns_later(job: Any) -> Any:
    return job


async def raises_later(job: Any) -> None:
    raise OSError(job)


@pytest.mark.parametrize("handler", [returns, raises, returns_later, raises_later])
def test_what_cannot_be_noted_ends_the_run_and_not_the_thread_or_task_alone(handler: Any) -> None:
    reports = Reports(handler)
    if handler in (returns, raises):
        executor: Threads | EventLoop = Threads(reports, 1)
    else:
        executor = EventLoop(reports)
    try:
        executor.start(["unlucky"])  # type: ignore[list-item]
        executor.start(["lucky"])  # type: ignore[list-item]
        assert reports.all_there.wait(10)
    finally:
        executor.close(10)
    assert [job for job, _ in reports.ended] == ["lucky"]
    [failure] = reports.failures
    assert isinstance(failure, HandlerError)
    assert isinstance(failure.__cause__, MemoryError)


def test_threads_are_closed_while_one_of_them_is_about_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start, about_to, closed = threading.Thread.start, threading.Event(), threading.Event()

    def started_late(thread: threading.Thread) -> None:
        if thread.name.startswith("headway-handler"):
            about_to.set()
            assert closed.wait(10)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started_late)
    threads = Threads(Reports(returns), 1)
    starting = threading.Thread(target=lambda: threads.start(["lucky"]))  # type: ignore[list-item]
    starting.start()
    assert about_to.wait(10)
    threads.close(10)
    closed.set()
    starting.join(10)
    assert not starting.is_alive()

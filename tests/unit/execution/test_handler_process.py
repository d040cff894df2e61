"""The end of a process of the pool, as multiprocessing tells it."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import pytest

from headway.core.retry import Again, Retries
from headway.errors import FatalError, RetriableError, RetryLater
from headway.execution.processes.messages import portable
from headway.execution.processes.process import Process


def test_a_process_whose_end_another_thread_has_taken_and_not_noted_yet_is_closed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipes, make_pipe, others = list[Connection](), BaseContext.Pipe, multiprocessing.active_children()

    def note_pipe(context: BaseContext, duplex: bool = True) -> tuple[Any, Any]:
        ends = make_pipe(context, duplex)
        pipes.extend(ends)
        return ends

    monkeypatch.setattr(BaseContext, "Pipe", note_pipe)
    process = Process(pickle.dumps((time.sleep, None, None)), False)
    [child] = set(multiprocessing.active_children()).difference(others)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)  # as starting another process does, of all that have ended
    noting = threading.Timer(0.1, setattr, (child._popen, "returncode", -signal.SIGKILL))  # type: ignore[attr-defined]
    noting.start()
    process.close()
    noting.join()
    assert [pipe.closed for pipe in pipes] == [True] * 4


class RejectedError(FatalError):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class BusyError(RetriableError):
    def __init__(self, host: str, seconds: float) -> None:
        super().__init__(f"{host} is busy", retry_after=seconds, untried=True)


class Tomorrow(RetryLater):
    def __init__(self) -> None:
        super().__init__(86_400)


@pytest.mark.parametrize("error", [RejectedError(404, "x"), BusyError("h", 30), Tomorrow()])
def test_an_error_that_cannot_be_pickled_says_the_same_to_the_retries(error: Exception) -> None:
    retries = Retries()
    told, as_it_was = (retries.decide(None, 1, each, 0.0, 0.5) for each in (portable(error), error))
    assert type(told) is type(as_it_was)
    assert not isinstance(told, Again) or told == as_it_was
    assert getattr(portable(error), "delay", None) == getattr(error, "delay", None)

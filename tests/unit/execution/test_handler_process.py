"""The end of a process of the pool, as multiprocessing tells it."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from headway.core.retry import Again, FatalError, RetriableError, Retries, RetryLater
from headway.execution.processes.messages import portable
from headway.execution.processes.process import Process


def test_a_process_whose_end_another_thread_has_taken_and_not_noted_yet_is_closed_all_the_same() -> None:
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=time.sleep, args=(60,), daemon=True)
    child.start()
    process = Process.__new__(Process)
    process._process, process._pipe, process._asks = child, *context.Pipe()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)  # as starting another process does, of all that have ended
    noting = threading.Timer(0.1, setattr, (child._popen, "returncode", -signal.SIGKILL))  # type: ignore[attr-defined]
    noting.start()
    process.close()
    noting.join()
    assert process._pipe.closed
    assert process._asks.closed


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

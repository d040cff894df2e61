"""The end of a process of the pool, as multiprocessing tells it."""

import multiprocessing
import os
import signal
import threading
import time

from headway.parallel.processes.process import Process


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

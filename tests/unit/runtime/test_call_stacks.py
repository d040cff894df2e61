"""Reading the stack of a thread, while other threads start and the garbage collector runs."""

import subprocess
import sys

import pytest

# Each collection runs a finalizer that releases the GIL, so that another thread starts in the middle of it.
PROGRAM = """
import gc, threading, time
from headway.runtime.call_stacks import is_on_stack

class Slow:
    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(0.0005)

def start_threads():
    while not done.is_set():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

done = threading.Event()
waiting = threading.Thread(target=done.wait)
waiting.start()
starting = threading.Thread(target=start_threads)
starting.start()
gc.set_threshold(1, 1, 1)
for _ in range(1000):
    Slow()
    is_on_stack({thread}.ident, start_threads.__code__, None)
gc.set_threshold(700, 10, 10)
done.set()
starting.join()
waiting.join()
"""


@pytest.mark.parametrize("thread", ["threading.main_thread()", "waiting"], ids=["its own", "another"])
def test_a_thread_that_starts_while_a_stack_is_read_does_not_hang_the_process(thread: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.replace("{thread}", thread)], check=True, timeout=60)

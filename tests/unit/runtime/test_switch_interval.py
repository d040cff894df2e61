import subprocess
import sys

import pytest

# In a process of its own: the interval is the whole process's, and counts every thread that serves handlers.
PROGRAM = """
import sys
from contextlib import ExitStack

from headway.runtime.switch_interval import one_thread_more

with ExitStack() as hundred:
    for _ in range(100):
        hundred.enter_context(one_thread_more())
    print(sys.getswitchinterval())
    with ExitStack() as more:
        for _ in range(900):
            more.enter_context(one_thread_more())
        print(sys.getswitchinterval())
    print(sys.getswitchinterval())
print(sys.getswitchinterval())
"""


def test_many_threads_switch_less_often_and_the_interval_is_the_users_own_again_when_they_have_ended() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert [float(seconds) for seconds in output.split()] == pytest.approx([0.005, 0.05, 0.005, 0.005])

"""What is passed on of Java's stderr."""

import pytest

from headway.spark.java_stderr import worth_reading

DAEMON = """\
Traceback (most recent call last):
  File "/opt/pyspark.zip/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
INCUBATOR = "WARNING: Using incubator modules: jdk.incubator.vector\n"
USERS_OWN = """\
Traceback (most recent call last):
  File "/opt/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/home/me/handlers.py", line 7, in charge
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER_ERROR = DAEMON.replace("BrokenPipeError: [Errno 32] Broken pipe", "MemoryError")


def passed_on(text: str) -> str:
    return "".join(worth_reading(text.splitlines(keepends=True)))


HEAD, REST = DAEMON.split("\n", 1)
AMONG_EACH_OTHER = f"{HEAD}\n{HEAD}\n{REST}{REST}"
ONE_NOT_ENDED = f"{HEAD}\n{HEAD}\n{REST}"


@pytest.mark.parametrize(
    "harmless", [INCUBATOR, DAEMON, INCUBATOR + DAEMON + DAEMON, AMONG_EACH_OTHER, ONE_NOT_ENDED, AMONG_EACH_OTHER * 2]
)
def test_what_is_said_of_every_session_is_left_out(harmless: str) -> None:
    assert passed_on(harmless) == ""
    assert passed_on(f"before\n{harmless}after\n") == "before\nafter\n"


@pytest.mark.parametrize(
    "text", [USERS_OWN, OTHER_ERROR, f"{HEAD}\n{USERS_OWN}", "12:00:00 ERROR Executor: no room\n", "half a line", ""]
)
def test_all_else_is_passed_on_as_it_is(text: str) -> None:
    assert passed_on(text) == text


def test_a_stack_trace_that_is_cut_off_is_passed_on() -> None:
    assert passed_on(DAEMON[:100]) == DAEMON[:100]

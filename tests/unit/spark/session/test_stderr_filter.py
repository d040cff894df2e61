"""What is passed on of Java's stderr."""

import pytest

from headway.spark.session.stderr_filter import worth_reading

DAEMON = """\
Traceback (most recent call last):
  File "/opt/pyspark.zip/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
STREAM = """\
Traceback (most recent call last):
  File "/opt/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 265, in main
  File "/opt/pyspark.zip/pyspark/serializers.py", line 604, in read_int
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/pyspark.zip/pyspark/worker_util.py", line 253, in get_sock_file_to_executor
  File "/opt/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 299, in main
  File "/usr/lib/python3.11/socket.py", line 724, in write
    return self._sock.send(b)
           ^^^^^^^^^^^^^^^^^^
BrokenPipeError: [Errno 32] Broken pipe

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/opt/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 313, in <module>
  File "/usr/lib/python3.11/contextlib.py", line 158, in __exit__
    self.gen.throw(typ, value, traceback)
  File "/usr/lib/python3.11/socket.py", line 724, in write
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
    "harmless",
    [
        INCUBATOR,
        DAEMON,
        INCUBATOR + DAEMON + DAEMON,
        AMONG_EACH_OTHER,
        ONE_NOT_ENDED,
        AMONG_EACH_OTHER * 2,
        STREAM,
        STREAM + DAEMON + STREAM,
    ],
)
def test_what_is_said_of_every_session_is_left_out(harmless: str) -> None:
    assert passed_on(harmless) == ""
    assert passed_on(f"before\n{harmless}after\n") == "before\nafter\n"


@pytest.mark.parametrize(
    "text",
    [
        USERS_OWN,
        OTHER_ERROR,
        f"{HEAD}\n{USERS_OWN}",
        STREAM.replace("serializers.py", "source.py"),
        STREAM.replace("EOFError", "ValueError: 7"),
        "12:00:00 ERROR Executor: no room\n",
        "half a line",
        "",
    ],
)
def test_all_else_is_passed_on_as_it_is(text: str) -> None:
    assert passed_on(text) == text


def test_what_follows_a_trace_that_is_left_out_is_passed_on() -> None:
    assert passed_on(f"{STREAM}\nDuring handling of it\n") == "\nDuring handling of it\n"
    assert passed_on(f"{STREAM}\n{OTHER_ERROR}") == f"\n{OTHER_ERROR}"


def test_a_stack_trace_that_is_cut_off_is_passed_on() -> None:
    assert passed_on(DAEMON[:100]) == DAEMON[:100]

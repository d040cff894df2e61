"""Runs a worker's handler in a separate process, so that its Spark task can find out which records killed the process.

If a handler that runs in the task itself killed its process, Spark would start the task again with the same record, and
could not find out which record was the cause. So the task runs no handler, but starts a process that does. If this
process dies, the task reads which records were running, and starts another process. The task also informs all other
tasks of the run through Kafka, because any of them may be assigned the partition next.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Protocol

import msgspec

from headway.core.engine.suspects import Suspect, Suspects, how_it_ended
from headway.core.restart_policy import RestartPolicy
from headway.errors import HeadwayError, KafkaError
from headway.execution.running_table import make_table_file, read_table
from headway.kafka.reading.control_topic import ControlTopic
from headway.parallel.consumer import ParallelConsumer

log = logging.getLogger(__name__)

STOP = b"stop"
"""The message that stops all workers of a run: when they receive it, they drain and leave their groups."""

_LOOK_FOR_TASK_EVERY = 0.2  # seconds between checks of whether the worker process still runs
_LEAVE_WITHIN = 10.0  # a process has this many seconds to leave its group after its task has ended
# The number of suspects in one message. A suspect takes at most a few hundred bytes, and the message must fit into a
# record of one megabyte.
_IN_ONE_RECORD = 500


class Task(Protocol):
    """The task that a process runs, which is pickled and sent to the process."""

    @property
    def name(self) -> str: ...
    @property
    def drain_timeout(self) -> float: ...
    def consumer(self) -> ParallelConsumer: ...
    def handle(self, consumer: ParallelConsumer) -> Any: ...
    def mistake(self, error: HeadwayError) -> Any: ...


class WorkerDiedError(HeadwayError):
    """A worker's process died while no record was running."""


class TaskSupervisor:
    """Starts the process of a task, and starts it again each time it dies, until it ends normally.

    The tasks of a `run` send each other messages through the topic that `control` returns.
    """

    def __init__(self, task: Task, control: Callable[[], ControlTopic], run: str) -> None:
        self._task = task
        self._control = control
        self._run = run
        self._lock = threading.Lock()
        self._suspects = Suspects()
        self._process: _WorkerProcess | None = None
        self._stopped = threading.Event()

    def hear(self, word: bytes) -> None:
        """Handle a message that was sent to all tasks of the run. Can be called from any thread."""
        with self._lock:
            if word == STOP:
                self._stopped.set()
                self._tell(STOP)
            elif news := self._suspects.note(msgspec.json.decode(word, type=list[Suspect])):
                self._tell(news)

    def work(self) -> Any:
        """Run processes until one of them ends normally. Returns its result, or None if it died while it was stopping.

        Raises `WorkerDiedError` if a process died while no record was running. Spark then starts the task again.
        """
        deaths = RestartPolicy()
        while True:
            with self._lock:
                process = self._process = _WorkerProcess(self._task, self._suspects.all())
                if self._stopped.is_set():
                    self._tell(STOP)
            born = time.monotonic()
            with contextlib.closing(process):
                try:
                    return process.outcome()
                except EOFError:
                    how = how_it_ended(process.exit_code())
                    ran = process.ran()
            if self._stopped.is_set():
                log.error(
                    "%s %s while it was stopping; its running records are handled again later.", self._task.name, how
                )
                return None
            if not ran:
                raise WorkerDiedError(f"The process of {self._task.name} {how} while it was idle.")
            with self._lock:
                news = self._suspects.died(ran, how, time.time())
            delay = deaths.delay(time.monotonic() - born, by_records=True)
            log.error(
                "%s %s while it was handling %d records. From now on, each of these records runs alone.",
                self._task.name,
                how,
                len(ran),
            )
            self._say(news)
            self._stopped.wait(delay)

    def _tell(self, what: bytes | list[Suspect]) -> None:
        if self._process:
            self._process.tell(what)

    def _say(self, suspects: Sequence[Suspect]) -> None:
        try:
            control = self._control()
            for start in range(0, len(suspects), _IN_ONE_RECORD):
                control.say(self._run, msgspec.json.encode(suspects[start : start + _IN_ONE_RECORD]))
        except KafkaError as error:
            log.warning(
                "The records that were running when a process died could not be reported to the other tasks, so they "
                "may kill other processes: %s",
                error,
            )


class _WorkerProcess:
    """The process of a worker, as its task uses it."""

    def __init__(self, task: Task, suspects: list[Suspect]) -> None:
        # The process is not forked, because a forked process would share the task's Kafka clients and its socket to
        # Spark.
        context = multiprocessing.get_context("spawn")
        self._table = make_table_file()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, task, suspects))
        self._process.start()
        theirs.close()
        with contextlib.suppress(OSError):  # the process has already died
            send_handle(self._pipe, self._table, self._process.pid)

    def tell(self, what: bytes | list[Suspect]) -> None:
        """Send the process the message to stop, or a list of suspects."""
        with contextlib.suppress(OSError):  # the process has died, which `outcome` reports
            self._pipe.send(what)

    def outcome(self) -> Any:
        """Wait until the process ends, and return its result. Raises `EOFError` if it died."""
        try:
            while not self._pipe.poll(_LOOK_FOR_TASK_EVERY):
                # Also check whether the process has exited, because a child of it can keep its end of the pipe open.
                if self._process.exitcode is not None and not self._pipe.poll(0):
                    raise EOFError
            return self._pipe.recv()
        except OSError as error:
            raise EOFError from error

    def exit_code(self) -> int | None:
        """Return the exit code of the process, or None if the process has not ended within a second."""
        if self._process.exitcode is None:
            self._process.join(1.0)
        return self._process.exitcode

    def ran(self) -> Any:
        """Return the attempts that were running when the process died."""
        return read_table(self._table)

    def close(self) -> None:
        """End the process if it is still running, and release its resources."""
        self._pipe.close()  # the process ends when it notices that its pipe is closed
        self._process.join(_LEAVE_WITHIN)
        self._process.kill()
        self._process.join()
        os.close(self._table)


# In the process


def _serve(pipe: connection.Connection, task: Task, suspects: list[Suspect]) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)  # the driver handles Ctrl-C
    os.register_at_fork(after_in_child=pipe.close)
    table = recv_handle(pipe)
    os.set_inheritable(table, False)
    try:
        consumer = task.consumer()
        supervision = consumer.supervise(table, suspects)
        threading.Thread(
            target=_obey,
            args=(pipe, consumer, supervision, task.drain_timeout),
            name="headway-worker-orders",
            daemon=True,
        ).start()
        outcome = task.handle(consumer)
    except HeadwayError as error:
        outcome = task.mistake(error)
    pipe.send(outcome)
    # If a handler has started a thread that never ends, Python would wait for it at a normal exit.
    os._exit(0)


def _obey(pipe: connection.Connection, consumer: ParallelConsumer, supervision: Any, drain_timeout: float) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            said = pipe.recv()
            if said == STOP:
                consumer.stop(timeout=drain_timeout)
            elif supervision:
                supervision.suspect(said)
    # The pipe is closed, so the task has ended. Spark starts another task.
    consumer.stop(drain=False)
    time.sleep(_LEAVE_WITHIN)
    os._exit(1)

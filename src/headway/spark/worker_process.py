"""A worker's process, and the task that outlives it, so that the task can find out which records killed the process.

Spark would only notice that a Python worker is gone, and start the same task again with the same record. So the task
itself runs no handler, but starts a process for them. If the process dies, the task reads which records it was running,
and starts another process. It informs all tasks of the run through Kafka, because any of them may be assigned the
partition next.
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
"""The message that tells all workers of a run to drain and leave the group."""

_LOOK_FOR_TASK_EVERY = 0.2  # seconds
_LEAVE_WITHIN = 10.0  # seconds; how long a process may take to leave its group once its task is gone
_IN_ONE_RECORD = 500  # suspects; each takes at most a few hundred bytes, and a record may have a megabyte


class Task(Protocol):
    """What a process runs. It is pickled for the process."""

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
    """Keeps one task's process alive until it ends by itself. Tasks of a `run` reach each other through `control`."""

    def __init__(self, task: Task, control: Callable[[], ControlTopic], run: str) -> None:
        self._task = task
        self._control = control
        self._run = run
        self._lock = threading.Lock()
        self._suspects = Suspects()
        self._process: _WorkerProcess | None = None
        self._stopped = threading.Event()

    def hear(self, word: bytes) -> None:
        """Act on a message to all tasks of the run. Can be called from any thread."""
        with self._lock:
            if word == STOP:
                self._stopped.set()
                self._tell(STOP)
            elif news := self._suspects.note(msgspec.json.decode(word, type=list[Suspect])):
                self._tell(news)

    def work(self) -> Any:
        """Return the process's outcome, or None if it died while it was stopping.

        Raises `WorkerDiedError` if it died although no record was running. Spark then starts the task again.
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
                "%s %s while it was handling %d records. From now on each of them runs alone.",
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
                "Other tasks could not be told which records were running when a process died, so these may kill other "
                "processes: %s",
                error,
            )


class _WorkerProcess:
    """A worker's process, as seen from its task."""

    def __init__(self, task: Task, suspects: list[Suspect]) -> None:
        # A forked process would share the task's socket to Spark, and its Kafka clients.
        context = multiprocessing.get_context("spawn")
        self._table = make_table_file()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, task, suspects))
        self._process.start()
        theirs.close()
        with contextlib.suppress(OSError):  # the process has already died
            send_handle(self._pipe, self._table, self._process.pid)

    def tell(self, what: bytes | list[Suspect]) -> None:
        """Tell the process to stop, or which records are suspects."""
        with contextlib.suppress(OSError):  # the process has died, which `outcome` reports
            self._pipe.send(what)

    def outcome(self) -> Any:
        """Wait for the process's outcome. Raises `EOFError` if it died."""
        try:
            while not self._pipe.poll(_LOOK_FOR_TASK_EVERY):
                # The pipe is not closed while a child of the process holds its other end, so check for its exit.
                if self._process.exitcode is not None and not self._pipe.poll(0):
                    raise EOFError
            return self._pipe.recv()
        except OSError as error:
            raise EOFError from error

    def exit_code(self) -> int | None:
        """Return the exit code of the process, or None if it has not ended."""
        if self._process.exitcode is None:
            self._process.join(1.0)
        return self._process.exitcode

    def ran(self) -> Any:
        """Return the attempts that were running when the process died."""
        return read_table(self._table)

    def close(self) -> None:
        """End the process if it has not ended by itself, and release everything that it held."""
        self._pipe.close()  # the process ends once it notices that its pipe is closed
        self._process.join(_LEAVE_WITHIN)
        self._process.kill()
        self._process.join()
        os.close(self._table)


# In the process


def _serve(pipe: connection.Connection, task: Task, suspects: list[Suspect]) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is handled by the driver
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
    # A handler may have started a thread that never ends, and Python would wait for it.
    os._exit(0)


def _obey(pipe: connection.Connection, consumer: ParallelConsumer, supervision: Any, drain_timeout: float) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            said = pipe.recv()
            if said == STOP:
                consumer.stop(timeout=drain_timeout)
            elif supervision:
                supervision.suspect(said)
    # The task is gone, and Spark starts another one.
    consumer.stop(drain=False)
    time.sleep(_LEAVE_WITHIN)
    os._exit(1)

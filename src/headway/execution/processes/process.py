"""The parent's side of a process of the pool, which the driver of the process uses."""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import socket
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.sharedctypes import RawValue
from typing import Any

from headway.core.engine.suspects import how_it_ended
from headway.errors import HandlerProcessError, LifespanError, TimeLimitError
from headway.execution.jobs import Job
from headway.execution.lifespan import SHUT_DOWN_WITHIN, Life
from headway.execution.processes.child_main import serve
from headway.execution.processes.messages import NOTHING, Chunk, ProcessReport, pickled_job
from headway.execution.time_limit import exceeded

_LONG = 0.1  # if a job runs longer than this many seconds, the process must give back the jobs queued behind it
_NOTED_WITHIN = 1.0  # how long multiprocessing can take to notice that a process has ended, in seconds


class Process:
    """Starts a process, sends jobs to it, and receives its reports.

    `jobs` has the jobs whose outcomes the process has not reported yet, in the order in which they are run. If `life`
    is given, the process enters a lifespan of its own. `pickle_job` makes the bytes that the process gets for a job.
    """

    def __init__(self, *start: Any, life: Life | None = None, pickle_job: Callable[[Job], bytes] = pickled_job) -> None:
        self._life = life
        self._pickle_job = pickle_job
        self._is_ready = False
        context = multiprocessing.get_context("spawn")
        self.jobs: deque[Job] = deque()
        self.chunks = 0  # the number of chunks that were sent and whose end the process has not reported yet
        # The running job's index among all jobs that the process has begun, or NOTHING.
        self._at: Any = RawValue("q", NOTHING)
        self._reported = 0  # the number of jobs whose outcomes the process has reported since it started
        self._round = 0  # the number of times that the process has given back jobs
        self._asked = False  # True while a request to give back jobs is unanswered
        # If the process was killed because a job exceeded its time limit: the index of that job, and its error.
        self._late: tuple[int, TimeLimitError] | None = None
        self._pipe, theirs = context.Pipe()
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as pipe:
            # A message of up to a quarter of the buffer always fits, even on systems that count their own overhead in
            # the size of the buffer.
            self._surely_fits = pipe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 4
        self._kept: bytes | None = None  # a chunk that will be sent when the previous chunk has ended
        their_asks, self._asks = context.Pipe(duplex=False)
        self._process = context.Process(target=serve, args=(theirs, their_asks, self._at, *start), daemon=True)
        self._process.start()
        # Without this, multiprocessing would send a SIGTERM at exit, which the process ignores, and would then wait
        # forever.
        atexit.register(self._process.kill)
        theirs.close()
        their_asks.close()

    def wait_until_ready(self, is_closing: Callable[[], bool]) -> None:
        """Wait until the process has loaded the handler and, if there is a lifespan, has entered it.

        Raises:
            HandlerProcessError: The process cannot load the handler.
            LifespanError: The lifespan failed at its start.
            EOFError: The run ends.
        """
        try:
            while not self._hears(0.1):
                if is_closing():
                    raise EOFError
            refusal: str | LifespanError | None = self._pipe.recv()
        except (EOFError, OSError) as error:
            if is_closing():
                raise EOFError from error
            raise HandlerProcessError(
                f"A process for the handler {self._how_it_ended()} before it was ready. Such a process imports the "
                "program's main module, so the code in this module that starts the program must be guarded by "
                '`if __name__ == "__main__":`.'
            ) from error
        if isinstance(refusal, LifespanError):
            raise refusal
        if refusal:
            raise HandlerProcessError(
                f"A process cannot load the handler or a deserialiser: {refusal}. Define it at the top level of a "
                "module that can be imported."
            )
        self._is_ready = True

    def send(self, jobs: list[Job]) -> None:
        """Send another chunk. If the process has died, nothing is sent, and the next call of `receive` raises.

        The process does not read the pipe while it runs jobs. If the process is running jobs and the chunk might not
        fit into the pipe, the chunk is kept until these jobs have ended. Otherwise this thread could block in the write
        for longer than a handler's time limit, or forever if the process blocks while it writes its outcomes.
        """
        chunk = pickle.dumps(Chunk(self._round, [self._pickle_job(job) for job in jobs]))
        if self.chunks and len(chunk) > self._surely_fits:
            self._kept = chunk
        else:
            self._write(chunk)
        self.jobs += jobs
        self.chunks += 1

    def _write(self, chunk: bytes) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(chunk)

    def receive(self, time_limit: float | None, is_closing: Callable[[], bool]) -> ProcessReport:
        """Wait for the next report of the process, and return it. Raises `EOFError` if the process has died."""
        try:
            at, since = self._at.value, time.monotonic()
            while not self._hears(min(_LONG, time_limit / 10) if time_limit else _LONG):
                if is_closing():
                    raise EOFError
                now = time.monotonic()
                if self._at.value != at:
                    at, since = self._at.value, now
                elif at != NOTHING:
                    self._see_to(at, now - since, time_limit)
            said: ProcessReport = self._pipe.recv()
        except OSError as error:
            raise EOFError from error
        self._reported += len(said.outcomes)
        if said.seconds is not None:
            self.chunks -= 1
            if self._kept is not None:
                self._write(self._kept)
                self._kept = None
        return said

    def _hears(self, seconds: float) -> bool:
        """Wait up to `seconds` for a message, and return whether there is one.

        Raises `EOFError` if the process has died. An open pipe does not prove that the process is alive, because a
        process that the handler forked can hold the other end open. So the exit code is checked too.
        """
        if self._pipe.poll(seconds):
            return True
        if self._process.exitcode is None:
            return False
        if self._pipe.poll(0):  # the process sent a message before it died
            return True
        raise EOFError

    def _see_to(self, at: int, seconds: float, time_limit: float | None) -> None:
        """Enforce the time limit on the running job. If the job is merely slow, request the queued jobs back."""
        if time_limit and seconds > time_limit:
            self._late = at, exceeded(time_limit)
            self._process.kill()
            self._process.join()  # if the process still ran, the job's record could be handled twice at the same time
            raise EOFError
        if seconds >= _LONG and len(self.jobs) > 1 and not self._asked:
            self._asks.send(None)
            self._asked = True

    def given_back(self, said: ProcessReport) -> list[Job]:
        """Remove the jobs that the process gives back from `jobs`, and return them.

        Before this call, the caller must remove the jobs whose outcomes are in the report.
        """
        if said.begun is None:
            return []
        self._asked = False
        self._round += 1
        return [self.jobs.pop() for _ in range(len(self.jobs) - (said.begun - self._reported))]

    def death(self) -> tuple[int, TimeLimitError | str]:
        """Return the index in `jobs` of the job during which the process died, and how the process died.

        How the process died is a text, or the `TimeLimitError` if the process was killed because of the time limit.
        """
        at, how = self._late or (self._at.value, self._how_it_ended())
        return at - self._reported, how

    def close(self) -> None:
        """End the process, and free its resources."""
        if self._life and self._is_ready and self._at.value == NOTHING:
            with contextlib.suppress(EOFError, OSError):  # raised if the process has died
                self._life.note(self._shut_down(self._life))
        self._process.kill()
        self._process.join()
        atexit.unregister(self._process.kill)
        self._close_process()
        self._pipe.close()
        self._asks.close()

    def _shut_down(self, life: Life) -> LifespanError | None:
        """Let the process leave its lifespan. Returns the error of the shut-down, if any."""
        deadline = time.monotonic() + SHUT_DOWN_WITHIN
        self._pipe.send(None)
        while time.monotonic() < deadline:
            if self._hears(0.1) and not isinstance(said := self._pipe.recv(), ProcessReport):
                return said if isinstance(said, LifespanError) else None
        return life.endless()

    def _close_process(self) -> None:
        """Close the process object. If multiprocessing has not noticed yet that the process has ended, try again.

        When another thread starts a process, multiprocessing polls all processes in that thread. That thread can have
        collected the exit status of this process without having stored it yet.
        """
        deadline = time.monotonic() + _NOTED_WITHIN
        while True:
            try:
                return self._process.close()
            except ValueError:  # "still running"
                # Other code has collected the exit status, so multiprocessing cannot get it.
                if time.monotonic() > deadline:
                    return None
            time.sleep(0.001)

    def _how_it_ended(self) -> str:
        if self._process.exitcode is None:  # the pipe is closed a moment before the process ends
            self._process.join(1.0)
        return how_it_ended(self._process.exitcode)

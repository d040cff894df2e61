"""One process of the pool, as seen by the thread that drives it."""

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
from headway.execution.processes.messages import NOTHING, Chunk, ProcessReport, attempts_of
from headway.execution.time_limit import exceeded

_LONG = 0.1  # seconds at one job after which the jobs behind it are asked back
_NOTED_WITHIN = 1.0  # seconds


class Process:
    """One process, with the jobs that it has in the order in which it begins them.

    With `life` the process has a lifespan of its own.
    """

    def __init__(self, *start: Any, life: Life | None = None) -> None:
        self._life = life
        self._is_ready = False
        context = multiprocessing.get_context("spawn")
        self.jobs: deque[Job] = deque()
        self.chunks = 0  # chunks whose end it has not reported
        self._at: Any = RawValue("q", NOTHING)  # the index of the running job, counted from the start of the process
        self._reported = 0  # jobs whose outcomes it has reported since its start
        self._round = 0
        self._asked = False
        self._late: tuple[int, TimeLimitError] | None = None
        self._pipe, theirs = context.Pipe()
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as pipe:
            # A quarter of the buffer, because some systems count their own overhead too.
            self._surely_fits = pipe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 4
        self._kept: bytes | None = None  # the chunk to be sent when the one before has ended
        their_asks, self._asks = context.Pipe(duplex=False)
        self._process = context.Process(target=serve, args=(theirs, their_asks, self._at, *start), daemon=True)
        self._process.start()
        # At exit, multiprocessing would send a SIGTERM, which the process ignores, and then wait forever.
        atexit.register(self._process.kill)
        theirs.close()
        their_asks.close()

    def wait_until_ready(self, is_closing: Callable[[], bool]) -> None:
        """Wait until the process has loaded the handler.

        Raises `HandlerProcessError` if it cannot load the handler, `LifespanError` if what handlers share cannot be
        started, and `EOFError` at the end.
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
                f"A process for the handler {self._how_it_ended()} before it could begin. It imports the "
                'program\'s main module: what that does must be guarded by `if __name__ == "__main__":`.'
            ) from error
        if isinstance(refusal, LifespanError):
            raise refusal
        if refusal:
            raise HandlerProcessError(
                f"A process cannot load the handler or a deserialiser: {refusal}. Define it at the top of a module "
                "that can be imported."
            )
        self._is_ready = True

    def send(self, jobs: list[Job]) -> None:
        """Send another chunk. If the process has died, `receive` raises.

        The process does not read while it works, so a chunk that might not fit into the pipe is kept here. Blocking in
        the write could outlast the time limit of a handler, and would never end if the process blocks in the write of
        its outcomes.
        """
        chunk = pickle.dumps(Chunk(self._round, [pickle.dumps(attempts_of(job)) for job in jobs]))
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
        """Return the next report of the process. Raises `EOFError` if it has died."""
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
        """Wait for something to read, and return whether there is. Raises `EOFError` if the process has died.

        A closed pipe alone does not show that: a process that the handler forked can keep the other end open.
        """
        if self._pipe.poll(seconds):
            return True
        if self._process.exitcode is None:
            return False
        if self._pipe.poll(0):  # it sent something before it died
            return True
        raise EOFError

    def _see_to(self, at: int, seconds: float, time_limit: float | None) -> None:
        """Enforce the time limit on the running job. If it is merely slow, ask the process to give back queued jobs."""
        if time_limit and seconds > time_limit:
            self._late = at, exceeded(time_limit)
            self._process.kill()
            self._process.join()  # otherwise its record could run twice at a time
            raise EOFError
        if seconds >= _LONG and len(self.jobs) > 1 and not self._asked:
            self._asks.send(None)
            self._asked = True

    def given_back(self, said: ProcessReport) -> list[Job]:
        """Remove and return the jobs that the process gives back. Finished jobs must have been removed before."""
        if said.begun is None:
            return []
        self._asked = False
        self._round += 1
        return [self.jobs.pop() for _ in range(len(self.jobs) - (said.begun - self._reported))]

    def death(self) -> tuple[int, TimeLimitError | str]:
        """Return the index of the job during which it died, and how: a `TimeLimitError` if it was killed for that."""
        at, how = self._late or (self._at.value, self._how_it_ended())
        return at - self._reported, how

    def close(self) -> None:
        """End the process, and free its resources."""
        if self._life and self._is_ready and self._at.value == NOTHING:
            with contextlib.suppress(EOFError, OSError):  # it has died
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
        """Close the process object, and retry for a moment if its end is not known yet.

        Starting a process in another thread polls all processes. That thread can have taken the end of this one, and
        multiprocessing notes it only a moment later.
        """
        deadline = time.monotonic() + _NOTED_WITHIN
        while True:
            try:
                return self._process.close()
            except ValueError:  # "still running"
                if time.monotonic() > deadline:  # other code has waited for the process and taken its exit code
                    return None
            time.sleep(0.001)

    def _how_it_ended(self) -> str:
        if self._process.exitcode is None:  # its pipe ended a moment before
            self._process.join(1.0)
        return how_it_ended(self._process.exitcode)

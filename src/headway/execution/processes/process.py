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

_LONG = 0.1  # seconds at one record, while others wait behind it
_NOTED_WITHIN = 1.0


class Process:
    """One process, and the jobs that it has, in the order in which it begins them.

    With `life` it makes and shuts down what its handlers share.
    """

    def __init__(self, *start: Any, life: Life | None = None) -> None:
        self._life = life
        self._is_ready = False
        context = multiprocessing.get_context("spawn")
        self.jobs: deque[Job] = deque()
        self.chunks = 0  # chunks whose end it has not reported
        self._at: Any = RawValue("q", NOTHING)  # the job in work, counted from its start
        self._reported = 0  # jobs, from its start
        self._round = 0
        self._asked = False
        self._late: tuple[int, TimeLimitError] | None = None
        self._pipe, theirs = context.Pipe()
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as pipe:
            # A part of what the pipe takes unread, as some systems count their own overhead too.
            self._surely_fits = pipe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 4
        self._kept: bytes | None = None  # the chunk to be sent when the one before has ended
        their_asks, self._asks = context.Pipe(duplex=False)
        self._process = context.Process(target=serve, args=(theirs, their_asks, self._at, *start), daemon=True)
        self._process.start()
        # Kill it at exit at the latest: multiprocessing would send a SIGTERM, which it does not get, and wait.
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
        """Send another chunk; if the process has died, `receive` raises.

        The process does not read while it works, so a chunk that might not fit into the pipe waits here. To wait for
        room would be to wait for a handler, past its time limit. It would last forever if the process in turn waits for
        us to read its outcomes.
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
        """Return the process's next message; raises `EOFError` if it has died."""
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
        """Return whether there is something to read, within this many seconds. Raises `EOFError` if it has died.

        The end of the pipe does not tell its death: a process that it forked may keep the other end open.
        """
        if self._pipe.poll(seconds):
            return True
        if self._process.exitcode is None:
            return False
        if self._pipe.poll(0):  # it sent that before it died
            return True
        raise EOFError

    def _see_to(self, at: int, seconds: float, time_limit: float | None) -> None:
        """Act on a job that has run for this long: kill the process past the time limit, or ask for jobs back."""
        if time_limit and seconds > time_limit:
            self._late = at, exceeded(time_limit)
            self._process.kill()
            self._process.join()  # or its record might run twice at a time
            raise EOFError
        if seconds >= _LONG and len(self.jobs) > 1 and not self._asked:
            self._asks.send(None)
            self._asked = True

    def given_back(self, said: ProcessReport) -> list[Job]:
        """Return the jobs that it gives back, after all finished ones were taken out of `jobs`."""
        if said.begun is None:
            return []
        self._asked = False
        self._round += 1
        return [self.jobs.pop() for _ in range(len(self.jobs) - (said.begun - self._reported))]

    def death(self) -> tuple[int, TimeLimitError | str]:
        """Return the index of the job that it died of, and how it died: `TimeLimitError` if it was killed for it."""
        at, how = self._late or (self._at.value, self._how_it_ended())
        return at - self._reported, how

    def close(self) -> None:
        """End the process, and let go of its resources."""
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
        """Have the process shut down what its handlers share; return the error of that, if there is one."""
        deadline = time.monotonic() + SHUT_DOWN_WITHIN
        self._pipe.send(None)
        while time.monotonic() < deadline:
            if self._hears(0.1) and not isinstance(said := self._pipe.recv(), ProcessReport):
                return said if isinstance(said, LifespanError) else None
        return life.endless()

    def _close_process(self) -> None:
        """Close the process, trying again for a moment.

        Starting a process also polls all other processes, in any thread. The end of this one may then be known there,
        and here only a moment later.
        """
        deadline = time.monotonic() + _NOTED_WITHIN
        while True:
            try:
                return self._process.close()
            except ValueError:  # "still running"
                if time.monotonic() > deadline:  # some other program part has waited for it: its end is never reported
                    return None
            time.sleep(0.001)

    def _how_it_ended(self) -> str:
        if self._process.exitcode is None:  # its pipe ended a moment before
            self._process.join(1.0)
        return how_it_ended(self._process.exitcode)

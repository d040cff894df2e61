"""Whose turn it is to take a producer's delivery reports: a sending thread's, a waiting one's, our own, or a loop's.

Each report takes the GIL once. A serving thread beside one that sends without a pause would take turns with it at every
record (a sixth of the speed, measured). A stream of sends therefore takes the reports itself. When it is quiet, a
thread takes them, woken by librdkafka at once, or an event loop does (`serve_in`).
"""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

import confluent_kafka as ck

from headway.kafka.binding.capi import wake_on_events
from headway.runtime.deferred_signals import defer_signals, heed_signals
from headway.runtime.wakeup import Wakeup

# A stream of sends serves the reports so often (seconds): many at a time are quicker, and deferring Ctrl-C takes one to
# ten microseconds. After so long without a send, the sending thread counts as paused.
SERVE_EVERY = 0.002
_QUIET = 0.01
_LONGEST_WAIT = 0.1
_A_MOMENT = 0.01
SHORT_TURN = 0.05  # a thread that takes reports for longer is held up by a callback


class ReportPump:
    """The turns at a producer's reports: only the thread with the lock `serving` takes them.

    Any thread may call each method, except `serve_in` and `leave_loop`, which belong to the thread of the loop. A
    report runs user code with `serving` held, and may call all of it again on that thread: then there is no turn.
    Threads that hold `serving` may take the producer's other locks; no thread waits for `serving` with one of those.

    Args:
        take_reports: Takes the reports that are there, or come within so many seconds; called in a thread's turn.
        serving: The lock, by default a new one.
    """

    def __init__(self, take_reports: Callable[[float], None], serving: "threading.Lock | None" = None) -> None:
        self.serving = serving or threading.Lock()
        self._take_reports = take_reports
        self._wake = Wakeup()
        self._server: int | None = None
        self._served_at = self._served_before = -math.inf  # by sending threads: the last time, and the one before
        self._serves_itself = False
        self._awaits_reports = False  # the thread whose turn it is also waits for further reports
        self._turns_are_short = True
        self._thread_ends = False
        self._leave_loop: Callable[[], None] | None = None
        self._loop_thread: int | None = None
        self._thread = threading.Thread(target=self._serve_when_quiet, name="headway-delivery-reports", daemon=True)

    def start(self) -> None:
        """Take the reports on our own thread from now on, whenever it is quiet."""
        self._thread.start()

    def watch(self, producer: ck.Producer) -> None:
        """Have librdkafka's producer wake our thread, or the loop, when reports come."""
        wake_on_events(producer, self._wake.fd)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep every thread from taking reports in this block, in which the producer can be replaced.

        librdkafka signals only the first event in an empty queue, and a loop whose turn does not come at once forgets
        the signal. Without another one at the end of the block, the reports that came meanwhile would stay there.
        """
        try:
            with self.serving:
                yield
        finally:
            self.wake()

    def wake(self) -> None:
        """Have our thread, or the loop, look for reports that have woken no thread."""
        self._wake.set()

    def stop(self) -> None:
        """End our thread; reports are left to the callers."""
        self._thread_ends = True
        self._wake.set()
        self._thread.join()

    def close(self) -> None:
        """Let go of the wake-up, once no producer is watched any more."""
        self._wake.close()

    @property
    def serves_here(self) -> bool:
        """True if called from within a report: no other thread would take the next ones meanwhile."""
        return self._server == threading.get_ident()

    def serve_in_stream(self) -> None:
        """Take the reports that are there, on a thread that sends without a pause."""
        if time.monotonic() - self._served_at < SERVE_EVERY or self.serves_here:
            return
        # If this thread waits, the serving thread is soon done. Beside a thread that goes on sending it would wait for
        # the GIL at each report, some 5 ms, while thousands come.
        patience = SHORT_TURN if self._turns_are_short and not self._awaits_reports else 0
        with self.turn(patience, awaits_reports=False) as mine:
            if mine:
                self._take_reports(0)
        if mine or patience:
            self._turns_are_short = mine
        self._served_before, self._served_at = self._served_at, time.monotonic()

    def serve(self, timeout: float) -> None:
        """Take the reports that are there, or come within `timeout` seconds; that makes room."""
        deadline = time.monotonic() + timeout
        with self.turn(timeout, awaits_reports=timeout > 0) as mine:
            if mine:
                self._take_reports(deadline - time.monotonic())

    def serve_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take reports until `done`, unless another thread takes them: for a thread that would only wait."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # Our own thread is soon done with the reports that are there. Left to it, the next reports would cost a turn
        # each.
        with self.turn(_A_MOMENT if self._serves_itself else 0) as mine:
            while mine and not done() and (left := deadline - time.monotonic()) > 0:
                self._take_reports(min(_LONGEST_WAIT, left))
                heed_signals()

    @contextlib.contextmanager
    def turn(self, timeout: float, awaits_reports: bool = True) -> Iterator[bool]:
        """Take this thread's turn at reports, if it comes within `timeout` seconds.

        Signals wait for its end, because one within a report would lose that report, and one just before the block
        would keep the turn. A loop of waits in the block calls `heed_signals` in between.
        """
        with defer_signals():
            mine = not self.serves_here and self._acquire(timeout)
            try:
                if mine:
                    self._awaits_reports = awaits_reports
                    self._server = threading.get_ident()
                yield mine
            finally:
                if mine:
                    self._awaits_reports = False
                    self._server = None
                    self.serving.release()
                    self._wake_loop()

    def _acquire(self, timeout: float) -> bool:
        if timeout <= 0:
            return self.serving.acquire(blocking=False)
        deadline = time.monotonic() + timeout
        while not self.serving.acquire(timeout=min(_LONGEST_WAIT, timeout)):
            heed_signals()
            timeout = deadline - time.monotonic()
            if timeout <= 0:
                return False
        return True

    def serve_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this loop, which is running here, take the reports from now on.

        No thread takes them then: one thread that resolves the futures of another would take turns with it at every
        record.
        """
        self.leave_loop()
        self.stop()
        self._leave_loop = self._wake.watch(loop, lambda: self.serve(0))
        self._loop_thread = threading.get_ident()
        self._wake.set()

    def leave_loop(self) -> None:
        """Leave the reports to the callers from now on; called in the loop, unless the loop is closed."""
        if self._leave_loop is not None:
            self._leave_loop()
            self._leave_loop = self._loop_thread = None

    def _wake_loop(self) -> None:
        """Wake the loop again: events during another thread's turn have woken it in vain."""
        if self._loop_thread not in (None, threading.get_ident()):
            self._wake.set()

    def _serve_when_quiet(self) -> None:
        while not self._thread_ends:
            self._wake.wait(_LONGEST_WAIT)
            while time.monotonic() - self._served_before < _QUIET:
                time.sleep(_QUIET)
            with self.serving:  # in its turn: reports during another thread's turn wake no thread again
                self._serves_itself = True
                self._server = threading.get_ident()
                try:
                    self._take_reports(0)
                finally:
                    self._server = None
                    self._serves_itself = False

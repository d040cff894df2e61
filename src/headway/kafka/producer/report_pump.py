"""Decides which thread takes a producer's delivery reports: a sending or waiting thread, our own, or an event loop's.

Each report takes the GIL once. A second thread that takes reports beside one that sends without a pause would switch
with it at every record, which leaves a sixth of the speed (measured). A thread that sends a stream therefore takes the
reports itself. In quiet times our own thread takes them, woken by librdkafka at once, or an event loop (`serve_in`).
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

import confluent_kafka as ck

from headway.kafka.binding.capi import wake_on_events
from headway.runtime.deferred_signals import defer_signals, heed_signals
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

SERVE_EVERY = 0.002
"""The seconds after which a thread that sends a stream takes the reports again.

It is quicker to take many at a time, and deferring Ctrl-C costs one to ten microseconds each time.
"""
_QUIET = 0.01  # seconds after which a thread that has not sent and taken reports counts as paused
_MAX_WAIT = 0.1
_A_MOMENT = 0.01
SHORT_TURN = 0.05
"""A thread that takes reports for more than these seconds is held up by a callback."""


class ReportPump:
    """Takes a producer's delivery reports, on one thread at a time: the thread that holds the lock `serving`.

    Every method can be called from any thread, except `serve_in` and `leave_loop`, which must be called in the thread
    of the loop. User code in a callback runs while `serving` is held, and may call these methods again on the same
    thread; `try_hold` then returns False. A thread that holds `serving` may take the producer's other locks, but no
    thread waits for `serving` while it holds one of those.

    Args:
        take_reports: Takes the reports that have arrived, or arrive within the given number of seconds. Called while
            `serving` is held.
        serving: The lock; by default a new one.
    """

    def __init__(self, take_reports: Callable[[float], None], serving: "threading.Lock | None" = None) -> None:
        self.serving = serving or threading.Lock()
        self._take_reports = take_reports
        self._wake = Wakeup()
        self._server: int | None = None
        self._served_at = self._served_before = -math.inf  # the last two times at which sending threads took reports
        self._serves_itself = False
        self._awaits_reports = False  # the thread that holds `serving` also waits for further reports
        self._turns_are_short = True
        self._thread_ends = False
        self._leave_loop: Callable[[], None] | None = None
        self._loop_thread: int | None = None
        self._thread = threading.Thread(target=self._serve_when_quiet, name="headway-delivery-reports", daemon=True)

    def start(self) -> None:
        """Start our own thread, which takes the reports in quiet times."""
        self._thread.start()

    def watch(self, producer: ck.Producer) -> None:
        """Let librdkafka's producer wake our thread, or the loop, when reports arrive."""
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
        """Wake our thread, or the loop, for reports of which librdkafka gave no signal."""
        self._wake.set()

    def stop(self) -> None:
        """End our own thread. From now on only callers take reports."""
        self._thread_ends = True
        self._wake.set()
        self._thread.join()

    def close(self) -> None:
        """Release the wake-up. No producer may be watched any more."""
        self._wake.close()

    @property
    def serves_here(self) -> bool:
        """True if called in a report's callback, during which no other thread can take the next reports."""
        return self._server == threading.get_ident()

    def serve_in_stream(self) -> None:
        """Take the reports that have arrived, on a thread that sends without a pause."""
        if time.monotonic() - self._served_at < SERVE_EVERY or self.serves_here:
            return
        # If another thread is taking reports, wait for it, so that it finishes soon. If this thread went on sending,
        # the other one would wait for the GIL at each report, about 5 ms, while thousands of reports arrive.
        patience = SHORT_TURN if self._turns_are_short and not self._awaits_reports else 0
        with self.try_hold(patience, awaits_reports=False) as is_held:
            if is_held:
                self._take_reports(0)
        if is_held or patience:
            self._turns_are_short = is_held
        self._served_before, self._served_at = self._served_at, time.monotonic()

    def serve(self, timeout: float) -> None:
        """Take the reports that have arrived, or arrive within `timeout` seconds. This frees buffer space."""
        deadline = time.monotonic() + timeout
        with self.try_hold(timeout, awaits_reports=timeout > 0) as is_held:
            if is_held:
                self._take_reports(deadline - time.monotonic())

    def serve_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take reports until `done()`, unless another thread is taking them. For a thread that would only wait."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # Wait for our own thread, which will soon have taken the present reports. If it also took later ones, each of
        # them would cost a switch between the two threads.
        with self.try_hold(_A_MOMENT if self._serves_itself else 0) as is_held:
            while is_held and not done() and (left := deadline - time.monotonic()) > 0:
                self._take_reports(min(_MAX_WAIT, left))
                heed_signals()

    @contextlib.contextmanager
    def try_hold(self, timeout: float, awaits_reports: bool = True) -> Iterator[bool]:
        """Hold `serving` in this block, if it is free within `timeout` seconds; yields whether it is held.

        Signals are deferred until the end of the block, because an interrupt in a report's callback would lose that
        report, and one just before the block would leave the lock held. A block that waits repeatedly calls
        `heed_signals` in between.
        """
        with defer_signals():
            is_held = not self.serves_here and self._acquire(timeout)
            try:
                if is_held:
                    self._awaits_reports = awaits_reports
                    self._server = threading.get_ident()
                yield is_held
            finally:
                if is_held:
                    self._awaits_reports = False
                    self._server = None
                    self.serving.release()
                    self._wake_loop()

    def _acquire(self, timeout: float) -> bool:
        if timeout <= 0:
            return self.serving.acquire(blocking=False)
        deadline = time.monotonic() + timeout
        while not self.serving.acquire(timeout=min(_MAX_WAIT, timeout)):
            heed_signals()
            timeout = deadline - time.monotonic()
            if timeout <= 0:
                return False
        return True

    def serve_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this loop, which is running in the current thread, take the reports from now on.

        Our own thread ends, because a thread that resolves the futures of a loop switches with it at every record.
        """
        self.leave_loop()
        self.stop()
        self._leave_loop = self._wake.watch(loop, lambda: self.serve(0))
        self._loop_thread = threading.get_ident()
        self._wake.set()

    def leave_loop(self) -> None:
        """Stop taking reports in the loop. Must be called in the loop's thread, unless the loop is closed."""
        if self._leave_loop is not None:
            self._leave_loop()
            self._leave_loop = self._loop_thread = None

    def _wake_loop(self) -> None:
        """Wake the loop again, because it could not take the reports while another thread held `serving`."""
        if self._loop_thread not in (None, threading.get_ident()):
            self._wake.set()

    def _serve_when_quiet(self) -> None:
        while not self._thread_ends:
            self._wake.wait(_MAX_WAIT)
            while time.monotonic() - self._served_before < _QUIET:
                time.sleep(_QUIET)
            with self.serving:  # wait for it, because reports that arrive while it is taken signal only once
                self._serves_itself = True
                self._server = threading.get_ident()
                try:
                    self._take_reports(0)
                except BaseException:  # even a SystemExit in a callback must not end all later reports
                    log.exception("Taking delivery reports raised an unexpected error. The producer's thread goes on.")
                finally:
                    self._server = None
                    self._serves_itself = False

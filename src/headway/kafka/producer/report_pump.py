"""Decides which thread takes a producer's delivery reports.

This can be a thread that sends or waits, the pump's own thread, or the thread of an event loop.

Processing a report requires the GIL. If one thread sends without a pause while another thread takes the reports, the
GIL changes hands at every record, which reduces the throughput to a sixth (measured). So a thread that sends a stream
of records takes the reports itself. At other times, the pump's own thread takes them as soon as librdkafka signals
them, or an event loop does (`serve_in`).
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import cimpl

from headway.kafka.binding.capi import wake_on_events
from headway.runtime.deferred_signals import defer_signals, heed_signals
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

SERVE_EVERY = 0.002
"""A thread that sends a stream of records takes the reports at intervals of this many seconds.

It is faster to take many reports at once, because deferring Ctrl-C takes one to ten microseconds each time.
"""
_QUIET = 0.01  # a thread that sends nothing for this many seconds no longer counts as sending a stream
_MAX_WAIT = 0.1
_A_MOMENT = 0.01
SHORT_TURN = 0.05
"""A thread that takes reports for longer than this many seconds is assumed to be held up by a callback."""


class ReportPump:
    """Takes a producer's delivery reports. Only the thread that holds the lock `serving` takes them.

    All methods are thread-safe, except `serve_in` and `leave_loop`, which must be called in the thread of the loop. A
    user's callback runs while `serving` is held, and may call these methods again on the same thread; `try_hold` then
    yields False. A thread that holds `serving` may acquire the producer's other locks. But a thread that holds one of
    the other locks must not wait for `serving`.

    Args:
        take_reports: Takes the reports that have arrived, or that arrive within the given number of seconds. It is
            called while `serving` is held.
        serving: The lock to use. By default, a new lock is created.
    """

    def __init__(self, take_reports: Callable[[float], None], serving: "threading.Lock | None" = None) -> None:
        self.serving = serving or threading.Lock()
        self._take_reports = take_reports
        self._wake = Wakeup()
        self._server: int | None = None
        self._served_at = self._served_before = -math.inf  # the last two times at which sending threads took reports
        self._serves_itself = False
        self._awaits_reports = False  # True while the thread that holds `serving` waits for reports to arrive
        self._turns_are_short = True
        self._thread_ends = False
        self._leave_loop: Callable[[], None] | None = None
        self._loop_thread: int | None = None
        self._thread = threading.Thread(target=self._serve_when_quiet, name="headway-delivery-reports", daemon=True)

    def start(self) -> None:
        """Start the pump's own thread, which takes the reports while no thread sends a stream."""
        self._thread.start()

    def watch(self, producer: cimpl.Producer) -> None:
        """Make librdkafka's producer wake the pump's own thread, or the loop, when reports arrive."""
        wake_on_events(producer, self._wake.fd)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Prevent all threads from taking reports in this block, in which the producer can be replaced.

        librdkafka signals only the first event in an empty queue, and the loop drops the signal if it cannot take
        reports at that time. So the wake-up is set again at the end of the block. Otherwise, reports that arrived
        during the block would not be taken.
        """
        try:
            with self.serving:
                yield
        finally:
            self.wake()

    def wake(self) -> None:
        """Wake the pump's own thread, or the loop, to take reports for which librdkafka gives no signal."""
        self._wake.set()

    def stop(self) -> None:
        """Stop the pump's own thread. From now on, only callers take reports."""
        self._thread_ends = True
        self._wake.set()
        self._thread.join()

    def close(self) -> None:
        """Release the wake-up. Call this only when no producer is watched any longer."""
        self._wake.close()

    @property
    def serves_here(self) -> bool:
        """True if called in the callback of a report.

        No other thread can take further reports until the callback returns.
        """
        return self._server == threading.get_ident()

    def serve_in_stream(self) -> None:
        """Take the reports that have arrived, on a thread that sends without a pause."""
        if time.monotonic() - self._served_at < SERVE_EVERY or self.serves_here:
            return
        # If another thread is taking reports, this thread waits, so that the other thread finishes soon. If this thread
        # continued to send, the other thread would have to wait for the GIL at each of thousands of reports, about 5 ms
        # each time.
        patience = SHORT_TURN if self._turns_are_short and not self._awaits_reports else 0
        with self.try_hold(patience, awaits_reports=False) as is_held:
            if is_held:
                self._take_reports(0)
        if is_held or patience:
            self._turns_are_short = is_held
        self._served_before, self._served_at = self._served_at, time.monotonic()

    def serve(self, timeout: float) -> None:
        """Take the reports that have arrived, or that arrive within `timeout` seconds.

        Taking them frees buffer space.
        """
        deadline = time.monotonic() + timeout
        with self.try_hold(timeout, awaits_reports=timeout > 0) as is_held:
            if is_held:
                self._take_reports(deadline - time.monotonic())

    def serve_until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take reports until `done()` returns True, unless another thread is taking them.

        A thread that would otherwise only wait can call this method.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # First wait until the pump's own thread has taken the reports that are there now. If the pump's thread also
        # took the later reports, each of them would require a switch between the two threads.
        with self.try_hold(_A_MOMENT if self._serves_itself else 0) as is_held:
            while is_held and not done() and (left := deadline - time.monotonic()) > 0:
                self._take_reports(min(_MAX_WAIT, left))
                heed_signals()

    @contextlib.contextmanager
    def try_hold(self, timeout: float, awaits_reports: bool = True) -> Iterator[bool]:
        """Hold `serving` in this block if the lock is free within `timeout` seconds. Yields whether the lock is held.

        Signals are deferred until the end of the block, because an interrupt in the callback of a report would lose
        that report, and an interrupt just before the block would leave the lock held. A block that waits repeatedly
        must call `heed_signals` between two waits.
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
        """Let the event loop that is running in the current thread take the reports from now on.

        The pump's own thread ends, because a separate thread that resolves the loop's futures would switch with the
        loop's thread at every record.
        """
        self.leave_loop()
        self.stop()
        self._leave_loop = self._wake.watch(loop, lambda: self.serve(0))
        self._loop_thread = threading.get_ident()
        self._wake.set()

    def leave_loop(self) -> None:
        """Stop taking reports in the loop. This must be called in the loop's thread, unless the loop is closed."""
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
            # Wait while another thread is taking reports. librdkafka does not repeat the signal, so reports that arrive
            # in the meantime would otherwise not be taken.
            with self.serving:
                self._serves_itself = True
                self._server = threading.get_ident()
                try:
                    self._take_reports(0)
                # Even a SystemExit in a callback must not prevent all further reports from being taken.
                except BaseException:
                    log.exception(
                        "Taking delivery reports raised an unexpected error. The producer's thread continues."
                    )
                finally:
                    self._server = None
                    self._serves_itself = False

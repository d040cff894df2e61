"""Notifies systemd that a service is ready and alive (`Type=notify`, `WatchdogSec=`)."""

import contextlib
import logging
import os
import socket
import threading

from headway.metrics.health import CheckHealth
from headway.runtime.flag import Flag

log = logging.getLogger(__name__)

_CHECK_EVERY = 1.0  # how often the health is checked, in seconds, unless the watchdog needs it more often
_MICROSECONDS = 1e6


def notify(state: str) -> None:
    """Send a line such as `READY=1` to systemd. Does nothing if systemd has not started this process.

    A name that starts with `@` is a socket in Linux' abstract namespace.
    """
    if not (name := os.environ.get("NOTIFY_SOCKET")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(f"\0{name[1:]}" if name.startswith("@") else name)
        sender.sendall(state.encode())


def watchdog_interval() -> float | None:
    """Return how often systemd must hear from this process, in seconds, or None if it has no watchdog."""
    try:
        if int(os.environ.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        interval = int(os.environ.get("WATCHDOG_USEC", "0")) / _MICROSECONDS
    except ValueError:
        return None
    return interval if interval > 0 else None


class SystemdNotifier:
    """Sends `READY=1` once the process is ready, and `WATCHDOG=1` as long as it is alive. Has a thread of its own."""

    def __init__(self, check: CheckHealth) -> None:
        self._check = check
        self._ended = Flag()
        self._thread: threading.Thread | None = None
        if os.environ.get("NOTIFY_SOCKET"):
            self._thread = threading.Thread(target=self._run, name="headway-systemd", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        interval = watchdog_interval()
        every = min(_CHECK_EVERY, interval / 3) if interval else _CHECK_EVERY
        is_ready = False
        while not self._ended.wait(every):
            try:
                health = self._check()
            except Exception:
                log.exception("The health could not be checked, so systemd is not notified.")
                continue
            if not (is_ready or health.not_ready):
                is_ready = True
                notify("READY=1")
            if interval and not health.not_live:
                notify("WATCHDOG=1")

    def close(self) -> None:
        """Notify systemd that the process is stopping."""
        self._ended.set()
        if self._thread:
            notify("STOPPING=1")
            self._thread.join(_CHECK_EVERY)

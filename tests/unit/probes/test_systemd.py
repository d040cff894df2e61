"""systemd is told when a service is ready, and that it is alive only as long as it is."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headway.metrics.health import Health
from headway.probes.systemd import SystemdNotifier, notify, watchdog_interval


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield receiver


def test_a_service_is_ready_once_it_is_and_alive_as_long_as_it_is(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "150000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    health = Health(not_ready=("It is starting.",))
    notifier = SystemdNotifier(lambda: health)
    try:
        assert systemd.recv(100) == b"WATCHDOG=1"
        health = Health()
        while (state := systemd.recv(100)) == b"WATCHDOG=1":
            pass
        assert state == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        health = Health(not_live=("It stands still.",))
        systemd.settimeout(0.5)
        assert len(heard(systemd)) <= 2  # what was sent just before
    finally:
        notifier.close()
    assert systemd.recv(100) == b"STOPPING=1"


def heard(systemd: socket.socket) -> list[bytes]:
    """Everything that is said until there is silence, or ten times."""
    states = list[bytes]()
    with suppress(TimeoutError):
        while len(states) < 10:
            states.append(systemd.recv(100))
    return states


def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    SystemdNotifier(Health).close()
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    notify("READY=1")


@pytest.mark.parametrize(("usec", "pid"), [("", ""), ("0", "1"), ("x", ""), ("1000000", "1")])
def test_a_watchdog_of_another_process_or_none_is_ignored(monkeypatch: pytest.MonkeyPatch, usec: str, pid: str) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    assert watchdog_interval() is None

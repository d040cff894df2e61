"""One node of a local Apache Kafka: a Java process that is broker and controller in one."""

import fcntl
import math
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headway.broker.diagnosis import diagnose, missing_metadata
from headway.broker.ports import is_listening, require_free
from headway.broker.properties import HOST
from headway.errors import LocalBrokerError

_POLL_SECONDS = 0.01


@dataclass
class Node:
    """A node that can be started, stopped and killed on its own; its data stay.

    `port` is for clients; `tls_port` is a secured broker's port for logins by certificate.

    A node that another process started has no commands: it can be watched and stopped, not started.
    """

    id: int
    port: int
    controller_port: int
    directory: Path
    format_command: Sequence[str] = ()
    run_command: Sequence[str] = ()
    tls_port: int | None = None
    _process: psutil.Process | None = field(default=None, repr=False)

    @property
    def log_file(self) -> Path:
        """The file of Kafka's and the JVM's messages, warnings and worse."""
        return self.directory / "kafka.log"

    @property
    def data_dir(self) -> Path:
        """Kafka's `log.dirs`."""
        return self.directory / "data"

    @property
    def properties_file(self) -> Path:
        """Kafka's `server.properties`."""
        return self.directory / "server.properties"

    @property
    def pid(self) -> int | None:
        """The process id while the node runs."""
        process = self._running_process()
        return process.pid if process else None

    @property
    def running(self) -> bool:
        """Return whether the node's process lives."""
        return self._running_process() is not None

    @property
    def holds_data(self) -> bool:
        """Return whether any process holds Kafka's own lock of the data, even one that is not known as this node's."""
        try:
            with (self.data_dir / ".lock").open("r+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return False

    def start(self, timeout: float = 60) -> None:
        """Start the node, and return when it serves clients."""
        self.spawn()
        self.wait_until_ready(time.monotonic() + timeout)

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        if self.running:
            raise LocalBrokerError(f"Node {self.id} is running already (process {self.pid}).")
        require_free(self.port)
        self._run(self.run_command)

    def spawn_format(self) -> None:
        """Begin to give a new data directory its identity; `finish_format` waits for the end."""
        if not any(self.data_dir.glob("__cluster_metadata-*")):
            self._run(self.format_command)

    def finish_format(self) -> None:
        """Return when the data directory can be used."""
        if self._process and self._process.wait() != 0:
            raise diagnose(self)

    def wait_until_ready(self, deadline: float) -> None:
        """Return when the node serves clients: Kafka opens its port once it has joined the cluster."""
        while not (is_listening(self.port) and self._has_port()):
            if not self.running:
                raise diagnose(self)
            if time.monotonic() > deadline:
                raise LocalBrokerError(f"Node {self.id} did not get ready in time. Its log: {self.log_file}")
            time.sleep(_POLL_SECONDS)
        if loss := missing_metadata(self):
            raise LocalBrokerError(loss)

    def _has_port(self) -> bool:
        """Return whether this node listens, and not another program that took the port while Java started."""
        process = self._running_process()
        if process is None:
            return False
        try:
            open_sockets = process.net_connections("tcp")
        except psutil.AccessDenied:  # a hardened system shows it to nobody
            return True
        except psutil.NoSuchProcess:
            return False
        return any(each.status == psutil.CONN_LISTEN and each.laddr[1:] == (self.port,) for each in open_sockets)

    def terminate(self) -> None:
        """Ask the process to stop, without waiting for it."""
        if process := self._running_process():
            with suppress(psutil.NoSuchProcess):
                process.terminate()

    def stop(self, timeout: float = 30) -> bool:
        """Stop the node in order, or kill it after `timeout` seconds; return whether it was in order."""
        self.terminate()
        if self._gone_before(time.monotonic() + timeout):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """Kill the process as a crash would, and return when it is gone."""
        if process := self._running_process():
            with suppress(psutil.NoSuchProcess):
                process.kill()
            self._gone_before(math.inf)

    def _gone_before(self, deadline: float) -> bool:
        while self.running:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _running_process(self) -> psutil.Process | None:
        if self._process is None or not _lives(self._process):
            self._process = self._recall()
        return self._process

    def _run(self, command: Sequence[str]) -> None:
        # Each run has its own log: so a reason that is found in it is this run's.
        with self.log_file.open("wb") as log:
            # Its own session: Ctrl-C in the terminal is for us, and we stop the node in order.
            self._process = psutil.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._pid_file.write_text(str(self._process.pid), encoding="utf-8")

    def _recall(self) -> psutil.Process | None:
        """Return the process that an earlier start noted, if it lives.

        Another process may have its process id by now, so the last argument of the command line decides. That is the
        properties file, on the path that the start used: another spelling of the path is the same file.
        """
        try:
            process = psutil.Process(int(self._pid_file.read_text(encoding="utf-8")))
            return process if any(map(self._is_properties_file, process.cmdline()[-1:])) else None
        except (FileNotFoundError, ValueError, psutil.Error):
            return None

    def _is_properties_file(self, path: str) -> bool:
        try:
            return path == str(self.properties_file) or os.path.samefile(path, self.properties_file)
        except (OSError, ValueError):
            return False

    @property
    def _pid_file(self) -> Path:
        return self.directory / "pid"


def client_addresses(nodes: Iterable[Node]) -> str:
    """Return the addresses of nodes, for a client's `bootstrap.servers`."""
    return ",".join(f"{HOST}:{node.port}" for node in nodes)


def _lives(process: psutil.Process) -> bool:
    if isinstance(process, psutil.Popen):  # a child of ours: it is gone when it can be waited for
        return process.poll() is None
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False

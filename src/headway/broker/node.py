"""One node of a local Apache Kafka: a Java process that is both broker and controller."""

import fcntl
import math
import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headway.broker.ports import HOST, is_listening, require_free
from headway.errors import LocalBrokerError, PortTakenError

_POLL_SECONDS = 0.01
_REFUSED_SETTING = re.compile(r"ConfigException: (.+)")
_EXCEPTION = re.compile(r"^(?:Caused by: |Exception in thread \S+ )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_ERROR = re.compile(r"^.* ERROR \S+ - (.+)$", re.MULTILINE)


@dataclass
class Node:
    """A node, which can be started, stopped and killed independently of the other nodes. Its data is kept.

    `port` is for clients. A secured broker also has the port `tls_port`, for logins with a certificate.

    If another process started the node, this object has no commands: it can inspect and stop the node, but not start
    it.
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
        """The log file, with the messages of Kafka and the JVM at level WARN and above."""
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
        """The process id, or None while the node is not running."""
        process = self._running_process()
        return process.pid if process else None

    @property
    def running(self) -> bool:
        """True if the node's process is alive."""
        return self._running_process() is not None

    @property
    def holds_data(self) -> bool:
        """True if any process holds Kafka's own lock on the data, even one that was started with another path to it."""
        try:
            with (self.data_dir / ".lock").open("r+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return False

    def start(self, timeout: float = 60) -> None:
        """Start the node, and return once it serves clients."""
        self.spawn()
        self.wait_until_ready(time.monotonic() + timeout)

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        if self.running:
            raise LocalBrokerError(f"Node {self.id} is already running (process {self.pid}).")
        require_free(self.port)
        self._run(self.run_command)

    def spawn_format(self) -> None:
        """Begin to format the data directory if it is new. `finish_format` waits until the formatting is done."""
        if not any(self.data_dir.glob("__cluster_metadata-*")):
            self._run(self.format_command)

    def finish_format(self) -> None:
        """Wait until the data directory is formatted. Raises `LocalBrokerError` if that failed."""
        if self._process and self._process.wait() != 0:
            raise diagnose(self)

    def wait_until_ready(self, deadline: float) -> None:
        """Wait until the node serves clients: Kafka opens the port once the node has joined the cluster."""
        while not (is_listening(self.port) and self._has_port()):
            if not self.running:
                raise diagnose(self)
            if time.monotonic() > deadline:
                raise LocalBrokerError(
                    f"Node {self.id} was not ready in time. Look for the reason in its log, {self.log_file}."
                )
            time.sleep(_POLL_SECONDS)
        if loss := missing_metadata(self):
            raise LocalBrokerError(loss)

    def _has_port(self) -> bool:
        """Return whether this node listens on its port. While Java starts, another program can take the port."""
        process = self._running_process()
        if process is None:
            return False
        try:
            open_sockets = process.net_connections("tcp")
        except psutil.AccessDenied:  # hardened systems do not show a process's sockets, so assume that it is this node
            return True
        except psutil.NoSuchProcess:
            return False
        return any(each.status == psutil.CONN_LISTEN and each.laddr[1:] == (self.port,) for each in open_sockets)

    def terminate(self) -> None:
        """Send the process SIGTERM, without waiting until it has stopped."""
        if process := self._running_process():
            with suppress(psutil.NoSuchProcess):
                process.terminate()

    def stop(self, timeout: float = 30) -> bool:
        """Shut the node down cleanly, or kill it after `timeout` seconds. Returns True if the shutdown was clean."""
        self.terminate()
        if self._gone_before(time.monotonic() + timeout):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """Kill the process, to simulate a crash, and wait until it has ended."""
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
        # Each run starts a new log, so that an error found in the log belongs to this run.
        with self.log_file.open("wb") as log:
            # The node gets its own session, so that Ctrl-C in the terminal interrupts only this process, which then
            # stops the node cleanly.
            self._process = psutil.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._pid_file.write_text(str(self._process.pid), encoding="utf-8")

    def _recall(self) -> psutil.Process | None:
        """Return the process whose id an earlier start recorded, or None if it has ended.

        The operating system may have given the id to another process since that start. So the process must have this
        node's properties file as the last argument of its command line. A different path to that file is accepted.
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
    """Return the addresses of the nodes, for a client's `bootstrap.servers`."""
    return ",".join(f"{HOST}:{node.port}" for node in nodes)


def _lives(process: psutil.Process) -> bool:
    if isinstance(process, psutil.Popen):  # a child of this process, which `poll` also reaps if it has ended
        return process.poll() is None
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def diagnose(node: Node) -> LocalBrokerError:
    """Return the error that explains why a node stopped during its start."""
    log = _log(node)
    if "Address already in use" in log:
        return PortTakenError(
            f"A port of node {node.id} was taken by another process while it was starting. Start again, or choose "
            "another port."
        )
    return LocalBrokerError(_sentence(node, log))


def _sentence(node: Node, log: str) -> str:
    if "Failed to acquire lock" in log:
        return f"{node.data_dir} is in use by another broker. Stop that broker, or choose another data directory."
    if refused := _REFUSED_SETTING.search(log):
        return f"Apache Kafka refused a property: {refused[1].rstrip('.')}. Correct the property and start again."
    return (
        f"Node {node.id} stopped during its start ({_reason(log)}). If its data is damaged, {_how_to_recover(node)}. "
        f"Its log is {node.log_file}."
    )


def missing_metadata(node: Node) -> str | None:
    """Return a sentence that says what to do if a running node has lost its topics, or None if it has not.

    If the metadata log is damaged, Kafka drops everything after the damage and continues with the part before it, even
    if that part is empty.
    """
    topics = (path for path in node.data_dir.glob("*-*/") if not path.name.startswith("__cluster_metadata"))
    if "The metadata log appears to be empty" in _log(node) and any(topics):
        return f"The metadata in {node.data_dir} was damaged, so the topics are lost: {_how_to_recover(node)}."
    return None


def _how_to_recover(node: Node) -> str:
    return f"restore {node.directory.parent} from a backup, or delete it to start without its records"


def _log(node: Node) -> str:
    return node.log_file.read_text(encoding="utf-8", errors="replace")


def _reason(log: str) -> str:
    """Return the reason for a failure from a log.

    The reason is the first sentence of the innermost exception. In a log without exceptions, it is the first error, and
    in a log without errors, the last line.
    """
    found = _EXCEPTION.findall(log)[-1:] or _ERROR.findall(log)[:1] or log.strip().splitlines()[-1:]
    return found[0].split(". ")[0].strip().rstrip(".") if found else "it logged nothing"

"""Finds and checks TCP ports on the loopback interface."""

import errno
import random
import socket
from collections.abc import Sequence

import psutil

from headway.errors import LocalBrokerError, PortTakenError

HOST = "127.0.0.1"

# The candidates are below the range that the system uses for outgoing connections. So no connection can take the port
# of a node that is down for a while.
_CANDIDATES = range(20_000, 32_000)


def choose_ports(count: int, first: int | None, earlier: Sequence[int]) -> tuple[list[int], list[int]]:
    """Choose ports for the clients and for the controllers of `count` nodes.

    If `first` is given, the ports for clients are `first` and the ports after it. Otherwise they are the ports of an
    `earlier` start if these are free, or else any free ports.
    """
    if first is not None:
        listeners = list(range(first, first + count))
        for port in listeners:
            require_free(port)
    elif earlier and all(is_free(port) for port in earlier):
        listeners = list(earlier)
    else:
        listeners = free_ports(count)
    return listeners, [port for port in free_ports(2 * count) if port not in listeners][:count]


def free_ports(count: int) -> list[int]:
    """Return this many ports that no process listens on."""
    candidates = random.SystemRandom().sample(_CANDIDATES, 500)
    ports = [port for port, _ in zip(filter(is_free, candidates), range(count), strict=False)]
    if len(ports) < count:
        raise LocalBrokerError(
            f"{count} free ports from {_CANDIDATES[0]} to {_CANDIDATES[-1]} are needed, but only {len(ports)} were "
            "found. Stop programs that listen on ports in this range."
        )
    return ports


def is_free(port: int) -> bool:
    """Return whether a broker could listen on the port."""
    with socket.socket() as probe:
        # With this option a port in TIME_WAIT counts as free. Java sets this option too, so a broker can listen on such
        # a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise LocalBrokerError(f"Port {port} cannot be used: {error.strerror}. Choose another port.") from error
    return True


def require_free(port: int) -> None:
    """Raise `PortTakenError` if the port is in use. The error names the process that uses it, if it can be found."""
    if not is_free(port):
        raise PortTakenError(
            f"Port {port} on {HOST} is in use{_by_whom(port)}. Stop that process, or choose another port (--port)."
        )


def is_listening(port: int) -> bool:
    """Return whether a process accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            # If nobody listens on the port, the system may choose that port for this end too, so the socket connects to
            # itself.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False


def _by_whom(port: int) -> str:
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # macOS shows the sockets of other users' processes only to root
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
            return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    return ""

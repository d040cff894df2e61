"""Serves the probes of a client: /livez, /readyz and /metrics."""

import contextlib
import threading
import time
from typing import Any, Protocol

from headway.errors import ConfigError
from headway.metrics.health import CheckHealth
from headway.metrics.samples import Measure
from headway.probes.server import ProbeAnswer, ProbeServer
from headway.probes.systemd import SystemdNotifier
from headway.runtime.extras import how_to_install
from headway.runtime.lifecycle import Closable

_HOW = 'Give HOST:PORT, such as "127.0.0.1:8080", or "0.0.0.0:8080" to serve other machines.'
_MOST_PORT = 65535
# Metrics that were just made are served again, so that a client which asks all the time costs little.
_REUSED_FOR = 0.5


class Probed(Protocol):
    """A client that has probes: a `ParallelConsumer` or a `Relay`."""

    def measure(self) -> Measure:
        """Measure this client from now on, and return a function that returns its samples."""
        ...

    def watch_health(self, stalls_after: float = ...) -> CheckHealth:
        """Watch this client from now on, and return a function that returns its health."""
        ...


def serve_probes(client: Probed, address: str = "127.0.0.1:8080", *, stalls_after: float | None = None) -> "Probes":
    """Serve `/livez`, `/readyz` and `/metrics` for a `ParallelConsumer` or a `Relay`, until the result is closed.

    >>> with serve_probes(consumer, "127.0.0.1:8080"):  # doctest: +SKIP
    ...     consumer.run(handle)

    If systemd has started this process with `Type=notify`, it is notified too.

    Args:
        client: The consumer or relay. It is measured and watched from now on.
        address: The host and the port, as `HOST:PORT`. The port 0 chooses a free port.
        stalls_after: After how many seconds without movement the client is not alive: by default 60 for a consumer and
            300 for a relay.

    Raises:
        ConfigError: The address is not valid, or this process cannot listen there.
    """
    check = client.watch_health() if stalls_after is None else client.watch_health(stalls_after)
    return Probes(check, client.measure(), address)


class Probes(Closable):
    """Serves probes until it is closed. `serve_probes` makes it. Any thread can close it."""

    def __init__(self, check: CheckHealth, measure: Measure, address: str) -> None:
        self._check = check
        self._measure = measure
        self._making = threading.Lock()  # held while metrics are made, so that they are made once at a time
        self._made: dict[str, tuple[float, ProbeAnswer]] = {}
        host, port = parsed_address(address)
        answers: dict[str, Any] = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
        try:
            self._server = ProbeServer(host, port, answers)
        except (OSError, OverflowError, UnicodeError) as error:
            raise ConfigError(f"The probes cannot be served at {address}: {error}. Choose another address.") from error
        self._systemd = SystemdNotifier(check)

    @property
    def address(self) -> str:
        """The address at which the probes are served, as `HOST:PORT`."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def _livez(self, accept: str) -> ProbeAnswer:
        return _verdict(self._check().not_live)

    def _readyz(self, accept: str) -> ProbeAnswer:
        health = self._check()
        return _verdict((*health.not_live, *health.not_ready))

    def _metrics(self, accept: str) -> ProbeAnswer:
        try:
            from headway.metrics.prometheus import exposition  # noqa: PLC0415 - the extra might not be installed
        except ImportError:
            return ProbeAnswer(
                501, f"/metrics needs the package prometheus-client. Run: {how_to_install('prometheus')}\n".encode()
            )
        kind = "openmetrics" if "openmetrics" in accept else "text"
        with self._making:
            made_at, answer = self._made.get(kind, (0.0, None))
            if answer is None or time.monotonic() - made_at > _REUSED_FOR:
                body, content_type = exposition(self._measure(), accept)
                answer = ProbeAnswer(200, body, content_type)
                self._made[kind] = time.monotonic(), answer
        return answer

    def close(self) -> None:
        """Stop serving, and free the port."""
        self._server.close()
        self._systemd.close()


def _verdict(reasons: tuple[str, ...]) -> ProbeAnswer:
    return (
        ProbeAnswer(503, "".join(f"{reason}\n" for reason in reasons).encode())
        if reasons
        else ProbeAnswer(200, b"ok\n")
    )


def parsed_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    >>> parsed_address("127.0.0.1:8080"), parsed_address("[::1]:0")
    (('127.0.0.1', 8080), ('::1', 0))

    Raises `ConfigError` if it is not valid.
    """
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    number = -1
    with contextlib.suppress(ValueError):
        number = int(port) if port.isdecimal() else -1
    if not (host and colon and 0 <= number <= _MOST_PORT) or (":" in host and not host.startswith("[")):
        raise ConfigError(f"The address of the probes is {address!r}. {_HOW}")
    return host.removeprefix("[").removesuffix("]"), number

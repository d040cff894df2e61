"""A small HTTP server for probes, on the standard library: bounded, and robust to slow or hostile clients.

Invariants: at most `_MOST_CONNECTIONS` connections are open. A connection is closed after `_MOST_SECONDS`, whatever its
client does. If a further client connects, the oldest connection is closed, so slow clients cannot keep a probe out.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 16
_MOST_SECONDS = 10.0
_CHECK_EVERY = 0.2  # how often the server checks whether it was closed, and which connections are too old, in seconds


class ProbeAnswer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Answers = dict[str, Callable[[str], ProbeAnswer]]
"""The paths, each with a function of the request's `Accept` header that returns the answer."""


class ProbeServer(ThreadingMixIn, HTTPServer):
    """Serves these paths at an address, in threads of its own, until it is closed.

    Raises `OSError` if it cannot listen at the address.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, answers: Answers) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answers = answers
        self._open: dict[socket.socket, float] = {}  # when each open connection was made, oldest first
        self._lock = threading.Lock()
        super().__init__((host, port), _RequestHandler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_CHECK_EVERY,), name="headway-probes", daemon=True
        )
        self._thread.start()

    def server_bind(self) -> None:
        """Bind the socket, without the look-up of the host's name, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread. If too many are open, close the oldest."""
        with self._lock:
            self._open[request] = time.monotonic()
            oldest = next(iter(self._open)) if len(self._open) > _MOST_CONNECTIONS else None
            if oldest:
                del self._open[oldest]
        if oldest:
            _end(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close the connections that are too old. The server calls this regularly."""
        now = time.monotonic()
        with self._lock:
            old = [request for request, since in self._open.items() if now - since > _MOST_SECONDS]
            for request in old:
                del self._open[request]
        for request in old:
            _end(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a connection ended with an error, which is usually the client's."""
        log.debug("A connection to the probes has ended.", exc_info=True)

    def close(self) -> None:
        """Stop serving. Takes a fraction of a second."""
        self.shutdown()
        self.server_close()
        self._thread.join()


def _end(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has just been closed
        request.shutdown(socket.SHUT_RDWR)


class _RequestHandler(BaseHTTPRequestHandler):
    server: ProbeServer
    timeout = _MOST_SECONDS
    server_version = "headway"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        answer = self._answer_to(self.path.partition("?")[0])
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def _answer_to(self, path: str) -> ProbeAnswer:
        find = self.server.answers.get(path)
        if find is None:
            return ProbeAnswer(404, f"There are {', '.join(sorted(self.server.answers))}.\n".encode())
        try:
            return find(self.headers.get("Accept", ""))
        except Exception as error:
            log.exception("The answer to %s could not be made.", path)
            return ProbeAnswer(500, f"The answer could not be made, because of {type(error).__name__}.\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request at the level DEBUG, because probes come every few seconds."""
        log.debug(format, *args)

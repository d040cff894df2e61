"""Takes the reports of admin clients, which would otherwise pile up, because no admin request takes them."""

import logging
import os
import threading
import time
from weakref import WeakSet

from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

_INTERVAL = 0.2  # seconds


class Server:
    """A thread that takes the errors and log lines of admin clients, as long as any clients exist."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Start without clients in a forked process: the existing ones belong to the parent process."""
        self._lock = threading.Lock()
        self._clients: WeakSet[AdminClient] = WeakSet()
        self._thread: threading.Thread | None = None

    def serve(self, client: AdminClient) -> None:
        """Take the reports of this client until it is destroyed."""
        with self._lock:
            self._clients.add(client)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headway-admin-clients", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            with self._lock:
                clients = list(self._clients)
                if not clients:
                    self._thread = None
                    return
            while clients:
                try:
                    clients.pop().poll(0)
                except Exception:  # the thread also serves all other admin clients of the process
                    log.exception("Serving an admin client raised an unexpected error. Its thread goes on.")


_server = Server()
serve = _server.serve

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_server.forked)

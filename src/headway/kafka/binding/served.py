"""Polls the admin clients in a thread.

Otherwise their error and log reports would pile up, because no admin request polls a client.
"""

import logging
import os
import threading
import time
from weakref import WeakSet

from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

_INTERVAL = 0.2  # seconds between two polls


class Server:
    """A thread that polls all admin clients, and ends when none of them exists any longer."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Start without clients in a forked process, because the existing clients belong to the parent process."""
        self._lock = threading.Lock()  # protects the list of clients
        self._clients: WeakSet[AdminClient] = WeakSet()
        self._thread: threading.Thread | None = None

    def serve(self, client: AdminClient) -> None:
        """Poll this client until it is destroyed."""
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
                # The thread must continue, because it also polls all other admin clients of the process.
                except Exception:
                    log.exception("Polling an admin client raised an unexpected error. The thread continues.")


_server = Server()
serve = _server.serve

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_server.forked)

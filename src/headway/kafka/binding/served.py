"""A server for admin clients: their reports would pile up, since no request to them serves them."""

import os
import threading
import time
from weakref import WeakSet

from confluent_kafka.admin import AdminClient

_EVERY = 0.2


class Server:
    """A thread that takes the reports of admin clients, errors and log, while there are any clients."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Leave the clients of the parent process to it."""
        self._lock = threading.Lock()
        self._clients: WeakSet[AdminClient] = WeakSet()
        self._thread: threading.Thread | None = None

    def serve(self, client: AdminClient) -> None:
        """Take this client's reports until it is gone."""
        with self._lock:
            self._clients.add(client)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headway-admin-clients", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY)
            with self._lock:
                clients = list(self._clients)
                if not clients:
                    self._thread = None
                    return
            while clients:
                clients.pop().poll(0)


_server = Server()
serve = _server.serve

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_server.forked)

"""A relay beside a test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headway import Relay
from headway.delay.topics import DEFAULT_NAME


@contextmanager
def relay(servers: str, name: str = DEFAULT_NAME) -> Iterator[None]:
    """It runs in a thread, until the block ends."""
    with Relay({"bootstrap.servers": servers}, name=name) as running:
        thread = threading.Thread(target=running.run)
        thread.start()
        try:
            yield
        finally:
            running.stop()
            thread.join()

"""Opens the feed with the first request, so that an application that is only imported connects to nothing."""

import threading
from collections.abc import Callable

from headway.dashboard.feed import Feed
from headway.errors import ClosedError
from headway.runtime.lifecycle import Closable

OpenFeed = Callable[[], tuple[Feed, Callable[[], None]]]
"""Connects to Kafka. Returns the feed, and a function that closes the connections."""


class FeedOpening(Closable):
    """The feed of a dashboard, opened when it is first needed. Can be used from any thread."""

    def __init__(self, open_feed: OpenFeed) -> None:
        self._open = open_feed
        self._lock = threading.Lock()
        self._opened: tuple[Feed, Callable[[], None]] | None = None
        self._closed = False

    def feed(self) -> Feed:
        """Return the feed. Raises `ClosedError` after `close`."""
        with self._lock:
            if self._closed:
                raise ClosedError("The dashboard has been closed.")
            if self._opened is None:
                self._opened = self._open()
                self._opened[0].start()
            return self._opened[0]

    def stop(self) -> None:
        """End the streams of events, which would otherwise keep a server from stopping. Nothing else changes."""
        opened = self._opened  # without the lock: a signal handler may call this
        if opened:
            opened[0].stop()

    def close(self) -> None:
        """Close the feed and its connections."""
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened:
            feed, close = opened
            feed.close()
            close()

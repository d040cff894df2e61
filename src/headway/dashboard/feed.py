"""Passes each new snapshot to the pages that are open, and keeps the curves."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from headway.actions.marks import OperatorMark
from headway.dashboard.level_history import LevelHistory
from headway.errors import HeadwayError, KafkaError
from headway.inspection.snapshot import Snapshot
from headway.records.record_types import Message
from headway.runtime.lifecycle import Closable

log = logging.getLogger(__name__)

T = TypeVar("T")

_WAIT = 1.0  # seconds; the longest time that closing takes
_MARKS_EVERY = 10.0  # seconds between two looks at whether somebody has marked a deployment


class Watched(Protocol):
    """The part of an `Inspector` that the feed uses."""

    def snapshot(self, timeout: float) -> Snapshot: ...

    def newer(self, than: Snapshot, timeout: float) -> Snapshot: ...

    def record(self, kafka_topic: str, partition: int, offset: int) -> Message | None: ...


class Feed(Closable):
    """The latest snapshot, the curves and the marks. All methods can be called from any thread.

    `read_marks` returns the marks of deployments, and is called every ten seconds.
    """

    def __init__(self, inspector: Watched, read_marks: Callable[[], list[OperatorMark]]) -> None:
        self._inspector = inspector
        self._read_marks = read_marks
        self._lock = threading.Lock()
        self._listeners: set[_SnapshotListener] = set()
        self._history = LevelHistory()
        self._closed = threading.Event()
        self._started = False
        self._marks_at = 0.0
        self.snapshot = Snapshot(0.0)
        self.marks: list[OperatorMark] = []
        self.marks_problem: str | None = None

    def start(self) -> None:
        """Start the thread that waits for snapshots, unless it runs."""
        with self._lock:
            if self._started or self._closed.is_set():
                return
            self._started = True
        threading.Thread(target=self._run, name="headway-dashboard-feed", daemon=True).start()

    def close(self) -> None:
        """End the thread, and all streams of events."""
        self.stop()

    @property
    def closed(self) -> bool:
        """Whether the feed was closed."""
        return self._closed.is_set()

    @property
    def streams(self) -> int:
        """The number of open streams of events."""
        return len(self._listeners)

    def stop(self) -> None:
        """End the streams of events. Safe in a signal handler."""
        self._closed.set()
        self._tell()

    def read_history(self, read: Callable[[LevelHistory], T]) -> T:
        """Call a function with the curves while nothing is added to them, and return its result."""
        with self._lock:
            return read(self._history)

    def record(self, kafka_topic: str, partition: int, offset: int) -> Message | None:
        """Read one record with its value. Raises `KafkaError` if it cannot be read."""
        return self._inspector.record(kafka_topic, partition, offset)

    def listen(self) -> "_SnapshotListener":
        """Begin to listen for snapshots, in the running event loop. Use the result as a context manager."""
        return _SnapshotListener(self._listeners)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                is_first = not self.snapshot.taken_at
                found = self._inspector.snapshot(_WAIT) if is_first else self._inspector.newer(self.snapshot, _WAIT)
            except KafkaError as error:  # there is no snapshot yet
                self.snapshot = Snapshot(0.0, notes=(str(error),))
                self._tell()
                self._closed.wait(_WAIT)
                continue
            if found is not self.snapshot:
                self._add(found)

    def _add(self, snapshot: Snapshot) -> None:
        if snapshot.taken_at - self._marks_at > _MARKS_EVERY:
            self._marks_at = snapshot.taken_at
            try:
                self.marks, self.marks_problem = self._read_marks(), None
            except HeadwayError as error:
                self.marks_problem = str(error)
        with self._lock:
            self._history.add(snapshot)
        self.snapshot = snapshot
        self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener.wake()


class _SnapshotListener:
    """A stream of events that waits for the next snapshot."""

    def __init__(self, listeners: "set[_SnapshotListener]") -> None:
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def __enter__(self) -> "_SnapshotListener":
        self._listeners.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._listeners.discard(self)

    def wake(self) -> None:
        """Wake the stream, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop has been closed with its streams
            self._listeners.discard(self)

    async def next(self, timeout: float) -> bool:
        """Wait for the next snapshot. Returns False if there was none for `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

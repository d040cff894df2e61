"""The context of a record: a handler's second argument."""

import time
from typing import Any, Protocol

from headway.core.engine.work import FailedAttempts


class Attempt(Protocol):
    """An attempt as a context shows it: a `Work`, or its copy in another process."""

    @property
    def attempt(self) -> int: ...
    @property
    def failure(self) -> FailedAttempts | None: ...
    @property
    def level(self) -> int: ...
    @property
    def arrived(self) -> float: ...


class Context:
    """One attempt at a record: the second argument of every handler."""

    __slots__ = ("_started", "_work", "state")

    state: Any
    """What the lifespan of the consumer or worker yields; None without one."""

    def __init__(self, work: Attempt) -> None:
        self._work = work
        self.state = None
        self._started = time.monotonic()

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._work.attempt

    @property
    def last_error(self) -> BaseException | None:
        """The error of the attempt before; None at the first."""
        return self._work.failure.error if self._work.failure else None

    @property
    def last_failed_at(self) -> float | None:
        """The time at which the attempt before failed, in seconds since the epoch; None at the first."""
        return wall_time(self._work.failure.at) if self._work.failure else None

    @property
    def level(self) -> int:
        """The record's level, 0 the lowest."""
        return self._work.level

    @property
    def queue_time(self) -> float:
        """The seconds that the record was here before this attempt began, earlier attempts included."""
        return self._started - self._work.arrived

    def __repr__(self) -> str:
        return f"Context(attempt={self.attempt}, level={self.level}, queue_time={self.queue_time:.3f})"


def wall_time(monotonic: float) -> float:
    """Return a moment of the monotonic clock in seconds since the epoch."""
    return time.time() - (time.monotonic() - monotonic)

"""The context of an attempt, which handlers get as their second argument."""

import time
from typing import Any, Protocol

from headway.core.engine.attempt import FailedAttempts


class AttemptInfo(Protocol):
    """The attributes of an attempt that a context exposes.

    They come from an `Attempt` in the consumer's own process, and from a `SentAttempt` in a process of the pool.
    """

    @property
    def number(self) -> int: ...
    @property
    def failure(self) -> FailedAttempts | None: ...
    @property
    def level(self) -> int: ...
    @property
    def arrived(self) -> float: ...


class Context:
    """The context of one attempt at a record, which a handler gets as its second argument."""

    __slots__ = ("_attempt", "_started", "state")

    state: Any
    """The object that the lifespan of the consumer or worker yielded, or None if there is no lifespan."""

    def __init__(self, attempt: AttemptInfo) -> None:
        self._attempt = attempt
        self.state = None
        self._started = time.monotonic()

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.number

    @property
    def last_error(self) -> BaseException | None:
        """The error of the previous attempt, or None if this is the first attempt."""
        return self._attempt.failure.error if self._attempt.failure else None

    @property
    def last_failed_at(self) -> float | None:
        """When the previous attempt failed, in seconds since the epoch, or None if this is the first attempt."""
        return wall_time(self._attempt.failure.at) if self._attempt.failure else None

    @property
    def level(self) -> int:
        """The level of the record. The lowest level is 0."""
        return self._attempt.level

    @property
    def queue_time(self) -> float:
        """How long ago the record was fetched when this attempt started, in seconds. Earlier attempts are included."""
        return self._started - self._attempt.arrived

    def __repr__(self) -> str:
        return f"Context(attempt={self.attempt}, level={self.level}, queue_time={self.queue_time:.3f})"


def wall_time(monotonic: float) -> float:
    """Convert a reading of the monotonic clock to seconds since the epoch."""
    return time.time() - (time.monotonic() - monotonic)

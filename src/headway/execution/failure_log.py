"""Logs failures without flooding the log.

The first failures of a topic are logged in full; later ones are only counted.

Invariants: within ten seconds, at most ten failures of each topic are logged in full. Further failures of the topic are
held back. Once a second, one line for each topic states how many failures were held back and describes the last one. So
every failure is either logged or counted.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.user_errors import description_of
from headway.execution.tracebacks import ExcInfo, Tracebacks

_IN_FULL = 10  # the maximum number of lines for a topic in one window
_WINDOW = 10.0  # the length of a window, in seconds
_TOTALS_EVERY = 1.0  # how often the number of held-back failures is logged, in seconds


class _Line(NamedTuple):
    message: str
    arguments: Sequence[Any]
    error: BaseException

    def log(self, log: logging.Logger, level: int, trace: ExcInfo | None, before: str = "", *arguments: Any) -> None:
        description = description_of(self.error)
        log.log(level, before + self.message, *arguments, *self.arguments, description, exc_info=trace)


@dataclass(slots=True)
class _TopicFailures:
    """Counts the failures of one topic that were logged in full or are held back, and keeps the last held-back one."""

    window_at: float
    in_full: int = 0
    held_back: int = 0
    since: float = 0.0
    last: _Line | None = None

    def take(self, now: float) -> bool:
        """Return whether one more failure can be logged in full. If so, the failure is counted as logged."""
        if now - self.window_at >= _WINDOW:
            self.window_at, self.in_full = now, 0
        if self.in_full >= _IN_FULL:
            return False
        self.in_full += 1
        return True

    def hold_back(self, line: _Line, now: float) -> None:
        if not self.held_back:
            self.since = now
        self.held_back += 1
        self.last = line


class FailureLog:
    """Logs failures by topic. `tracebacks` decides which lines include the error's traceback. Thread-safe."""

    def __init__(self, log: logging.Logger, level: int, tracebacks: Tracebacks | None = None) -> None:
        self._tracebacks = tracebacks or Tracebacks()
        self._log = log
        self._level = level
        self._lock = threading.Lock()  # protects the failures that are not logged yet
        self._topics: dict[str, _TopicFailures] = {}
        self._totals_at: float | None = None  # when to log the next totals, or None while no failure is held back
        self._ended = False

    def log(self, topic: str, now: float, error: BaseException, message: str, *arguments: Any) -> None:
        """Log a failure, or hold it back if the topic had too many.

        The error's description is appended to `arguments`, so `message` needs a placeholder for it at the end.
        """
        line = _Line(message, arguments, error)
        with self._lock:
            about = self._topics.get(topic)
            if about is None:
                about = self._topics[topic] = _TopicFailures(now)
            if not about.take(now) and not self._ended:
                about.hold_back(line, now)
                self._totals_at = self._totals_at or now + _TOTALS_EVERY
                return
        line.log(self._log, self._level, self._tracebacks.of(error, now))

    def log_totals(self, now: float) -> None:
        """Log how many failures of each topic were held back. Call it often; it logs at most once a second."""
        if self._totals_at is not None and now >= self._totals_at:
            self._log_held_back(now)

    def end(self, now: float) -> None:
        """Log how many failures are held back.

        Later failures are all logged in full, because no further totals are logged.
        """
        self._ended = True
        self._log_held_back(now)

    def _log_held_back(self, now: float) -> None:
        for topic, about in self._take_held_back().items():
            if about.last:
                before = "%d more failures of records of %s in %.3g s. The last of them: "
                trace = self._tracebacks.of(about.last.error, now)
                about.last.log(self._log, self._level, trace, before, about.held_back, topic, now - about.since)

    def _take_held_back(self) -> Mapping[str, _TopicFailures]:
        with self._lock:
            self._totals_at = None
            held_back = {topic: about for topic, about in self._topics.items() if about.held_back}
            for topic, about in held_back.items():
                self._topics[topic] = _TopicFailures(about.window_at, about.in_full)
            return held_back

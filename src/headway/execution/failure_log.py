"""The log of failed attempts: the first ones in full, and those of a flood added up.

Invariants: of each topic ten lines in ten seconds are told in full. For all others one line a second tells their number
and the last of them, so none is lost without a word.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.user_errors import description_of
from headway.execution.tracebacks import ExcInfo, Tracebacks

_IN_FULL = 10  # lines of a topic in one window
_WINDOW = 10.0  # seconds
_SUM_EVERY = 1.0  # seconds


class _Line(NamedTuple):
    message: str
    arguments: Sequence[Any]
    error: BaseException

    def tell(self, log: logging.Logger, level: int, trace: ExcInfo | None, before: str = "", *arguments: Any) -> None:
        told = description_of(self.error)
        log.log(level, before + self.message, *arguments, *self.arguments, told, exc_info=trace)


@dataclass(slots=True)
class _Topic:
    """One topic's lines: how many were told in full, and the last of those held back."""

    window_at: float
    in_full: int = 0
    held_back: int = 0
    since: float = 0.0
    last: _Line | None = None

    def take(self, now: float) -> bool:
        """Return whether one more line may be told in full, which then counts."""
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
    """Lines about failures of records, by topic; to be used from any thread.

    A line has the error's traceback now and then, as `tracebacks` say.
    """

    def __init__(self, log: logging.Logger, level: int, tracebacks: Tracebacks | None = None) -> None:
        self._tracebacks = tracebacks or Tracebacks()
        self._log = log
        self._level = level
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self._sum_at: float | None = None  # None while no line is held back
        self._ended = False

    def tell(self, topic: str, now: float, error: BaseException, message: str, *arguments: Any) -> None:
        """Tell the log, with the error as the last argument; or hold the line back, to be counted."""
        line = _Line(message, arguments, error)
        with self._lock:
            about = self._topics.get(topic)
            if about is None:
                about = self._topics[topic] = _Topic(now)
            if not about.take(now) and not self._ended:
                about.hold_back(line, now)
                self._sum_at = self._sum_at or now + _SUM_EVERY
                return
        line.tell(self._log, self._level, self._tracebacks.of(error, now))

    def tell_sums(self, now: float) -> None:
        """Tell how many lines of each topic were held back, once a second; to be called every now and then."""
        if self._sum_at is not None and now >= self._sum_at:
            self._tell_held_back(now)

    def end(self, now: float) -> None:
        """Tell what was held back; lines that come later are told in full, as nobody calls `tell_sums` any more."""
        self._ended = True
        self._tell_held_back(now)

    def _tell_held_back(self, now: float) -> None:
        for topic, about in self._take_held_back().items():
            if about.last:
                before = "%d more failures of records of %s in %.3g s; the last: "
                trace = self._tracebacks.of(about.last.error, now)
                about.last.tell(self._log, self._level, trace, before, about.held_back, topic, now - about.since)

    def _take_held_back(self) -> Mapping[str, _Topic]:
        with self._lock:
            self._sum_at = None
            held_back = {topic: about for topic, about in self._topics.items() if about.held_back}
            for topic, about in held_back.items():
                self._topics[topic] = _Topic(about.window_at, about.in_full)
            return held_back

"""Tracebacks of handlers' errors for the log: each place in the code once in a while, not for every attempt."""

import threading
import traceback
from pathlib import Path
from types import TracebackType

from headway.errors import FatalError, RetriableError, RetryLater

ExcInfo = tuple[type[BaseException], BaseException, TracebackType]

_AGAIN_AFTER = 600.0  # seconds
_MOST_PLACES = 1_000
_LONGEST = 20_000  # characters

_OURS = str(Path(__file__).parents[1])
_ON_PURPOSE = (RetriableError, RetryLater, FatalError)

_CodePlace = tuple[type[BaseException], str, int]


class Tracebacks:
    """The choice of errors that are told with their traceback; to be used from any thread.

    An error that a handler raises on purpose needs none, nor does one of Headway's own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: dict[_CodePlace, float] = {}

    def of(self, error: BaseException, now: float) -> ExcInfo | None:
        """Return an error as `logging` takes it, from the handler's code on; None if it should be logged without."""
        if issubclass(type(error), _ON_PURPOSE):
            return None
        try:
            begin = _of_the_user(error.__traceback__)
            if begin is None or not self._is_new(_place_of(error, begin), now):
                return None
            # What an error's own code does while it is told must not end in the handlers of the log.
            size = sum(map(len, traceback.TracebackException(type(error), error, begin).format()))
        except BaseException:
            return None
        return (type(error), error, begin) if size <= _LONGEST else None

    def _is_new(self, place: _CodePlace, now: float) -> bool:
        with self._lock:
            if now - self._logged.get(place, -_AGAIN_AFTER) < _AGAIN_AFTER:
                return False
            if len(self._logged) >= _MOST_PLACES:
                self._logged.clear()
            self._logged[place] = now
            return True


def _of_the_user(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame on that is not Headway's."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return frames


def _place_of(error: BaseException, frames: TracebackType) -> _CodePlace:
    while frames.tb_next is not None:
        frames = frames.tb_next
    return type(error), frames.tb_frame.f_code.co_filename, frames.tb_lineno

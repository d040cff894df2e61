"""Finds where an error was raised, and decides which failures are logged with a traceback.

For each place in the code, at most one traceback is logged in ten minutes.
"""

import os
import threading
import traceback
from pathlib import Path
from types import TracebackType

from headway.errors import FatalError, RetriableError, RetryLater

ExcInfo = tuple[type[BaseException], BaseException, TracebackType]

_AGAIN_AFTER = 600.0  # how long after a traceback the same place in the code can get another one, in seconds
_MOST_PLACES = 1_000  # the maximum number of places that are remembered, which bounds the memory
_LONGEST = 20_000  # the maximum number of characters of a traceback; a longer traceback is not logged

_OURS = str(Path(__file__).parents[1]) + os.sep
_STANDARD = os.path.dirname(str(os.__file__)) + os.sep
_ON_PURPOSE = (RetriableError, RetryLater, FatalError)

_CodePlace = tuple[type[BaseException], str, int]


class Tracebacks:
    """Chooses the errors that are logged with their traceback. Thread-safe.

    An error is logged without a traceback if it is a `RetriableError`, `RetryLater` or `FatalError`, which handlers
    raise on purpose, or if it was raised outside the user's code.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the places in the code whose traceback was logged
        self._logged: dict[_CodePlace, float] = {}

    def of(self, error: BaseException, now: float) -> ExcInfo | None:
        """Return the `exc_info` for an error, or None if the error must be logged without a traceback.

        The logged traceback begins with the first frame outside Headway's own code.
        """
        if issubclass(type(error), _ON_PURPOSE):
            return None
        try:
            begin = _of_the_user(error.__traceback__)
            if begin is None or not self._is_new(_place_of(error, begin), now):
                return None
            # The traceback is formatted here first, because a user's exception class can raise while it is formatted.
            # If it raised only in the log handler, it would be too late to leave out the traceback.
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
    """Return the traceback without the frames of Headway's own code at its beginning."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return frames


def _place_of(error: BaseException, frames: TracebackType) -> _CodePlace:
    while frames.tb_next is not None:
        frames = frames.tb_next
    return type(error), frames.tb_frame.f_code.co_filename, frames.tb_lineno


def place_in_user_code(error: BaseException) -> str:
    """Return the place in the user's code where an error was raised, in parentheses, or an empty string.

    Frames of Headway and of Python's standard library are left out.
    """
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    # Packages are installed in a folder of the standard library, and so is Headway itself.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", _OURS))
        and (not frame.filename.startswith(_STANDARD) or "site-packages" in frame.filename)
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""

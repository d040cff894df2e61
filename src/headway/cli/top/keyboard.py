"""Reads single keys from a terminal."""

import codecs
import os
import select
import termios
import tty
from collections import deque
from types import TracebackType
from typing import Self

# What terminals send for keys without a character. Some send O instead of [.
_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "[5~": "pageup",
    "[6~": "pagedown",
    "[H": "home",
    "[F": "end",
    "[1~": "home",
    "[4~": "end",
    "[Z": "left",
}
_NAMES = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\t": "tab"}
_ESCAPE = "\x1b"
_REST_WITHIN = 0.05  # the rest of a key's characters follow within this many seconds, even over a slow connection
_LONGEST = 8


class Keyboard:
    """A context manager that returns each key at once, without showing it. Ctrl-C stays what it is."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waiting = deque[str]()
        self.is_closed = False

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def key(self, timeout: float) -> str | None:
        """Wait up to `timeout` seconds for a key, and return its character or name, or None if there is none."""
        if not self._waiting:
            self._take(timeout)
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        if first != _ESCAPE:
            return _NAMES.get(first, first)
        return self._after_escape()

    def _after_escape(self) -> str:
        """Return the name of the key whose characters begin with an escape character, or of the key Esc itself."""
        if not self._waiting:
            self._take(_REST_WITHIN)
        sequence = ""
        while self._waiting and len(sequence) < _LONGEST:
            sequence += self._waiting.popleft().replace("O", "[") if not sequence else self._waiting.popleft()
            if not sequence.startswith("["):
                break  # Alt with a character
            if sequence in _SEQUENCES or (len(sequence) > 1 and (sequence[-1].isalpha() or sequence[-1] == "~")):
                break
        return _SEQUENCES.get(sequence, "") if sequence else "escape"

    def _take(self, timeout: float) -> None:
        ready, _, _ = select.select([self._descriptor], [], [], timeout)
        if ready:
            content = os.read(self._descriptor, 1024)
            self.is_closed = not content  # the terminal is gone
            self._waiting.extend(self._decoder.decode(content))

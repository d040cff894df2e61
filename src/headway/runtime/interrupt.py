"""Handles Ctrl-C in a command that must finish the current item before it stops."""

import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code by which a shell recognises that the process was ended by Ctrl-C."""

_END = object()


class Interrupt:
    """A context manager.

    During its block, the first Ctrl-C stops the reading of input, and the second one stops the work too.

    Without this context manager, Python could raise `KeyboardInterrupt` anywhere, even between handling a record and
    counting it. If Ctrl-C arrives while no input is being read, `stop` is also called.
    """

    def __init__(self, stop: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self._stop = stop
        self._waiting = False

    def __enter__(self) -> Self:
        self._previous = signal.getsignal(signal.SIGINT)
        # In a background job of a shell, Ctrl-C is ignored, and this must stay so.
        if self._previous is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def read(self, source: Iterable[T]) -> Iterator[T]:
        """Yield the items of a source until the source ends or a Ctrl-C arrives."""
        items = iter(source)
        while not self.requested:
            try:
                self._waiting = True
                item = next(items, _END)
            except KeyboardInterrupt:
                return
            finally:
                self._waiting = False
            if item is _END:
                return
            yield item  # type: ignore[misc]  # it is not `_END`, so it is a T

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._waiting or self.requested:
            self.requested = True
            raise KeyboardInterrupt
        self.requested = True
        self._stop()

"""A base class for objects that are closed at the end of a `with` block, and a helper for timeouts."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Closable(ABC):
    """A context manager that calls its own `close` method at the end of the `with` block."""

    @abstractmethod
    def close(self) -> object:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def time_left_of(timeout: float | None) -> Callable[[], float | None]:
    """Start a timeout, and return a function that returns how many seconds of it are left.

    If `timeout` is None, the function returns None.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    return lambda: None if deadline is None else max(0.0, deadline - time.monotonic())

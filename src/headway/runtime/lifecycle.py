"""A base class for objects that are closed at the end of a `with` block, and a timer for timeouts."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Closable(ABC):
    """An object with a `close` method, which is called at the end of its `with` block."""

    @abstractmethod
    def close(self) -> object:
        """Release everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def time_left_of(timeout: float | None) -> Callable[[], float | None]:
    """Return a function that returns how many seconds are left of a timeout that starts now; None if it has no end."""
    deadline = None if timeout is None else time.monotonic() + timeout
    return lambda: None if deadline is None else max(0.0, deadline - time.monotonic())

"""Pauses the garbage collector while many records are created at once.

Creating the records makes the collector run several times, and each run finds nothing, because records have no
reference cycles and are freed by reference counting. That costs a third of the time in which they are created. If a
consumer frees each batch as it gets the next one, the number of objects does not grow, so with this pause the collector
never runs.
"""

import gc
import threading
from types import TracebackType
from typing import ClassVar


class GcPause:
    """A `with` block that turns the garbage collector off, if it was on, and turns it on again at the end.

    The block should take only milliseconds, because it affects the whole process, unless the process does nothing but
    read records. Two threads do not interfere with each other: only the thread that has turned the collector off turns
    it on again.
    """

    __slots__ = ("_is_ours",)
    _off_by: ClassVar[int | None] = None  # id of the thread that turned the collector off

    def __enter__(self) -> None:
        thread = threading.get_ident()
        # If Ctrl-C interrupts `__exit__` at its beginning, the collector stays off. The next block of the same thread
        # then turns it on again.
        self._is_ours = gc.isenabled() or GcPause._off_by == thread
        if self._is_ours:
            GcPause._off_by = thread
        gc.disable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ours:
            gc.enable()
            GcPause._off_by = None

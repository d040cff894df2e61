"""Pauses the garbage collector while many records are created at once.

Creating many records makes the collector run several times. Each run finds nothing, because records have no reference
cycles and are freed by reference counting, but the runs take up a third of the time that it takes to create the
records. If a consumer frees each batch when it gets the next one, the number of objects does not grow, so with this
pause the collector never runs.
"""

import gc
import threading
from types import TracebackType
from typing import ClassVar


class GcPause:
    """A context manager that turns the garbage collector off, if it is on, and turns it on again at the end.

    The block should take only milliseconds, because the whole process runs without the collector during the block. A
    longer block is fine in a process that does nothing but read records. Two threads do not interfere with each other,
    because only the thread that has turned the collector off turns it on again.
    """

    __slots__ = ("_is_ours",)
    _off_by: ClassVar[int | None] = None  # the identifier of the thread that has turned the collector off

    def __enter__(self) -> None:
        thread = threading.get_ident()
        # If Ctrl-C interrupts `__exit__` at its beginning, the collector stays off. The next block in the same thread
        # then turns the collector on again.
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

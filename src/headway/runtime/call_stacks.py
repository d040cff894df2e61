"""Finds out whether a thread is inside a certain call, by reading the thread's stack.

A flag that the call sets and clears is not used, because an interrupt could leave it in the wrong state. The stack is
always right.
"""

import sys
import threading
from types import CodeType, FrameType

from headway.runtime.gc_pause import GcPause


def is_on_stack(thread: int | None, code: CodeType, owner: object) -> bool:
    """Return whether a thread is currently executing this method of this object."""
    frame = _frame_of(thread)
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False


def _frame_of(thread: int | None) -> FrameType | None:
    if thread is None:
        return None
    if thread == threading.get_ident():
        return sys._getframe()
    # `_current_frames` holds a lock of the interpreter while it allocates memory. If the garbage collector ran then,
    # and a finalizer released the GIL, a thread that is about to start would wait for this lock while it holds the GIL,
    # and the process would hang. See https://github.com/python/cpython/issues/106883.
    with GcPause():
        return sys._current_frames().get(thread)

"""Finds out whether a thread is inside a certain call, by reading the thread's stack.

A flag that the call sets and clears is not used, because an interrupt could leave it in the wrong state. The stack is
always right.
"""

import sys
from types import CodeType


def is_on_stack(thread: int | None, code: CodeType, owner: object) -> bool:
    """Return whether a thread is currently executing this method of this object."""
    frame = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False

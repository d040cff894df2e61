"""Finds out whether a thread is inside a call.

Unlike a flag that the call sets and clears, no interrupt can break it.
"""

import sys
from types import CodeType


def is_on_stack(thread: int | None, code: CodeType, owner: object) -> bool:
    """Return whether a thread is inside this method of this object now."""
    frame = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False

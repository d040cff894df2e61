"""The exit codes of `headway worker` and of its processes."""

from enum import IntEnum

from headway.runtime.interrupt import INTERRUPTED


class Code(IntEnum):
    """Exit codes by their meaning."""

    DONE = 0
    MISTAKE = 1
    FAILED_FOR_GOOD = 3
    KEPT_DYING = 4
    UNFINISHED = 5
    CRASHED = 70  # only of a member, which the supervisor then restarts
    INTERRUPTED = INTERRUPTED

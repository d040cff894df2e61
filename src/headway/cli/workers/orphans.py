"""Orphans: processes that handlers left behind, which the kernel gives to process 1 when their parent ends.

In a container without an init `headway worker` is process 1. An orphan that has ended stays as a zombie until its
parent collects it, and zombies use up the container's process numbers.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


def collect_orphans(own: Collection[int]) -> None:
    """Collect all orphans that have ended; Linux only, since other systems have no containers.

    `own` are the processes that others wait for. Each of them leads a session of its own, so an orphan is of another
    session than this process. A child in this process's session was started by a library, which waits for it.
    """
    session = os.getsid(0)
    for child in _children():
        with suppress(OSError, ValueError, IndexError):  # it was collected a moment ago
            if child not in own and _is_zombie(child) and os.getsid(child) != session:
                os.waitpid(child, os.WNOHANG)


def _children() -> Iterator[int]:
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError):  # a thread that has just ended
                yield from map(int, (task / "children").read_text().split())


def _is_zombie(process: int) -> bool:
    # The name before the state is in brackets, and can have any characters in it.
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"

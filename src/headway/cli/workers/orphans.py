"""Orphans: processes that handlers left behind. When their parent ends, the kernel gives them to process 1.

In a container without an init process, `headway worker` is process 1. An orphan that has ended remains as a zombie
until its parent collects it, and zombies use up the container's process ids.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


def collect_orphans(own: Collection[int]) -> None:
    """Collect all orphans that have ended. Linux only, where containers are.

    `own` are the processes that asyncio waits for. Each of them leads a session of its own, so an orphan belongs to
    another session than this process. A child in this process's session was started by a library, which waits for it.
    """
    session = os.getsid(0)
    for child in _children():
        with suppress(OSError, ValueError, IndexError):  # another thread may have collected it a moment ago
            if child not in own and _is_zombie(child) and os.getsid(child) != session:
                os.waitpid(child, os.WNOHANG)


def _children() -> Iterator[int]:
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError):  # the thread may have just ended
                yield from map(int, (task / "children").read_text().split())


def _is_zombie(process: int) -> bool:
    # The name before the state is in parentheses, and can contain any character, even a parenthesis.
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"

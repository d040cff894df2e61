"""Protects clients when their process forks: the child process has the objects, but none of their threads.

A call in the child would wait for those threads forever. Destroying librdkafka's client there would hang as well, or
fail an assertion that ends the child. So the copies in a child process raise an error from each call, and librdkafka's
clients are never destroyed there.
"""

import ctypes
import os
from typing import Protocol
from weakref import WeakSet

from headway.errors import ClosedError


class Forkable(Protocol):
    """An object that must be disabled when it is the copy in a forked process."""

    def forked(self) -> None:
        """Disable this copy without waiting, and without a lock, whose holder does not exist in this process."""


_objects: WeakSet[Forkable] = WeakSet()
_clients: WeakSet[object] = WeakSet()


def register_for_forks(copied: Forkable) -> None:
    """Call `copied.forked()` in each child process that is forked from now on."""
    _objects.add(copied)


def keep_alive_in_forks(client: object) -> None:
    """Ensure that librdkafka's client is not destroyed in processes that are forked from now on."""
    _clients.add(client)


def made_before_fork(kind: str) -> ClosedError:
    """Return the error for each call of a client in a forked process."""
    return ClosedError(
        f"This {kind} was made before the process was forked, and works only where it was made. Make one in each "
        "process, after the fork."
    )


def _begin_child() -> None:
    for client in list(_clients):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))  # also protects it when the process ends
    for copied in list(_objects):
        copied.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)

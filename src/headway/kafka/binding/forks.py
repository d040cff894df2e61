"""Protects Kafka clients when their process forks.

The child process has the client objects, but none of their threads, so any call of such a client would wait forever for
those threads. Destroying the client of librdkafka would also hang, or fail an assertion that ends the child. So in a
child process every call of a copied object raises an error, and the clients of librdkafka are never destroyed.
"""

import ctypes
import os
from typing import Protocol
from weakref import WeakSet

from headway.errors import ClosedError


class Forkable(Protocol):
    """An object whose copy in a forked process must be disabled."""

    def forked(self) -> None:
        """Disable this copy of the object in a forked process.

        This must neither wait nor acquire an existing lock, because the thread that holds the lock does not exist in
        this process.
        """


_objects: WeakSet[Forkable] = WeakSet()
_clients: WeakSet[object] = WeakSet()


def register_for_forks(copied: Forkable) -> None:
    """Call the object's `forked` method in each child process that is forked from now on."""
    _objects.add(copied)


def keep_alive_in_forks(client: object) -> None:
    """Prevent librdkafka's client from being destroyed in the processes that are forked from now on."""
    _clients.add(client)


def made_before_fork(kind: str) -> ClosedError:
    """Return the error for any call of a client that was created before the process was forked."""
    return ClosedError(
        f"This {kind} was created before the process was forked, so it works only in the parent process. Create one "
        "in each process after the fork."
    )


def _begin_child() -> None:
    for client in list(_clients):
        # The additional reference also protects the client when the child process ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    for copied in list(_objects):
        copied.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)

"""A client in a process that was forked from its own: an object without its threads.

Calls would wait for these threads for ever, and so would the end of librdkafka's client. The child's copy is therefore
told, answers each call with an error, and is never destroyed.
"""

import ctypes
import os
from typing import Protocol
from weakref import WeakSet

from headway.errors import ClosedError


class Forkable(Protocol):
    """A client that is told that it is the copy in a forked process."""

    def forked(self) -> None:
        """Let go of everything without waiting, or taking a lock: the thread that held one is not in this process."""


_clients: WeakSet[Forkable] = WeakSet()


def tell_of_forks(client: Forkable) -> None:
    """Call `client.forked()` in each process that is forked from now on."""
    _clients.add(client)


def keep_for_ever(client: object) -> None:
    """Keep librdkafka's client from being destroyed, at the end of the process too."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def made_before_fork(kind: str) -> ClosedError:
    """Return the error for each call of a client in a forked process."""
    return ClosedError(
        f"This {kind} was made before the process was forked, and works only where it was made. Make one in each "
        "process, after the fork."
    )


def _tell() -> None:
    for client in list(_clients):
        client.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)

"""Kafka clients that a Python worker keeps from one task to the next.

Spark keeps its Python workers, too. A new client takes some 20 ms to connect and to ask for its topics, which a small
micro-batch would wait for in each of its tasks.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from pyspark import TaskContext

_MOST = 4


class Client(Protocol):
    """The protocol for what is kept."""

    def close(self) -> object: ...


C = TypeVar("C", bound=Client)


class KeptClients(Generic[C]):
    """The clients of one kind that no task uses now, at most four: those that were used last."""

    def __init__(self) -> None:
        self._idle: dict[Hashable, C] = {}

    @contextmanager
    def borrowed(self, made_of: Hashable, make: Callable[[], C]) -> Iterator[C]:
        """Yield a kept client that was made of the same, or else a new one.

        An error closes the client: whatever is wrong with it, the next task has a new one. Outside of a task none is
        kept, since nobody ends that process soon.
        """
        client = self._idle.pop(made_of, None) or make()
        is_usable = False
        try:
            yield client
            is_usable = TaskContext.get() is not None and made_of not in self._idle
        finally:
            if is_usable:
                self._idle[made_of] = client
            else:
                client.close()
        while len(self._idle) > _MOST:
            self._idle.pop(next(iter(self._idle))).close()

"""The permission to send to a host: its places and its pauses.

Invariants: no host has more requests at a time than its places. A host that asked for a pause gets no request until its
end. A request that waits for one host delays no other host. A host without users and waiters takes no memory.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

from headway.errors import RetriableError

log = logging.getLogger(__name__)


class _Places:
    """A host's places, and the number of requests that have one or wait for one."""

    __slots__ = ("free", "users")

    def __init__(self, count: int) -> None:
        self.free = asyncio.Semaphore(count)
        self.users = 0


class Hosts:
    """The hosts of one event loop. A host is an origin: scheme, name and port."""

    def __init__(self, per_host: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = defaultdict[str, _Places](lambda: _Places(per_host))
        self._held_until: dict[str, float] = {}
        self._clock = clock

    @property
    def remembered(self) -> int:
        """The number of hosts in use, and of pauses, that take memory."""
        return len(self._places) + len(self._held_until)

    @contextlib.asynccontextmanager
    async def place(self, host: str) -> AsyncIterator[None]:
        """Hold a place at a host, given in order of arrival.

        Raises `RetriableError` during a host's pause, and as soon as a pause begins. A request that waits for so long
        does not wait here, where it would take a slot from requests to other hosts.
        """
        self._check_free(host)
        places = self._places[host]
        places.users += 1
        try:
            async with places.free:
                self._check_free(host)
                yield
        finally:
            places.users -= 1
            if not places.users:
                del self._places[host]

    def hold(self, host: str, seconds: float) -> None:
        """Let no new request go to a host for so many seconds."""
        now = self._clock()
        if self._held_until.get(host, 0.0) <= now:
            log.warning("%s asks to be left alone for %.3g s; requests to other hosts go on.", host, seconds)
        self._held_until = {each: until for each, until in self._held_until.items() if until > now}
        self._held_until[host] = max(now + seconds, self._held_until.get(host, 0.0))

    def _check_free(self, host: str) -> None:
        left = self._held_until.get(host, 0.0) - self._clock()
        if left > 0:
            raise RetriableError(
                f"Nothing was sent: {host} asks to be left alone for another {left:.3g} s.",
                retry_after=left,
                untried=True,
            )

"""Who may send to which host, and when.

Invariants: no host has more requests at a time than its places; one that asked to be left alone gets none until then;
what waits for one host keeps no other waiting; a host that nobody uses or waits for takes no memory.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

from headway.core.retry import RetriableError

log = logging.getLogger(__name__)


class _Places:
    """A host's places, and how many have one or wait for one."""

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

    @contextlib.asynccontextmanager
    async def place(self, host: str) -> AsyncIterator[None]:
        """A place at a host, given in order of arrival.

        Raises `RetriableError` while the host is left alone, and as soon as it is to be: what would wait for that long
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
        """Let nothing new go to a host for so long."""
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

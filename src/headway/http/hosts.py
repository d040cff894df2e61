"""Permission to send to a host: how many requests at a time, and pauses.

Invariants: no host has more requests at a time than it has slots. A host that asked for a pause gets no request until
it is over. A request that waits for one host delays no other host. A host that is not in use takes no memory.
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
    """A host's slots, and the number of requests that have one or wait for one."""

    __slots__ = ("free", "users")

    def __init__(self, count: int) -> None:
        self.free = asyncio.Semaphore(count)
        self.users = 0


class Hosts:
    """The hosts used in one event loop. A host is an origin: scheme, name and port."""

    def __init__(self, per_host: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = defaultdict[str, _Places](lambda: _Places(per_host))
        self._held_until: dict[str, float] = {}
        self._clock = clock

    @property
    def remembered(self) -> int:
        """The number of hosts and pauses that take memory."""
        return len(self._places) + len(self._held_until)

    @contextlib.asynccontextmanager
    async def place(self, host: str) -> AsyncIterator[None]:
        """Hold a slot at a host. Slots are given in order of arrival.

        Raises `RetriableError` if the host is pausing, or as soon as a pause starts. A request that must wait for a
        pause does not wait here, where it would keep a consumer's slot from requests to other hosts.
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
        """Send no new request to a host for this many seconds."""
        now = self._clock()
        if self._held_until.get(host, 0.0) <= now:
            log.warning("%s asks for no requests for %.3g s. Requests to other hosts go on.", host, seconds)
        self._held_until = {each: until for each, until in self._held_until.items() if until > now}
        self._held_until[host] = max(now + seconds, self._held_until.get(host, 0.0))

    def _check_free(self, host: str) -> None:
        left = self._held_until.get(host, 0.0) - self._clock()
        if left > 0:
            raise RetriableError(
                f"Nothing was sent, because {host} asks for no requests for another {left:.3g} s.",
                retry_after=left,
                untried=True,
            )

"""Limits the simultaneous requests to each host, and keeps the pauses that hosts request.

Invariants: A host never has more simultaneous requests than slots. A host that requested a pause gets no requests until
the pause is over. A request that waits for one host does not delay requests to other hosts. A host that is not in use
takes no memory.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

from headway.errors import RetriableError

log = logging.getLogger(__name__)


class _HostSlots:
    """The slots of a host. `users` is the number of requests that have a slot or wait for one."""

    __slots__ = ("free", "users")

    def __init__(self, count: int) -> None:
        self.free = asyncio.Semaphore(count)
        self.users = 0


class Hosts:
    """The hosts used in one event loop. A host is an origin: scheme, name and port."""

    def __init__(self, per_host: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = defaultdict[str, _HostSlots](lambda: _HostSlots(per_host))
        self._paused_until: dict[str, float] = {}
        self._clock = clock

    @property
    def remembered(self) -> int:
        """The number of hosts and pauses that are in memory."""
        return len(self._slots) + len(self._paused_until)

    @contextlib.asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Hold a slot of a host until the end of the `async with` block. Requests get slots in the order of arrival.

        Raises `RetriableError` if the host has requested a pause, or requests one before there is a free slot. If this
        method waited until the pause is over, it would occupy a slot of the consumer that a record for another host
        could use.
        """
        self._require_no_pause(host)
        slots = self._slots[host]
        slots.users += 1
        try:
            async with slots.free:
                self._require_no_pause(host)
                yield
        finally:
            slots.users -= 1
            if not slots.users:
                del self._slots[host]

    def pause(self, host: str, seconds: float) -> None:
        """Send no new request to a host for this many seconds."""
        now = self._clock()
        if self._paused_until.get(host, 0.0) <= now:
            log.warning(
                "%s has requested a pause of %.3g s. Meanwhile it gets no requests. Requests to other hosts continue.",
                host,
                seconds,
            )
        self._paused_until = {each: until for each, until in self._paused_until.items() if until > now}
        self._paused_until[host] = max(now + seconds, self._paused_until.get(host, 0.0))

    def _require_no_pause(self, host: str) -> None:
        left = self._paused_until.get(host, 0.0) - self._clock()
        if left > 0:
            raise RetriableError(
                f"Nothing was sent, because {host} has requested a pause that lasts another {left:.3g} s.",
                retry_after=left,
                untried=True,
            )

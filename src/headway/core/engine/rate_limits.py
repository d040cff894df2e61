"""The rate limits of an engine by tenant and by key, and their places in it.

Heads of lanes reach the ready queues once they have a permit of their key's bucket, and then of their tenant's. A work
that starts is charged to both. An engine without limits has neither, and does not ask for them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.next_slots import NextSlots
from headway.core.engine.rate_buckets import RateBuckets
from headway.core.engine.ready_queue import ReadyQueue
from headway.core.engine.work import Work

_TENANT = "tenant:"  # before a tenant's name, where it stands beside that of the group's rate
_LOOK_EACH = 0.005  # seconds: thousands of names would have a wake-up each, and a bucket saves up for longer than this

R = TypeVar("R")


class Entrance(Protocol[R]):
    """The way into the ready queue of a level: the queue itself, or buckets before it."""

    def arrive(self, works: list[Work[R]]) -> None: ...
    def release(self, work: Work[R]) -> None: ...
    def drop(self, assignment: Assignment[R]) -> list[Work[R]]: ...


class RateLimits(Generic[R]):
    """The buckets of one engine, which is given them before it has any record.

    Args:
        per_tenant: The works of one tenant that may start in a second: a number for each tenant, or a function that
            returns that of a tenant, or None if any number may; it is called under the engine's lock. By default
            there is no limit.
        per_key: The works of one key of a partition's topic that may start in a second, or None.
    """

    def __init__(
        self, *, per_tenant: float | Callable[[str], float | None] | None = None, per_key: float | None = None
    ) -> None:
        self._per_tenant = per_tenant
        self._per_key = per_key
        self.tenants: RateBuckets[R] | None = None
        self.keys: RateBuckets[R] | None = None
        self._buckets: list[RateBuckets[R]] = []  # in the order in which works go through
        self._looked_at = 0.0
        self._told: float | None = None

    @property
    def is_shared(self) -> bool:
        """True if there is a rate of which this engine may have a share: a key has all its records in one partition."""
        return self._per_tenant is not None

    def entrances(self, levels: Sequence[ReadyQueue[R]]) -> list[Entrance[R]]:
        """Put the buckets before these ready queues; return the ways through them."""

        def onward(work: Work[R]) -> None:
            levels[work.assignment.level].release(work)

        if self._per_tenant is not None:
            self.tenants = RateBuckets(_limits(self._per_tenant), _tenant_of, len(levels), onward)
            onward = self.tenants.release
            self._buckets.insert(0, self.tenants)
        if self._per_key is not None:
            self.keys = RateBuckets(_limits(self._per_key), _key_of, len(levels), onward)
            self._buckets.insert(0, self.keys)
        return [_Limited(level, self._buckets) for level in levels]

    def needs(self, ready: int, seconds: float, now: float) -> dict[str, tuple[float, float]]:
        """Return how much tenants need of their rates, by the names under which members lend; what is ready has it."""
        needs = self.tenants.needs(seconds, now) if self.tenants else {}
        return {f"{_TENANT}{name}": need for name, need in needs.items()}

    def share(self, share: float, now: float, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Have this share of each tenant's rate; those in `others` have another."""
        if self.tenants:
            names = [name for name in others if name.startswith(_TENANT)]
            of_tenants: dict[Hashable, float] = {name.removeprefix(_TENANT): others[name] for name in names}
            self.tenants.share(share, now, of_tenants)

    def release_due(self, now: float) -> None:
        """Let the works through whose permits have come."""
        self._looked_at = now
        for buckets in self._buckets:
            buckets.release_due(now)

    def start(self, works: Sequence[Work[R]], now: float) -> None:
        """Charge works that start now."""
        for buckets in self._buckets:
            buckets.start(works, now)

    def next_time(self) -> float | None:
        """Return when to look for permits next, if only time hinders them: not at once for each of many names."""
        first = self._first()
        self._told = None if first is None else max(first, self._looked_at + _LOOK_EACH)
        return self._told

    def is_news(self, now: float) -> bool:
        """Return whether a permit will come at a time for which `next_time` wakes nobody up; say so once.

        A time that is over wakes nobody up either: all slots may have been taken when it came.
        """
        first = self._first()
        if first is None or (self._told is not None and now < self._told <= first + _LOOK_EACH):
            return False
        self._told = first
        return True

    def _first(self) -> float | None:
        return min((at for buckets in self._buckets if (at := buckets.next_time()) is not None), default=None)


class _Limited(Generic[R]):
    """The way into a ready queue through the buckets."""

    def __init__(self, level: ReadyQueue[R], buckets: Sequence[RateBuckets[R]]) -> None:
        self._level = level
        self._buckets = buckets

    def arrive(self, works: list[Work[R]]) -> None:
        for work in works:
            self._buckets[0].release(work)

    def release(self, work: Work[R]) -> None:
        self._buckets[0].release(work)

    def drop(self, assignment: Assignment[R]) -> list[Work[R]]:
        works = self._level.drop(assignment)
        for buckets in self._buckets:
            works += buckets.drop(assignment)
        return works


class LimitedSlots(NextSlots[R]):
    """The choice of the works to run next among those that have their permits."""

    def __init__(self, limits: RateLimits[R], *given: Any) -> None:
        super().__init__(*given)
        self._limits = limits

    def take(self, limit: int, now: float) -> list[Work[R]]:
        """Return up to `limit` works, each for a slot of its own."""
        self._limits.release_due(now)
        works = super().take(limit, now)
        if works:
            self._limits.start(works, now)
        return works

    def take_batch(self, max_size: int, now: float, of_one_partition: bool = False) -> list[Work[R]]:
        """Return the works for one slot; a batch of one lane is charged for those that came along, too."""
        self._limits.release_due(now)
        works = super().take_batch(max_size, now, of_one_partition)
        if works:
            self._limits.start(works, now)
        return works

    def next_change(self) -> float | None:
        """Return when the policy may pick otherwise, or a work may get its permit, even if nothing else happens."""
        times = [super().next_change(), self._limits.next_time()]
        return min((time for time in times if time is not None), default=None)


def _limits(limit: float | Callable[[Any], float | None]) -> Callable[[Any], float | None]:
    """Return the function from a name to its limit."""
    return limit if callable(limit) else lambda _: limit


def _tenant_of(work: Work[Any]) -> str:
    return work.tenant


def _key_of(work: Work[Any]) -> tuple[str, int, bytes] | None:
    """Return the key of a work's topic and level; a record without a key has no limit."""
    key = work.record.raw_key
    return None if key is None else (work.assignment.partition.topic, work.assignment.level, key)

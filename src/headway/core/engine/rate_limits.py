"""The rate limits of an engine by tenant and by key.

The head of a lane reaches its ready queue once it has a permit from its key's bucket, and then one from its tenant's
bucket. A work that starts is charged to both. An engine without limits has no buckets and never asks for them.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.next_slots import NextSlots
from headway.core.engine.rate_buckets import RateBuckets
from headway.core.engine.ready_queue import ReadyQueue
from headway.core.engine.slot_policies import SlotPolicy
from headway.core.engine.work import Work

_TENANT = "tenant:"  # prefix of a tenant's name among the names of shared rates, where the group's rate is another
# Seconds between two releases of permits. Without it, thousands of names would each wake the thread at their own time.
# No permit is lost: a bucket saves permits for longer than this.
_RELEASE_EVERY = 0.005

R = TypeVar("R")


class Entrance(Protocol[R]):
    """The entrance to the ready queue of a level: the queue itself, or the buckets before it."""

    def arrive(self, works: list[Work[R]]) -> None: ...
    def release(self, work: Work[R]) -> None: ...
    def drop(self, assignment: Assignment[R]) -> list[Work[R]]: ...


class RateLimits(Generic[R]):
    """The buckets of one engine, and the entrances to its ready queues that lead through them.

    Args:
        levels: The ready queues of the engine.
        per_tenant: The number of works of one tenant that may start per second: the same for all tenants, or a function
            that returns it for a tenant, or None for no limit. It is called under the engine's lock.
        per_key: The number of works with one key that may start per second, in each topic and level; None for no limit.
    """

    def __init__(
        self,
        levels: Sequence[ReadyQueue[R]],
        per_tenant: float | Callable[[str], float | None] | None,
        per_key: float | None,
    ) -> None:
        def onward(work: Work[R]) -> None:
            levels[work.assignment.level].release(work)

        self.tenants: RateBuckets[R] | None = None
        self.keys: RateBuckets[R] | None = None
        if per_tenant is not None:
            self.tenants = RateBuckets(_limits(per_tenant), _tenant_of, len(levels), onward)
            onward = self.tenants.release
        if per_key is not None:
            self.keys = RateBuckets(_limits(per_key), _key_of, len(levels), onward)
        self._buckets = [each for each in (self.keys, self.tenants) if each]  # in the order in which works need permits
        self.entrances: Sequence[Entrance[R]] = [_Limited(level, self._buckets) for level in levels]
        self._released_at = 0.0
        self._awaited: float | None = None  # the time that `next_time` or `comes_earlier` returned last

    @property
    def is_shared(self) -> bool:
        """True if members of a group share a rate. Tenants' rates are shared; a key's records are all in one place."""
        return self.tenants is not None

    def needs(self, ready: int, seconds: float, now: float) -> dict[str, tuple[float, float]]:
        """Return how much each tenant needs of its rate, by the names that members use when they lend to each other.

        `ready` is not used: a work that is ready already has its permit.
        """
        needs = self.tenants.needs(seconds, now) if self.tenants else {}
        return {f"{_TENANT}{name}": need for name, need in needs.items()}

    def share(self, share: float, now: float, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Use this share of each tenant's rate. A tenant in `others` has the share given there."""
        if self.tenants:
            names = [name for name in others if name.startswith(_TENANT)]
            of_tenants: dict[Hashable, float] = {name.removeprefix(_TENANT): others[name] for name in names}
            self.tenants.share(share, now, of_tenants)

    def release_due(self, now: float) -> None:
        """Give out the permits that have become due, and move their works onward."""
        self._released_at = now
        for buckets in self._buckets:
            buckets.release_due(now)

    def start(self, works: Sequence[Work[R]], now: float) -> None:
        """Charge works that start now."""
        for buckets in self._buckets:
            buckets.start(works, now)

    def next_time(self) -> float | None:
        """Return when to release permits next, or None if no work waits for one."""
        first = self._first()
        self._awaited = None if first is None else max(first, self._released_at + _RELEASE_EVERY)
        return self._awaited

    def comes_earlier(self, now: float) -> bool:
        """Return whether a permit is due before the time that the waiting thread was given, so it must be woken.

        Returns True once for each such time. It is also True if that time is over, because all slots may have been
        taken when it came.
        """
        first = self._first()
        if first is None or (self._awaited is not None and now < self._awaited <= first + _RELEASE_EVERY):
            return False
        self._awaited = first
        return True

    def _first(self) -> float | None:
        return min((at for buckets in self._buckets if (at := buckets.next_time()) is not None), default=None)


class _Limited(Generic[R]):
    """The entrance to a ready queue that leads through the buckets."""

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
    """The choice of the works to run next, among those that have their permits."""

    def __init__(
        self,
        limits: RateLimits[R],
        levels: Sequence[ReadyQueue[R]],
        policy: SlotPolicy,
        retry_share: float,
        full_of_outputs: Collection[int],
    ) -> None:
        super().__init__(levels, policy, retry_share, full_of_outputs)
        self._limits = limits

    def take(self, limit: int, now: float) -> list[Work[R]]:
        """Return up to `limit` works, each for a slot of its own."""
        self._limits.release_due(now)
        works = super().take(limit, now)
        if works:
            self._limits.start(works, now)
        return works

    def take_batch(self, max_size: int, now: float, of_one_partition: bool = False) -> list[Work[R]]:
        """Return the works for one slot. Each work of a batch is charged."""
        self._limits.release_due(now)
        works = super().take_batch(max_size, now, of_one_partition)
        if works:
            self._limits.start(works, now)
        return works

    def next_change(self) -> float | None:
        """Return when time alone can change the choice: by the policy, or because a permit becomes due."""
        times = [super().next_change(), self._limits.next_time()]
        return min((time for time in times if time is not None), default=None)


def _limits(limit: float | Callable[[Any], float | None]) -> Callable[[Any], float | None]:
    """Return a function that returns the limit of a name."""
    return limit if callable(limit) else lambda _: limit


def _tenant_of(work: Work[Any]) -> str:
    return work.tenant


def _key_of(work: Work[Any]) -> tuple[str, int, bytes] | None:
    """Return the name under which a record's key is limited, or None for a record without a key, which has no limit."""
    key = work.record.raw_key
    return None if key is None else (work.assignment.partition.topic, work.assignment.level, key)

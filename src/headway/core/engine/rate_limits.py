"""The rate limits of an engine for each tenant and each key.

The head of a lane needs a permit from the bucket of its key, and then a permit from the bucket of its tenant. A head
with both permits enters the ready queue. When an attempt starts, both buckets are charged. An engine without limits has
no buckets, and its records enter the ready queue directly.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.next_slots import NextSlots
from headway.core.engine.rate_buckets import RateBuckets
from headway.core.engine.ready_queue import ReadyQueue
from headway.core.engine.slot_policies import SlotPolicy

_TENANT = "tenant:"  # the prefix of tenants' names among the names of shared rates, which also include the group's rate
# The shortest time between two releases of permits, in seconds. Without it, each of thousands of names could wake the
# thread at a different time. No permit is lost, because a bucket saves permits for longer than this.
_RELEASE_EVERY = 0.005

R = TypeVar("R")


class Entrance(Protocol[R]):
    """The entrance to a level's ready queue: the queue itself, or the buckets before it if there are rate limits."""

    def arrive(self, attempts: list[Attempt[R]]) -> None: ...
    def release(self, attempt: Attempt[R]) -> None: ...
    def drop(self, assignment: Assignment[R]) -> list[Attempt[R]]: ...


class RateLimits(Generic[R]):
    """The buckets of one engine, and the entrances through them to its ready queues.

    Args:
        levels: The ready queues of the engine.
        per_tenant: How many attempts may start per second for each tenant. It can be a number for all tenants, a
            function that returns the number for a tenant, or None for no limit. The function is called under the
            engine's lock.
        per_key: How many attempts may start per second for each key of a topic and level; None for no limit.
    """

    def __init__(
        self,
        levels: Sequence[ReadyQueue[R]],
        per_tenant: float | Callable[[str], float | None] | None,
        per_key: float | None,
    ) -> None:
        def onward(attempt: Attempt[R]) -> None:
            levels[attempt.assignment.level].release(attempt)

        self.tenants: RateBuckets[R] | None = None
        self.keys: RateBuckets[R] | None = None
        if per_tenant is not None:
            self.tenants = RateBuckets(_limits(per_tenant), _tenant_of, len(levels), onward)
            onward = self.tenants.release
        if per_key is not None:
            self.keys = RateBuckets(_limits(per_key), _key_of, len(levels), onward)
        self._buckets = [each for each in (self.keys, self.tenants) if each]  # the order in which permits are needed
        self.entrances: Sequence[Entrance[R]] = [_Limited(level, self._buckets) for level in levels]
        self._released_at = 0.0
        self._awaited: float | None = None  # the time that `next_time` or `comes_earlier` returned last

    @property
    def is_shared(self) -> bool:
        """True if the members of a group share a rate.

        Only the rates of tenants are shared. The rate of a key is not shared, because one member has all records of the
        key.
        """
        return self.tenants is not None

    def needs(self, ready: int, seconds: float, now: float) -> dict[str, tuple[float, float]]:
        """Return the used fraction of each tenant's rate and the backlog in seconds, as `RateBuckets.needs` does.

        The keys of the result are the names that members use when they lend rates to each other. `ready` is not used,
        because an attempt that is ready already has its permit.
        """
        needs = self.tenants.needs(seconds, now) if self.tenants else {}
        return {f"{_TENANT}{name}": need for name, need in needs.items()}

    def share(self, share: float, now: float, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Set the fraction of each tenant's rate that may be used.

        `others` has the tenants that have other fractions.
        """
        if self.tenants:
            names = [name for name in others if name.startswith(_TENANT)]
            of_tenants: dict[Hashable, float] = {name.removeprefix(_TENANT): others[name] for name in names}
            self.tenants.share(share, now, of_tenants)

    def release_due(self, now: float) -> None:
        """Give out the permits that have become due, and pass on the attempts that get them."""
        self._released_at = now
        for buckets in self._buckets:
            buckets.release_due(now)

    def start(self, attempts: Sequence[Attempt[R]], now: float) -> None:
        """Charge the buckets for attempts that start now."""
        for buckets in self._buckets:
            buckets.start(attempts, now)

    def next_time(self) -> float | None:
        """Return when to release permits next, or None if no permit becomes due merely because time passes."""
        first = self._first()
        self._awaited = None if first is None else max(first, self._released_at + _RELEASE_EVERY)
        return self._awaited

    def comes_earlier(self, now: float) -> bool:
        """Return whether the driver's thread must be woken because a permit is due before the thread stops waiting.

        The method returns True only once for each new time. It also returns True if the end of the thread's wait is in
        the past, because all slots might have been taken at that time.
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

    def arrive(self, attempts: list[Attempt[R]]) -> None:
        for attempt in attempts:
            self._buckets[0].release(attempt)

    def release(self, attempt: Attempt[R]) -> None:
        self._buckets[0].release(attempt)

    def drop(self, assignment: Assignment[R]) -> list[Attempt[R]]:
        attempts = self._level.drop(assignment)
        for buckets in self._buckets:
            attempts += buckets.drop(assignment)
        return attempts


class LimitedSlots(NextSlots[R]):
    """Chooses the attempts to run next among those that have their permits."""

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

    def take(self, limit: int, now: float) -> list[Attempt[R]]:
        """Start up to `limit` attempts, each in a slot of its own, and return them."""
        self._limits.release_due(now)
        attempts = super().take(limit, now)
        if attempts:
            self._limits.start(attempts, now)
        return attempts

    def take_batch(self, max_size: int, now: float, of_one_partition: bool = False) -> list[Attempt[R]]:
        """Start a batch in one slot and return its attempts. The buckets are charged for each attempt."""
        self._limits.release_due(now)
        attempts = super().take_batch(max_size, now, of_one_partition)
        if attempts:
            self._limits.start(attempts, now)
        return attempts

    def next_change(self) -> float | None:
        """Return when the policy's choice can change without another call, or when the next permit is due."""
        times = [super().next_change(), self._limits.next_time()]
        return min((time for time in times if time is not None), default=None)


def _limits(limit: float | Callable[[Any], float | None]) -> Callable[[Any], float | None]:
    """Return a function that returns the limit of a name."""
    return limit if callable(limit) else lambda _: limit


def _tenant_of(attempt: Attempt[Any]) -> str:
    return attempt.tenant


def _key_of(attempt: Attempt[Any]) -> tuple[str, int, bytes] | None:
    """Return the name by which a record's key is limited, or None for a record without a key, which has no limit."""
    key = attempt.record.raw_key
    return None if key is None else (attempt.assignment.partition.topic, attempt.assignment.level, key)

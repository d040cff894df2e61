"""Limits how many attempts may start per second for each tenant, or for each key.

Here, a tenant or key is called a *name*.

Each name has a token bucket. Before an attempt can become ready, it needs a permit from the bucket of its name. When an
attempt with a permit starts, the bucket is charged. Until an attempt has its permit, it waits in the bucket and takes
no slot.

Invariants:
- In any period, no more attempts of a name start than its rate allows, plus one burst. A burst is one attempt plus the
  number that the rate allows in a twentieth of a second. Each level has its own burst, so that a lower level's attempt
  that has a permit and waits for a slot does not delay a higher level.
- After `release_due`, no attempt waits while its bucket can give a permit.
- A bucket that has no debt, no permits and no attempts is forgotten, because a new bucket would be equal.
- An attempt needs no permit if its record has expired or only has to be stored elsewhere, or if its name has no rate.
- If the rate of a name changes, the new rate applies from the arrival of the next attempt of this name, and then also
  to attempts that are already waiting.

The current time is the latest time that was passed to any method. A call with an earlier time releases no further
attempts.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.attempt_states import AttemptState

_BURST = 0.05  # how many seconds' worth of permits a bucket saves, so that a late wake-up does not delay a start
_UNLIMITED = 1e12  # the rate, in attempts per second, for waiting attempts of a name whose rate was removed
_OLDEST_EVERY = 4  # one in this many permits goes to the bucket's oldest attempt, whatever its level

_WAITING = AttemptState.WAITING

R = TypeVar("R")


class Bucket(Generic[R]):
    """The bucket of one name: the recent starts of its attempts, and the attempts that wait for a permit."""

    __slots__ = ("at", "debt", "due", "is_listed", "limit", "name", "passed", "permits", "rate", "waiting")

    def __init__(self, name: Hashable, limit: float, share: float, levels: int, now: float) -> None:
        self.name = name
        self.limit = limit
        self.rate = limit * share  # the part of the limit that this engine may use
        # the debt at the time `at`: the number of starts, minus the number that the rate has allowed
        self.debt = 0.0
        self.at = now
        self.permits = [0] * levels  # for each level, the number of attempts that have a permit but have not started
        self.waiting: dict[int, list[tuple[int, Attempt[R]]]] = {}  # for each level, a heap in the order of arrival
        self.passed = 0  # the number of attempts that waited and then got a permit
        self.due = math.inf  # the time of the bucket's valid entry in the heap of all buckets
        self.is_listed = False  # whether the bucket is in the heap of buckets to forget


class RateBuckets(Generic[R]):
    """The buckets of all tenants, or of all keys.

    Args:
        limit_of: A function that returns how many attempts of a name may start per second, or None for no limit.
        name_of: A function that returns the name of an attempt, or None if the attempt has no limit.
        levels: The number of levels.
        onward: A function that is called with each attempt when the attempt gets its permit, or if it needs no permit.
    """

    def __init__(
        self,
        limit_of: Callable[[Any], float | None],
        name_of: Callable[[Attempt[R]], Hashable | None],
        levels: int,
        onward: Callable[[Attempt[R]], None],
    ) -> None:
        self._limit_of = limit_of
        self._share = 1.0
        self._shares: Mapping[Hashable, float] = {}  # the names whose shares differ from `_share`, with their shares
        # The number of starts of each name since the last call of `needs`; None before the first call.
        self._started: Counter[Hashable] | None = None
        self._name_of = name_of
        self._levels = levels
        self._onward = onward
        self._now = -math.inf
        self._buckets: dict[Hashable, Bucket[R]] = {}
        self._permits: dict[Attempt[R], Bucket[R]] = {}  # the attempts that have a permit and have not started
        self._orders = count()
        self._entries: list[tuple[float, int, Bucket[R]]] = []  # a heap, ordered by the time of a bucket's next permit
        # A heap of unused buckets, ordered by the time at which a bucket can be forgotten.
        self._idle: list[tuple[float, int, Bucket[R]]] = []

    @property
    def remembered(self) -> int:
        """The number of names with a bucket."""
        return len(self._buckets)

    def waiting(self) -> list[Attempt[R]]:
        """Return the attempts that wait for a permit, in no particular order."""
        heaps = (heap for bucket in self._buckets.values() for heap in bucket.waiting.values())
        return [attempt for heap in heaps for _, attempt in heap]

    def release(self, attempt: Attempt[R]) -> None:
        """Pass an attempt on if it gets a permit or needs none. Otherwise, make it wait for a permit."""
        name = None if attempt.outcome or attempt.not_after <= self._now else self._name_of(attempt)
        bucket = None if name is None else self._bucket(name)
        if bucket is None:
            self._onward(attempt)
            return
        level = attempt.assignment.level
        if level not in bucket.waiting and self._permit_at(bucket, level) <= self._now:
            self._pass(attempt, bucket)
            return
        attempt.state = _WAITING
        heappush(bucket.waiting.setdefault(level, []), (attempt.order, attempt))
        self._plan(bucket)

    def release_due(self, now: float) -> None:
        """Pass on the waiting attempts whose permits have become due."""
        self._now = max(self._now, now)
        entries = self._entries
        while entries and entries[0][0] <= self._now:
            at, _, bucket = heappop(entries)
            if bucket.due == at:
                bucket.due = math.inf
                self._give_permits(bucket)
                self._plan_or_list(bucket)
        self._forget()

    def start(self, attempts: Iterable[Attempt[R]], now: float) -> None:
        """Charge the buckets for attempts that start now, including those that joined a batch without a permit."""
        self._now = max(self._now, now)
        for attempt in attempts:
            bucket = self._permits.pop(attempt, None)
            if bucket is not None:
                bucket.permits[attempt.assignment.level] -= 1
            if not attempt.outcome and attempt.not_after > self._now:
                if bucket is None:
                    name = self._name_of(attempt)
                    if name is None or (bucket := self._bucket(name)) is None:
                        continue
                bucket.debt = self._debt(bucket) + 1
                bucket.at = self._now
                if self._started is not None:
                    self._started[bucket.name] += 1
            if bucket is not None:
                self._plan_or_list(bucket)

    def drop(self, assignment: Assignment[R]) -> list[Attempt[R]]:
        """Remove the attempts of an assignment, and return those that waited for a permit.

        If one of the attempts had a permit and has not started, its permit is given back.
        """
        for attempt in [attempt for attempt in self._permits if attempt.assignment is assignment]:
            bucket = self._permits.pop(attempt)
            bucket.permits[assignment.level] -= 1
            self._plan_or_list(bucket)
        dropped: list[Attempt[R]] = []
        for bucket in self._buckets.values():
            if heap := bucket.waiting.get(assignment.level):
                dropped += (attempt for _, attempt in heap if attempt.assignment is assignment)
                left = [each for each in heap if each[1].assignment is not assignment]
                self._replace_waiting(bucket, assignment.level, left)
        return dropped

    def needs(self, seconds: float, now: float) -> dict[Hashable, tuple[float, float]]:
        """Return, for each name, the fraction of its rate that was used, and its backlog in seconds at the full rate.

        The fraction is the average since the last call, which was `seconds` ago.
        """
        self._now = max(self._now, now)
        started, self._started = self._started or Counter(), Counter()
        names = set(started) | {name for name, bucket in self._buckets.items() if bucket.waiting}
        needs: dict[Hashable, tuple[float, float]] = {}
        for name in names:
            bucket = self._buckets.get(name)
            limit = bucket.limit if bucket else self._limit_of(name)
            if limit:
                waiting = sum(map(len, bucket.waiting.values())) if bucket else 0
                needs[name] = started[name] / seconds / limit, waiting / limit
        return needs

    def share(self, share: float, now: float, others: Mapping[Hashable, float] = MappingProxyType({})) -> None:
        """Set the fraction, from 0 to 1, of each name's rate that may be used from now on.

        `others` maps names to their own fractions if these differ from `share`.
        """
        self._now = max(self._now, now)
        before, self._shares = self._shares, others
        if share == self._share:  # update only the names that have changed, because there can be thousands of names
            for name in before.keys() | others.keys():
                if before.get(name) != others.get(name) and (bucket := self._buckets.get(name)):
                    self._change_rate(bucket, bucket.limit)
            return
        self._share = share
        self._entries.clear()
        self._idle.clear()
        for bucket in self._buckets.values():
            bucket.is_listed = False
            self._change_rate(bucket, bucket.limit)

    def next_time(self) -> float | None:
        """Return when the next permit is due, or None if no permit becomes due merely because time passes."""
        return self._entries[0][0] if self._entries else None

    def _bucket(self, name: Hashable) -> Bucket[R] | None:
        """Return the bucket of a name, updated to its present rate, or None if the name has no rate and no bucket."""
        bucket = self._buckets.get(name)
        limit = self._limit_of(name)
        if bucket is None:
            if limit is None:
                return None
            bucket = self._buckets[name] = Bucket(name, limit, self._share_of(name), self._levels, self._now)
        elif limit != bucket.limit:
            self._change_rate(bucket, _UNLIMITED if limit is None else limit)
        return bucket

    def _share_of(self, name: Hashable) -> float:
        return self._shares.get(name, self._share)

    def _change_rate(self, bucket: Bucket[R], limit: float) -> None:
        bucket.debt, bucket.at = self._debt(bucket), self._now
        bucket.limit, bucket.rate = limit, limit * self._share_of(bucket.name)
        bucket.due = math.inf  # makes an entry with another time outdated
        self._plan_or_list(bucket)

    def _debt(self, bucket: Bucket[R]) -> float:
        # If there is no debt, `at` must not be used, because it is minus infinity until a caller has passed a time.
        return max(0.0, bucket.debt - bucket.rate * (self._now - bucket.at)) if bucket.debt else 0.0

    def _permit_at(self, bucket: Bucket[R], level: int) -> float:
        """Return when an attempt of this level can get a permit. Permits of lower levels do not delay it."""
        left = _BURST * bucket.rate - sum(bucket.permits[level:])
        if not bucket.rate or left < 0:
            return math.inf
        return bucket.at if bucket.debt <= left else bucket.at + (bucket.debt - left) / bucket.rate

    def _pass(self, attempt: Attempt[R], bucket: Bucket[R]) -> None:
        bucket.permits[attempt.assignment.level] += 1
        self._permits[attempt] = bucket
        self._onward(attempt)

    def _give_permits(self, bucket: Bucket[R]) -> None:
        while bucket.waiting and (level := self._next_level(bucket)) is not None:
            attempt = bucket.waiting[level][0][1]
            heappop(bucket.waiting[level])
            if not bucket.waiting[level]:
                del bucket.waiting[level]
            if attempt.not_after <= self._now:
                self._onward(attempt)
                continue
            bucket.passed += 1
            self._pass(attempt, bucket)

    def _next_level(self, bucket: Bucket[R]) -> int | None:
        """Return the level whose first attempt gets the next permit, or None if all attempts must wait.

        The result is the highest level that can get a permit. But one in `_OLDEST_EVERY` permits goes to the level of
        the oldest attempt.
        """
        levels = sorted(bucket.waiting, reverse=True)
        if bucket.passed % _OLDEST_EVERY == _OLDEST_EVERY - 1:
            oldest = min(levels, key=lambda level: bucket.waiting[level][0][0])
            levels.insert(0, oldest)
        for level in levels:
            if self._permit_at(bucket, level) <= self._now or bucket.waiting[level][0][1].not_after <= self._now:
                return level
        return None

    def _plan_or_list(self, bucket: Bucket[R]) -> None:
        if bucket.waiting:
            self._plan(bucket)
        elif not bucket.is_listed and not any(bucket.permits):
            self._list(bucket)

    def _plan(self, bucket: Bucket[R]) -> None:
        """Ensure that the heap has an entry for the time of the bucket's next permit.

        The entry can be too early; it is then moved when its time comes. While the next permit depends on the start of
        an attempt that already has a permit, there is no entry, and that start calls this method again.
        """
        at = self._permit_at(bucket, max(bucket.waiting))
        if at < bucket.due:
            bucket.due = at
            heappush(self._entries, (at, next(self._orders), bucket))

    def _list(self, bucket: Bucket[R]) -> None:
        at = self._full_at(bucket)
        if at < math.inf:
            bucket.is_listed = True
            heappush(self._idle, (at, next(self._orders), bucket))

    def _full_at(self, bucket: Bucket[R]) -> float:
        """Return when the bucket will have no debt; infinite while its share of the rate is 0."""
        if not bucket.debt:
            return self._now
        return bucket.at + bucket.debt / bucket.rate if bucket.rate else math.inf

    def _forget(self) -> None:
        idle = self._idle
        while idle and idle[0][0] <= self._now:
            bucket = heappop(idle)[2]
            bucket.is_listed = False
            if bucket.waiting or any(bucket.permits):
                continue
            if self._full_at(bucket) > self._now:  # attempts have started in the meantime
                self._list(bucket)
            else:
                del self._buckets[bucket.name]

    def _replace_waiting(self, bucket: Bucket[R], level: int, heap: list[tuple[int, Attempt[R]]]) -> None:
        heapify(heap)
        if heap:
            bucket.waiting[level] = heap
        else:
            del bucket.waiting[level]
        self._plan_or_list(bucket)

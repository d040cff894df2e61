"""A histogram of the delays of recent records, and its stored form.

The histogram's size is bounded, and old records count less.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Self

import msgspec

from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import MEMORY, Ladder, rounded, time_in
from headway.core.delay.schedule import Schedule
from headway.core.untrusted import LATEST, Time, read_json
from headway.errors import UnreadableError

HALF_LIFE = 3_600_000
"""How long it takes until a record counts half, in milliseconds."""

_MOST_BUCKETS = 128
_LEAST_WEIGHT = 1e-6
_MOST_WEIGHT = 1e12


class _StoredDelays(msgspec.Struct, forbid_unknown_fields=True):
    """The stored form of a histogram: the time of storing, and pairs of a delay in milliseconds and its weight."""

    at: Time
    delays: list[tuple[Time, float]]


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_StoredDelays)


class RecentDelays:
    """A histogram of delays in milliseconds. The weight of a delay is its number of records; old records count less.

    A record counts half after `HALF_LIFE`. If a caller passes an earlier time than a previous caller, the latest time
    so far is used.
    """

    def __init__(self, now: int = 0) -> None:
        self._at = now
        self._weights: defaultdict[int, float] = defaultdict(float)

    def add(self, delays: Iterable[int], now: int) -> None:
        """Count the delays of records that arrive now."""
        self._forget(now)
        for delay in delays:
            self._weights[rounded(min(max(0, delay), LATEST))] += 1.0
        if len(self._weights) > 2 * _MOST_BUCKETS:
            self._merge()

    def merge(self, other: Self, now: int) -> None:
        """Add the weights of another histogram to this one."""
        self._forget(now)
        for delay, weight in other.weights(self._at).items():
            self._weights[delay] += weight
        if len(self._weights) > 2 * _MOST_BUCKETS:
            self._merge()

    def weights(self, now: int) -> dict[int, float]:
        """Return the current weight of each delay."""
        self._forget(now)
        return dict(self._weights)

    def _forget(self, now: int) -> None:
        if now <= self._at:
            return
        fade = 0.5 ** ((now - self._at) / HALF_LIFE)
        self._at = now
        faded = ((delay, weight * fade) for delay, weight in self._weights.items())
        self._weights = defaultdict(float, {each: weight for each, weight in faded if weight > _LEAST_WEIGHT})

    def _merge(self) -> None:
        """Keep the heaviest buckets, and add the weight of each other bucket to the next shorter one that is kept."""
        heaviest = sorted(self._weights, key=self._weights.__getitem__, reverse=True)[:_MOST_BUCKETS]
        kept = sorted(heaviest)
        merged: defaultdict[int, float] = defaultdict(float)
        for delay, weight in self._weights.items():
            merged[kept[max(0, bisect_right(kept, delay) - 1)]] += weight
        self._weights = merged

    def encode(self, now: int) -> bytes:
        """Encode the histogram for storage."""
        self._forget(now)
        if len(self._weights) > _MOST_BUCKETS:
            self._merge()
        return _encode(
            _StoredDelays(self._at, [(delay, round(each, 6)) for delay, each in sorted(self._weights.items())])
        )

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode a histogram from its stored form. Raises `UnreadableError` if it is malformed."""
        stored = read_json(value, _decoder, "The stored delays of recent records")
        if len(stored.delays) > 2 * _MOST_BUCKETS or any(not 0 < weight <= _MOST_WEIGHT for _, weight in stored.delays):
            raise UnreadableError(
                f"The stored delays of recent records cannot be read: there are {len(stored.delays)} delays (at most "
                f"{2 * _MOST_BUCKETS} are allowed), or a weight is not above 0 and at most {_MOST_WEIGHT:g}."
            )
        recent = cls(stored.at)
        for delay, weight in stored.delays:
            recent._weights[delay] += weight
        return recent


def sum_of(histograms: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Return the sum of several histograms."""
    total: defaultdict[int, float] = defaultdict(float)
    for each in histograms:
        for delay, weight in each.items():
            total[delay] += weight
    return dict(total)


def delays_of(delay_topic: int, records: Iterable[Fetched], ladder: Ladder) -> list[int]:
    """Return the delays of the fetched records that were scheduled into this delay topic and not moved there.

    A moved record comes from a topic whose delay is at least as long as the delay of this topic. So when such a record
    arrives, at least this topic's delay has passed since it was scheduled. Records that were scheduled less than half
    of that time ago are therefore new; the other half is a margin for clocks that differ. Changed schedules are left
    out, because they are counted when they are moved.
    """
    latest = time_in(ladder.delays[0] if delay_topic == MEMORY else delay_topic) / 2
    found: list[int] = []
    for record in records:
        schedule: Schedule | Any = record.schedule
        if isinstance(schedule, Schedule) and not schedule.generation and record.appended - schedule.at < latest:
            found.append(schedule.due - schedule.at)
    return found


def is_like(weights: Mapping[int, float], before: Mapping[int, float], ladder: Ladder, most: float) -> bool:
    """Return whether two histograms lead to about the same number of writes.

    This function compares how much each delay adds to the average number of writes per record. The sum of the
    differences must be at most `most`.
    """
    now, then = _shares(weights, ladder), _shares(before, ladder)
    return math.fsum(abs(now.get(each, 0.0) - then.get(each, 0.0)) for each in {*now, *then}) <= most


def _shares(weights: Mapping[int, float], ladder: Ladder) -> dict[int, float]:
    total = math.fsum(weights.values()) or 1.0
    return {delay: ladder.writes(delay) * weight / total for delay, weight in weights.items()}

"""The ladder of delays: decides which delay topic a record waits in next, and can be fitted to the delays in use.

All records in a delay topic wait for the same length of time. So a delay topic is a queue: its first record determines
when to read the topic next. A record goes to the topic with the longest delay that fits into the record's remaining
time, then to the topic with the longest delay that fits into the rest of that time, and so on. When the remaining time
is shorter than the shortest delay, the record waits in memory. All times are whole milliseconds. In the code, a delay
topic is identified by its delay.

Invariants: a record never stays in a delay topic beyond its due time. Each move takes the record to a topic whose delay
is at most the remaining time.

Source: exponential time buckets, as in the timing wheels of Varghese and Lauck (1987), with a queue in place of each
wheel.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from headway.core.untrusted import LATEST
from headway.declarations import check_above_zero, check_whole, is_number, shown
from headway.errors import ConfigError

MEMORY = 0
"""Identifies the memory topic, which holds records that are due sooner than the shortest delay.

The relay reads this topic without delay and holds its records in memory until they are due.
"""

FIRST_DELAYS = 8_000
"""A new scheduler creates the delay topics for delays of up to this many milliseconds.

Topics for longer delays are created when they are needed.

A running relay notices a new topic within about five seconds. That is early enough, because the shortest of the later
topics keeps its first record for 16 seconds.
"""

# Both times are in milliseconds. A record leaves a delay topic a little before the topic's delay is over, and can enter
# the topic a little late. So a record with a delay of exactly one minute passes the topics for 32, 16, 8 and 4 seconds,
# although each move takes some time.
_LEAVES_EARLIER = 100
MAY_ENTER_LATER = 50
_SHORTEST = range(500, 60_001)
MOST_DELAYS = 64


@dataclass(frozen=True, slots=True)
class Ladder:
    """The delays for which there can be delay topics, in milliseconds and in ascending order.

    >>> Ladder((1000, 2000, 4000)).delay_for(3999)
    4000
    >>> list(Ladder((1000, 2000, 4000)).path(7000))
    [(0, 4000), (3900, 2000), (5800, 1000)]

    Raises `ConfigError` if the delays do not form a ladder.
    """

    delays: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.delays, tuple):
            raise ConfigError(
                f"The delays of the ladder are {shown(self.delays)}; give a tuple of milliseconds such as (1000, 2000)."
            )
        if not 0 < len(self.delays) <= MOST_DELAYS:
            raise ConfigError(f"The ladder has {len(self.delays)} delays; it must have 1 to {MOST_DELAYS} delays.")
        for delay_topic in self.delays:
            check_whole("A delay of the ladder", delay_topic, 1, " ms")
        if max(self.delays) > LATEST:
            raise ConfigError(f"A delay of the ladder is {max(self.delays)} ms; it must be at most {LATEST} ms.")
        if any(a >= b for a, b in pairwise(self.delays)):
            raise ConfigError(f"The delays of the ladder are {self}; each must be longer than the one before.")
        if self.delays[0] not in _SHORTEST:
            raise ConfigError(
                f"The shortest delay of the ladder is {self.delays[0] / 1000:g} s; it must be from "
                f"{_SHORTEST[0] / 1000:g} to {_SHORTEST[-1] / 1000:g} s, because records due sooner wait in memory."
            )

    @classmethod
    def of_those(cls, delays: Iterable[int]) -> Self | None:
        """Return a ladder with these delays, or None if they do not form a ladder.

        The delays can be in any order. `MEMORY` is ignored.
        """
        try:
            return cls(tuple(sorted(delay for delay in set(delays) if delay != MEMORY)))
        except ConfigError:
            return None

    @classmethod
    def exponential(cls, first: float = 1.0, base: float = 2.0, count: int = 27) -> Self:
        """Return a ladder of `count` delays.

        The first delay is `first` seconds, and each later delay is `base` times as long as the delay before it.

        The default delays range from one second to two years.

        >>> Ladder.exponential(1, 4, 3)
        Ladder(delays=(1000, 4000, 16000))
        """
        if not is_number(base) or not base > 1:
            raise ConfigError(f"The base of the ladder is {shown(base)}; it must be a number above 1.")
        check_above_zero("The first delay of the ladder", first)
        check_whole("The number of delays of the ladder", count, 1)
        if count > MOST_DELAYS or (count - 1) * math.log(base) + math.log(first * 1000) > math.log(LATEST) + 1:
            raise ConfigError(
                f"A ladder of {count} delays, each {base} times as long as the one before, ends beyond {LATEST} ms or "
                f"has more than {MOST_DELAYS} delays. Use fewer delays."
            )
        return cls(tuple(round(first * 1000 * base**power) for power in range(count)))

    def delay_for(self, remaining: int) -> int:
        """Return the delay topic for a record that is due in this many milliseconds.

        The result is `MEMORY` if every delay of the ladder is too long.
        """
        index = bisect_right(self.delays, remaining + MAY_ENTER_LATER)
        return self.delays[index - 1] if index else MEMORY

    def up_to(self, delay: float) -> tuple[int, ...]:
        """Return the ladder's delays that are needed for records delayed by up to this many milliseconds.

        The shortest delay is always among them.

        >>> Ladder((1000, 2000, 4000)).up_to(3999)
        (1000, 2000, 4000)
        >>> Ladder((1000, 2000, 4000)).up_to(0)
        (1000,)
        """
        return self.delays[: max(1, bisect_right(self.delays, delay + MAY_ENTER_LATER))]

    def reach(self, delay_topics: Iterable[int]) -> float:
        """Return the shortest delay for which a record needs a delay topic that is not among these.

        The result is infinite if no delay topic of the ladder is missing.

        >>> Ladder((1000, 2000, 4000)).reach({1000, 4000})
        1950
        """
        missing = set(self.delays).difference(delay_topics)
        return min(missing) - MAY_ENTER_LATER if missing else math.inf

    def path(self, delay: int) -> Iterator[tuple[int, int]]:
        """Yield the delay topics that a record passes, each with the time in ms at which the record enters it.

        The times do not include the time that each move takes.
        """
        for start, delay_topic, times in self._stays(delay):
            yield from ((start + time * time_in(delay_topic), delay_topic) for time in range(times))

    def step_at(self, delay: int, elapsed: int) -> tuple[int, int] | None:
        """Return the step that a record has reached on its path after this many milliseconds.

        Returns None if the record has not entered a delay topic yet.

        >>> Ladder((1000, 2000, 4000)).step_at(7000, 4500)
        (3900, 2000)
        """
        step = None
        for start, delay_topic, times in self._stays(delay):
            if start > elapsed:
                break
            step = start + min(times - 1, (elapsed - start) // time_in(delay_topic)) * time_in(delay_topic), delay_topic
        return step

    def _stays(self, delay: int) -> Iterator[tuple[int, int, int]]:
        """Yield the path as (time of the first entry, delay topic, number of entries).

        Entries are counted and not listed, because a record can enter the same topic a million times.
        """
        elapsed = 0
        for delay_topic in reversed(self.delays):
            beyond = delay - elapsed + MAY_ENTER_LATER - delay_topic
            if beyond >= 0:
                times = beyond // time_in(delay_topic) + 1
                yield elapsed, delay_topic, times
                elapsed += times * time_in(delay_topic)

    def writes(self, delay: int) -> int:
        """Return how many times a record with this delay is written, including its delivery.

        >>> [Ladder.exponential().writes(seconds * 1000) for seconds in (1, 60, 3600, 86_400)]
        [2, 5, 5, 6]
        """
        return max(1, sum(times for _, _, times in self._stays(delay))) + 1

    def __str__(self) -> str:
        # Whole seconds are printed exactly, because users copy these delays into the option --delays.
        return ", ".join(f"{delay_topic / 1000:.12g} s" for delay_topic in self.delays)


def time_in(delay_topic: int) -> int:
    """Return how many milliseconds a record stays in a delay topic."""
    return max(0, delay_topic - _LEAVES_EARLIER)


def fit(delays: Mapping[int, float], count: int, first: int = 1000) -> Ladder:
    """Find the ladder of at most `count` delays that causes the fewest moves. `delays` maps delays in ms to weights.

    The result is the best ladder that meets two conditions: each delay is a multiple of the delay before it, and each
    delay is either `first` times powers of 2, 3 and 5, or one of the delays in `delays`. Dynamic programming finds this
    ladder, because the moves between two neighbouring delays do not depend on the other delays.

    >>> str(fit({3_600_000: 10, 60_000: 5}, 3))
    '1 s, 60 s, 3600 s'
    """
    if count < 1 or not delays or any(delay < 0 or not 0 <= weight < math.inf for delay, weight in delays.items()):
        raise ConfigError(
            "No ladder can be fitted: give a count of at least 1 and at least one delay. Delays and weights must not "
            "be negative, and weights must be finite."
        )
    candidates = _candidates(delays, first)
    # For each candidate, the best chain of delays from `first` up to the candidate: the number of moves below the
    # candidate, and the delays of the chain.
    chains: dict[int, tuple[float, tuple[int, ...]]] = {first: (0.0, (first,))}
    best: tuple[float, tuple[int, ...]] = (_moves(delays, first, None), (first,))
    for _ in range(count - 1):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for top, (moves, delay_topics) in chains.items():
            for delay_topic in candidates:
                if delay_topic > top and delay_topic % top == 0:
                    chain = (moves + _moves(delays, top, delay_topic), (*delay_topics, delay_topic))
                    longer[delay_topic] = min(chain, longer.get(delay_topic, chain))
        chains = longer
        best = min(
            [
                best,
                *((moves + _moves(delays, top, None), delay_topics) for top, (moves, delay_topics) in chains.items()),
            ]
        )
    return Ladder(best[1])


def rounded(delay: int) -> int:
    """Round a delay to about one percent, so that delays of about five minutes count as equal.

    >>> rounded(300_004), rounded(86_399_990)
    (300000, 86400000)
    """
    step = max(1000, int(10 ** (len(str(delay)) - 3)))
    return round(delay / step) * step


def writes_per_record(ladder: Ladder, delays: Mapping[int, float]) -> float:
    """Return how many times a record with one of these delays is written on average, including its delivery."""
    return sum(ladder.writes(delay) * weight for delay, weight in delays.items()) / sum(delays.values())


def _moves(delays: Mapping[int, float], delay_topic: int, next_longer: int | None) -> float:
    """Return how many times records enter a delay topic, given the next longer delay of the ladder."""
    left = delays.items() if next_longer is None else ((delay % next_longer, n) for delay, n in delays.items())
    return sum(weight * (delay // delay_topic) for delay, weight in left)


def _candidates(delays: Mapping[int, float], first: int) -> list[int]:
    longest = max(delays) // first
    smooth = {1}
    for prime in (2, 3, 5):
        powers = [prime**power for power in range(longest.bit_length())]
        smooth = {number * power for number in smooth for power in powers if number * power <= longest}
    return sorted({first * number for number in smooth} | {delay for delay in delays if delay % first == 0 and delay})

"""The ladder of delay topics: the topic in which a record waits next, and which delay topics suit the delays in use.

A delay topic is a topic in which all records wait for the same time. So it is a queue: its first record says when to
read it next. A record goes to the longest delay topic that its remaining time allows, then to the longest that the rest
allows, and so on. The last rest, shorter than the shortest delay topic, it waits in memory. All times are whole
milliseconds.

Invariants: a record never stays in a delay topic beyond its due time; each step takes it to a delay topic that is no
    longer than the
remaining time.

Source: exponential time buckets, as in the timing wheels of Varghese and Lauck (1987), with queues for wheels.
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
"""The topic for records that are due sooner than the shortest delay. It is read at once, and they wait in memory."""

FIRST_DELAYS = 8_000
"""The delays, in milliseconds, that a new scheduler creates topics for. Longer ones are added when a delay needs them.

A running relay notices a new delay topic within about five seconds, and the shortest of those keeps its first record
for 16.
"""

# A record leaves a delay topic a little before the delay topic's time is over, and can enter it a little late. So a
# delay of exactly one minute is made of 32, 16, 8 and 4 seconds, although each step takes some milliseconds.
_LEAVES_EARLIER = 100
MAY_ENTER_LATER = 50
_SHORTEST = range(500, 60_001)
MOST_LINES = 64


@dataclass(frozen=True, slots=True)
class Ladder:
    """The delay topics to choose from, each given by its time in milliseconds, ascending.

    >>> Ladder((1000, 2000, 4000)).line_for(3999)
    4000
    >>> list(Ladder((1000, 2000, 4000)).path(7000))
    [(0, 4000), (3900, 2000), (5800, 1000)]

    Raises `ConfigError` for delay topics that do not form a ladder.
    """

    lines: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.lines, tuple):
            raise ConfigError(f"The delays are {shown(self.lines)}; they must be a tuple of milliseconds.")
        if not 0 < len(self.lines) <= MOST_LINES:
            raise ConfigError(f"A ladder must have 1 to {MOST_LINES} delays, not {len(self.lines)}.")
        for line in self.lines:
            check_whole("A delay of a ladder", line, 1, " ms")
        if max(self.lines) > LATEST:
            raise ConfigError(f"A delay of a ladder is longer than {LATEST} ms. Leave it out.")
        if any(a >= b for a, b in pairwise(self.lines)):
            raise ConfigError(
                f"A ladder must have 1 to {MOST_LINES} delays, each longer than the one before, not {self}."
            )
        if self.lines[0] not in _SHORTEST:
            raise ConfigError(
                f"The shortest delay is {self.lines[0] / 1000:g} s; it must be from {_SHORTEST[0] / 1000:g} to "
                f"{_SHORTEST[-1] / 1000:g} s, because records due sooner wait in memory."
            )

    @classmethod
    def of_those(cls, lines: Iterable[int]) -> Self | None:
        """Return a ladder of these delays, in any order, with or without `MEMORY`, or None if they do not form one."""
        try:
            return cls(tuple(sorted(line for line in set(lines) if line != MEMORY)))
        except ConfigError:
            return None

    @classmethod
    def exponential(cls, first: float = 1.0, base: float = 2.0, count: int = 27) -> Self:
        """Return a ladder of `count` delays: the first is `first` seconds, and each is `base` times the one before.

        The default delay topics range from one second to two years.

        >>> Ladder.exponential(1, 4, 3)
        Ladder(lines=(1000, 4000, 16000))
        """
        if not is_number(base) or not base > 1:
            raise ConfigError(f"The base of a ladder must be over 1; it is {shown(base)}.")
        check_above_zero("The first delay of a ladder", first)
        check_whole("The count of a ladder's delays", count, 1)
        if count > MOST_LINES or (count - 1) * math.log(base) + math.log(first * 1000) > math.log(LATEST) + 1:
            raise ConfigError(
                f"A ladder of {count} delays, each {base} times as long as the one before, ends beyond {LATEST} ms or "
                f"has more than {MOST_LINES} delays. Use fewer delays."
            )
        return cls(tuple(round(first * 1000 * base**power) for power in range(count)))

    def line_for(self, remaining: int) -> int:
        """Return the delay of the topic for a record due in this many ms, or `MEMORY` if no delay is short enough."""
        index = bisect_right(self.lines, remaining + MAY_ENTER_LATER)
        return self.lines[index - 1] if index else MEMORY

    def up_to(self, delay: float) -> tuple[int, ...]:
        """Return the delay topics that delays up to this many milliseconds need; at least the shortest.

        >>> Ladder((1000, 2000, 4000)).up_to(3999)
        (1000, 2000, 4000)
        >>> Ladder((1000, 2000, 4000)).up_to(0)
        (1000,)
        """
        return self.lines[: max(1, bisect_right(self.lines, delay + MAY_ENTER_LATER))]

    def reach(self, lines: Iterable[int]) -> float:
        """Return the shortest delay that needs a delay topic other than these, or infinity if these are all.

        >>> Ladder((1000, 2000, 4000)).reach({1000, 4000})
        1950
        """
        missing = set(self.lines).difference(lines)
        return min(missing) - MAY_ENTER_LATER if missing else math.inf

    def path(self, delay: int) -> Iterator[tuple[int, int]]:
        """Yield the delay topics that a record goes through, each with its start in ms, if moving took no time."""
        for start, line, times in self._stays(delay):
            yield from ((start + time * time_in(line), line) for time in range(times))

    def step_at(self, delay: int, elapsed: int) -> tuple[int, int] | None:
        """Return the step of the path that a record is at after this many milliseconds, or None before the first.

        >>> Ladder((1000, 2000, 4000)).step_at(7000, 4500)
        (3900, 2000)
        """
        step = None
        for start, line, times in self._stays(delay):
            if start > elapsed:
                break
            step = start + min(times - 1, (elapsed - start) // time_in(line)) * time_in(line), line
        return step

    def _stays(self, delay: int) -> Iterator[tuple[int, int, int]]:
        """Yield the path as (first entry, delay, count), because a record may enter one delay topic a million times."""
        elapsed = 0
        for line in reversed(self.lines):
            beyond = delay - elapsed + MAY_ENTER_LATER - line
            if beyond >= 0:
                times = beyond // time_in(line) + 1
                yield elapsed, line, times
                elapsed += times * time_in(line)

    def writes(self, delay: int) -> int:
        """Return how often a record with this delay is written, including its delivery.

        >>> [Ladder.exponential().writes(seconds * 1000) for seconds in (1, 60, 3600, 86_400)]
        [2, 5, 5, 6]
        """
        return max(1, sum(times for _, _, times in self._stays(delay))) + 1

    def __str__(self) -> str:
        # Whole seconds are printed exactly, because users type these lengths again for --lines.
        return ", ".join(f"{line / 1000:.12g} s" for line in self.lines)


def time_in(line: int) -> int:
    """Return how long a record stays in a delay topic, in milliseconds."""
    return max(0, line - _LEAVES_EARLIER)


def fit(delays: Mapping[int, float], count: int, first: int = 1000) -> Ladder:
    """Find the ladder of at most `count` delay topics with the fewest moves for a histogram of delays in ms to weights.

    It is the best ladder in which each delay topic is a multiple of the one before. Also, each delay topic is either
    `first` times a product of 2, 3 and 5, or one of the delays. Dynamic programming finds it, because the moves between
    two neighbours then depend on no other delay topic.

    >>> str(fit({3_600_000: 10, 60_000: 5}, 3))
    '1 s, 60 s, 3600 s'
    """
    if count < 1 or not delays or any(delay < 0 or not 0 <= weight < math.inf for delay, weight in delays.items()):
        raise ConfigError("Fitting needs a count of at least 1 and at least one delay; none may be negative.")
    candidates = _candidates(delays, first)
    # The best chain from `first` up to each candidate: its moves below that candidate, and its delay topics.
    chains: dict[int, tuple[float, tuple[int, ...]]] = {first: (0.0, (first,))}
    best: tuple[float, tuple[int, ...]] = (_moves(delays, first, None), (first,))
    for _ in range(count - 1):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for top, (moves, lines) in chains.items():
            for line in candidates:
                if line > top and line % top == 0:
                    chain = (moves + _moves(delays, top, line), (*lines, line))
                    longer[line] = min(chain, longer.get(line, chain))
        chains = longer
        best = min([best, *((moves + _moves(delays, top, None), lines) for top, (moves, lines) in chains.items())])
    return Ladder(best[1])


def rounded(delay: int) -> int:
    """Round a delay to about one percent, so that delays of five minutes are equal although some ms apart.

    >>> rounded(300_004), rounded(86_399_990)
    (300000, 86400000)
    """
    step = max(1000, int(10 ** (len(str(delay)) - 3)))
    return round(delay / step) * step


def writes_per_record(ladder: Ladder, delays: Mapping[int, float]) -> float:
    """Return how often records with these delays are written on average, including their delivery."""
    return sum(ladder.writes(delay) * weight for delay, weight in delays.items()) / sum(delays.values())


def _moves(delays: Mapping[int, float], line: int, next_longer: int | None) -> float:
    """Return how often records go through a delay topic, given the next longer one."""
    left = delays.items() if next_longer is None else ((delay % next_longer, n) for delay, n in delays.items())
    return sum(weight * (delay // line) for delay, weight in left)


def _candidates(delays: Mapping[int, float], first: int) -> list[int]:
    longest = max(delays) // first
    smooth = {1}
    for prime in (2, 3, 5):
        powers = [prime**power for power in range(longest.bit_length())]
        smooth = {number * power for number in smooth for power in powers if number * power <= longest}
    return sorted({first * number for number in smooth} | {delay for delay in delays if delay % first == 0 and delay})

"""Fitting the delay topics: which delay topics pay off for the recent delays, and when to change to them.

Each delay topic costs Kafka resources, and saves writes. Its price is a tenth of a write per record. So the cost of a
ladder is
how often a record is written on average, plus a tenth for each delay topic.

Invariants:
- The shortest delay topic stays, because it bounds what waits in memory.
- There are never more delay topics than allowed, unless there were more already; then none is added.
- A change that nothing forces lowers the cost for the delays that it was chosen for. So while delays stay the same, the
  delay topics settle, and never switch back and forth.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from headway.core.delay.ladder import MAY_ENTER_LATER, Ladder, time_in
from headway.core.untrusted import LATEST

PRICE = 0.1
"""How many writes per record a delay topic must save."""

GAIN = 0.35
"""How much cost a change must save. It exceeds the price of some delay topics, so that small swings change nothing."""

URGENT_GAIN = 2.0
"""How much cost a change must save to be made although the last one has not settled yet."""

_MOST_POPULAR = 16


@dataclass(frozen=True)
class LinesNow:
    """The present delay topics, in milliseconds each.

    Args:
        ladder: The delays of the existing delay topics that are in use, ascending.
        with_topics: The delays of all existing delay topics, including those that are only being emptied.
        barred: Delay topics that must not be used now, because their topics are about to be deleted.
        idle: Delay topics to which nothing has been written for a long time.
    """

    ladder: tuple[int, ...]
    with_topics: frozenset[int]
    barred: frozenset[int] = field(default_factory=frozenset)
    idle: frozenset[int] = field(default_factory=frozenset)


def fitted(now: LinesNow, delays: Mapping[int, float], most: int, *, settled: bool = True) -> tuple[int, ...]:
    """Return the delay topics to use for a histogram of delays: those in use, unless others pay off.

    Args:
        now: The present delay topics.
        delays: Delays in milliseconds, with weights.
        most: The most delay topics that may exist.
        settled: True if the last change was long ago. Otherwise, only a large gain changes anything.
    """
    search = _LineSearch(now, delays, most)
    before = search.trimmed(now.ladder)
    if before != now.ladder:
        return search.best(before) if delays else before
    if not delays:
        return before
    best = search.best(before)
    if search.cost(before) - search.cost(best) >= (GAIN if settled else URGENT_GAIN):
        return best
    return search.without_idle(before) if settled else before


class _LineSearch:
    """A stepwise search for delay topics that cost less."""

    def __init__(self, now: LinesNow, delays: Mapping[int, float], most: int) -> None:
        self._now = now
        self._most = most
        self._total = sum(delays.values())
        self._delays = list(delays.items())
        self._costs: dict[tuple[int, ...], float] = {}
        self._candidates = sorted(_candidates(now, delays))

    def cost(self, lines: tuple[int, ...]) -> float:
        """Return the cost of delay topics: the writes per record, plus the price of the lines."""
        known = self._costs.get(lines)
        if known is None:
            known = self._costs[lines] = self._writes(lines) + PRICE * len(lines)
        return known

    def _writes(self, lines: tuple[int, ...]) -> float:
        """Return the moves per record, as `Ladder.writes` counts them."""
        if not self._total:
            return 0.0
        stays = [(line - MAY_ENTER_LATER, time_in(line)) for line in reversed(lines)]
        moves = 0.0
        for delay, weight in self._delays:
            left = delay
            for enters, stay in stays:
                if left >= enters:
                    times = (left - enters) // stay + 1
                    moves += weight * times
                    left -= times * stay
        return moves / self._total

    def trimmed(self, lines: tuple[int, ...]) -> tuple[int, ...]:
        """Drop the barred delay topics, and the least useful ones until there are no more than allowed."""
        lines = tuple(line for line in lines if line == lines[0] or line not in self._now.barred)
        while len(lines) > self._most:
            lines = min(self._fewer(lines), key=self.cost)
        return lines

    def best(self, lines: tuple[int, ...]) -> tuple[int, ...]:
        """Return delay topics that cannot be improved by adding, dropping or replacing one."""
        while True:
            step = min(self._steps(lines), key=self.cost, default=lines)
            if self.cost(step) >= self.cost(lines) - 1e-9:
                step = min(self._replaced(lines), key=self.cost, default=lines)
            if self.cost(step) >= self.cost(lines) - 1e-9:
                return lines
            lines = step

    def without_idle(self, lines: tuple[int, ...]) -> tuple[int, ...]:
        """Return the delay topics without those that are unused and save nothing."""
        for line in self._now.idle.intersection(lines[1:]):
            fewer = tuple(each for each in lines if each != line)
            if self.cost(fewer) < self.cost(lines):
                lines = fewer
        return lines

    def _steps(self, lines: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield from self._fewer(lines)
        yield from self._more(lines)

    def _fewer(self, lines: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        return (lines[:place] + lines[place + 1 :] for place in range(1, len(lines)))

    def _more(self, lines: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        longer = (tuple(sorted((*lines, line))) for line in self._candidates if line not in lines)
        return (each for each in longer if self._is_allowed(each))

    def _replaced(self, lines: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        return (each for fewer in self._fewer(lines) for each in self._more(fewer) if each != lines)

    def _is_allowed(self, lines: Collection[int]) -> bool:
        topics, now = self._now.with_topics.union(lines), self._now.with_topics
        return len(lines) <= self._most and (len(topics) <= self._most or topics == now)


def _candidates(now: LinesNow, delays: Mapping[int, float]) -> set[int]:
    """Return the delays to choose from: existing ones, powers of two of the shortest, and the most frequent delays."""
    shortest, longest = now.ladder[0], max(delays, default=0)
    popular = sorted(delays, key=delays.__getitem__, reverse=True)[:_MOST_POPULAR]
    doubled = {line for line in Ladder.exponential(shortest / 1000).lines if line <= longest + MAY_ENTER_LATER}
    # A record whose delay equals the delay topic's time does enter the delay topic.
    return {
        line for line in {*now.with_topics, *doubled, *popular} if shortest < line <= LATEST and line not in now.barred
    }

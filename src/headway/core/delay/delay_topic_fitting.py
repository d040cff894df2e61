"""Fits the ladder to recent records: decides which delay topics are worth their cost, and when to change the ladder.

A delay topic saves writes, but is one more topic for Kafka. The price of a delay topic is set to a tenth of a write per
record. So the cost of a ladder is the average number of writes per record, plus a tenth for each delay topic.

Invariants:
- The shortest delay is never dropped, because it bounds how many records wait in memory.
- No change makes the number of delay topics exceed the allowed number. If there are already too many, none is added.
- Unless the limit forces a change, the change lowers the cost for the delays that it was chosen for. So if records keep
  the same delays, the ladder settles and never switches back and forth.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from headway.core.delay.ladder import MAY_ENTER_LATER, Ladder, time_in
from headway.core.untrusted import LATEST

PRICE = 0.1
"""The price of a delay topic: the number of writes per record that it must save."""

GAIN = 0.35
"""A change must lower the cost by this much.

This is more than the price of three delay topics, so that small fluctuations change nothing.
"""

URGENT_GAIN = 2.0
"""A change must lower the cost by this much if the previous change has not settled yet."""

_MOST_POPULAR = 16


@dataclass(frozen=True)
class DelayTopicsNow:
    """The present delay topics, each identified by its delay in milliseconds.

    Args:
        ladder: The existing delay topics that are in use, in ascending order.
        with_topics: All existing delay topics, including those that are only being emptied.
        barred: Delays that must not be used now, because their topics are about to be deleted.
        idle: Delay topics to which nothing has been written for a long time.
    """

    ladder: tuple[int, ...]
    with_topics: frozenset[int]
    barred: frozenset[int] = field(default_factory=frozenset)
    idle: frozenset[int] = field(default_factory=frozenset)


def fitted(now: DelayTopicsNow, delays: Mapping[int, float], most: int, *, settled: bool = True) -> tuple[int, ...]:
    """Return the delays that the ladder should have: the present ones, unless a change pays off or is forced.

    Args:
        now: The present delay topics.
        delays: The delays of recent records in milliseconds, with weights.
        most: The highest allowed number of delay topics.
        settled: True if the last change was long ago. Otherwise the ladder is changed only for a large gain.
    """
    search = _DelayTopicSearch(now, delays, most)
    before = search.trimmed(now.ladder)
    if before != now.ladder:
        return search.best(before) if delays else before
    if not delays:
        return before
    best = search.best(before)
    if search.cost(before) - search.cost(best) >= (GAIN if settled else URGENT_GAIN):
        return best
    return search.without_idle(before) if settled else before


class _DelayTopicSearch:
    """Searches for a ladder with a lower cost by changing one delay at a time.

    In this class, `delay_topics` are the delays of a ladder.
    """

    def __init__(self, now: DelayTopicsNow, delays: Mapping[int, float], most: int) -> None:
        self._now = now
        self._most = most
        self._total = sum(delays.values())
        self._delays = list(delays.items())
        self._costs: dict[tuple[int, ...], float] = {}
        self._candidates = sorted(_candidates(now, delays))

    def cost(self, delay_topics: tuple[int, ...]) -> float:
        """Return the cost of a ladder: the average moves per record, plus the price of its delay topics."""
        known = self._costs.get(delay_topics)
        if known is None:
            known = self._costs[delay_topics] = self._writes(delay_topics) + PRICE * len(delay_topics)
        return known

    def _writes(self, delay_topics: tuple[int, ...]) -> float:
        """Return the average number of moves per record, counted as in `Ladder.writes` but without the delivery."""
        if not self._total:
            return 0.0
        stays = [(delay_topic - MAY_ENTER_LATER, time_in(delay_topic)) for delay_topic in reversed(delay_topics)]
        moves = 0.0
        for delay, weight in self._delays:
            left = delay
            for enters, stay in stays:
                if left >= enters:
                    times = (left - enters) // stay + 1
                    moves += weight * times
                    left -= times * stay
        return moves / self._total

    def trimmed(self, delay_topics: tuple[int, ...]) -> tuple[int, ...]:
        """Drop barred delays, and then the least useful delays until the number of delays is allowed.

        The shortest delay is never dropped.
        """
        delay_topics = tuple(
            delay_topic
            for delay_topic in delay_topics
            if delay_topic == delay_topics[0] or delay_topic not in self._now.barred
        )
        while len(delay_topics) > self._most:
            delay_topics = min(self._fewer(delay_topics), key=self.cost)
        return delay_topics

    def best(self, delay_topics: tuple[int, ...]) -> tuple[int, ...]:
        """Return a ladder whose cost cannot be lowered by adding, dropping or replacing one delay."""
        while True:
            step = min(self._steps(delay_topics), key=self.cost, default=delay_topics)
            if self.cost(step) >= self.cost(delay_topics) - 1e-9:
                step = min(self._replaced(delay_topics), key=self.cost, default=delay_topics)
            if self.cost(step) >= self.cost(delay_topics) - 1e-9:
                return delay_topics
            delay_topics = step

    def without_idle(self, delay_topics: tuple[int, ...]) -> tuple[int, ...]:
        """Drop idle delays that save fewer writes than they cost. The shortest delay is never dropped."""
        for delay_topic in self._now.idle.intersection(delay_topics[1:]):
            fewer = tuple(each for each in delay_topics if each != delay_topic)
            if self.cost(fewer) < self.cost(delay_topics):
                delay_topics = fewer
        return delay_topics

    def _steps(self, delay_topics: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield from self._fewer(delay_topics)
        yield from self._more(delay_topics)

    def _fewer(self, delay_topics: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        return (delay_topics[:place] + delay_topics[place + 1 :] for place in range(1, len(delay_topics)))

    def _more(self, delay_topics: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        longer = (
            tuple(sorted((*delay_topics, delay_topic)))
            for delay_topic in self._candidates
            if delay_topic not in delay_topics
        )
        return (each for each in longer if self._is_allowed(each))

    def _replaced(self, delay_topics: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        return (each for fewer in self._fewer(delay_topics) for each in self._more(fewer) if each != delay_topics)

    def _is_allowed(self, delay_topics: Collection[int]) -> bool:
        topics, now = self._now.with_topics.union(delay_topics), self._now.with_topics
        return len(delay_topics) <= self._most and (len(topics) <= self._most or topics == now)


def _candidates(now: DelayTopicsNow, delays: Mapping[int, float]) -> set[int]:
    """Return the delays to choose from.

    These are the delays that have topics, the shortest delay times powers of two, and the most frequent delays of
    records.
    """
    shortest, longest = now.ladder[0], max(delays, default=0)
    popular = sorted(delays, key=delays.__getitem__, reverse=True)[:_MOST_POPULAR]
    doubled = {
        delay_topic
        for delay_topic in Ladder.exponential(shortest / 1000).delays
        if delay_topic <= longest + MAY_ENTER_LATER
    }
    # The records' most frequent delays are candidates too, because a record can enter a topic whose delay is exactly
    # the record's.
    return {
        delay_topic
        for delay_topic in {*now.with_topics, *doubled, *popular}
        if shortest < delay_topic <= LATEST and delay_topic not in now.barred
    }

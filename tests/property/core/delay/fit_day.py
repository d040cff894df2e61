"""A simulated day of changing delays, with delay topics that fit themselves beside 27 fixed ones.

`python -m tests.property.core.delay.fit_day` prints the figures of `docs/design/delay.md`.
"""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from headway.core.delay.delay_topic_fitting import DelayTopicsNow, fitted
from headway.core.delay.delay_topic_retirement import FitState, Seen, Waits, advanced, idle
from headway.core.delay.ladder import MEMORY, Ladder, time_in
from headway.core.delay.recent_delays import RecentDelays

HOUR = 3_600_000
EVALUATE_EVERY = 300_000
SETTLES = 900_000
MOST = 16
WAITS = Waits(unused=6 * HOUR)
OTHER_TOPICS = 6  # the memory topic, commands, answers, state, dead letters, ladder
_A_MOVE_TAKES = (5, 80)
_BEGINNING_ANEW_TAKES = 300


def delays_of_the_day(at: int, chance: random.Random) -> int:
    """A delay in milliseconds as it is usual at this time of the day."""
    hour = at // HOUR % 24
    if hour < 6:
        return chance.choice([30_000, 30_000, chance.randrange(500, 8000)])
    if hour < 9:
        return chance.choice([300_000, HOUR])
    if hour < 17:
        return chance.choice([30_000, 300_000, 900_000, 24 * HOUR])
    if hour < 20:
        return chance.randrange(HOUR, 3 * HOUR)
    return chance.choice([7 * 24 * HOUR, 30 * 24 * HOUR, 30_000])


@dataclass
class Day:
    """A day: topics and delay topics in use by hour; and the writes, lateness and changes of all records."""

    topics: list[int] = field(default_factory=list)
    delay_topics: list[tuple[int, ...]] = field(default_factory=list)
    written: list[tuple[int, int]] = field(default_factory=list)  # of each hour: records that came, and writes
    lateness: list[int] = field(default_factory=list)
    changes: list[tuple[int, ...]] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    lost: int = 0

    @property
    def writes_per_record(self) -> float:
        return sum(writes for _, writes in self.written) / sum(records for records, _ in self.written)


class World:
    """Delay topics with records, and the decisions about them, from one time to the next."""

    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder
        self.day = Day()
        self.topics = set(ladder.delays)
        self.inside = dict.fromkeys(ladder.delays, 0)
        self.ends = dict.fromkeys(ladder.delays, 0)
        self.state = FitState()
        self.recent = RecentDelays()
        self.begins_anew_until = 0

    def evaluate(self, now: int) -> None:
        seen = Seen(
            self.ladder.delays, {delay_topic: self.ends[delay_topic] for delay_topic in self.topics}, self.empty
        )
        self.state, to_delete = advanced(self.state, seen, WAITS, now)
        for delay_topic in to_delete:
            assert not self.inside[delay_topic]
            self.topics.discard(delay_topic)
            self.day.deleted.append(delay_topic)
            del self.ends[delay_topic]
        delay_topics_now = DelayTopicsNow(
            self.ladder.delays,
            frozenset(self.topics),
            self.state.retiring,
            idle(self.state, WAITS, now),
        )
        settled = now - self.state.changed >= SETTLES
        delay_topics = fitted(delay_topics_now, self.recent.weights(now), MOST, settled=settled)
        if delay_topics == self.ladder.delays:
            return
        for delay_topic in set(delay_topics) - self.topics:
            self.topics.add(delay_topic)
            self.day.made.append(delay_topic)
            self.inside.setdefault(delay_topic, 0)
            self.ends[delay_topic] = 0
        self.ladder = Ladder(delay_topics)
        self.state = FitState(now, self.state.delay_topics)
        self.day.changes.append(delay_topics)
        self.begins_anew_until = now + _BEGINNING_ANEW_TAKES

    @property
    def empty(self) -> set[int]:
        return {delay_topic for delay_topic in self.topics if not self.inside[delay_topic]}


def simulate(hours: int, *, fits: bool, seed: int = 7, every: int = 2000) -> Day:
    """Run for so many hours, with a record about each `every` milliseconds."""
    chance = random.Random(seed)
    world = World(Ladder((1000, 2000, 4000, 8000)) if fits else Ladder.exponential())
    day, order = world.day, count()
    events: list[tuple[int, int, int, int]] = []  # (when, order, due, the delay topic that it leaves; -1: new)
    evaluated = 0
    for hour in range(hours):
        for at in _arrivals(hour, every, chance):
            heapq.heappush(events, (at, next(order), at + delays_of_the_day(at, chance), -1))
        day.written.append((len(events), 0))
        came, writes = 0, 0
        while events and events[0][0] < (hour + 1) * HOUR:
            now, _, due, delay_topic = heapq.heappop(events)
            while fits and evaluated + EVALUATE_EVERY <= now:
                evaluated += EVALUATE_EVERY
                world.evaluate(evaluated)
            if delay_topic == -1:
                came += 1
                world.recent.add([due - now], now)
            elif delay_topic != MEMORY:
                world.inside[delay_topic] -= 1
                day.lost += delay_topic not in world.topics
                now = max(now, world.begins_anew_until if now >= world.state.changed else 0)
            if delay_topic == MEMORY:
                day.lateness.append(now - due)
                writes += 1
                continue
            next_delay_topic = world.ladder.delay_for(due - now)
            writes += 1
            written = now + chance.randrange(*_A_MOVE_TAKES)
            if next_delay_topic == MEMORY:
                heapq.heappush(events, (max(written, due), next(order), due, MEMORY))
                continue
            world.inside[next_delay_topic] += 1
            world.ends[next_delay_topic] += 1
            heapq.heappush(events, (written + time_in(next_delay_topic), next(order), due, next_delay_topic))
        day.written[-1] = came, writes
        day.topics.append(len(world.topics) + OTHER_TOPICS)
        day.delay_topics.append(world.ladder.delays)
    return day


def _arrivals(hour: int, every: int, chance: random.Random) -> Iterator[int]:
    at = hour * HOUR
    while (at := at + 1 + int(chance.expovariate(1 / every))) < (hour + 1) * HOUR:
        yield at


def main() -> None:
    fitting, fixed = (simulate(24, fits=fits) for fits in (True, False))
    print("| hour | topics | delay topics in use | writes a record | with 27 delay topics |\n|---|---|---|---|---|")
    for hour in (*range(0, 24, 2), 23):
        writes = [day.written[hour][1] / day.written[hour][0] for day in (fitting, fixed)]
        print(
            f"| {hour} | {fitting.topics[hour]} | {Ladder(fitting.delay_topics[hour])} | "
            f"{writes[0]:.1f} | {writes[1]:.1f} |"
        )
    for name, day in (("fitting", fitting), ("27 delay topics", fixed)):
        late = sorted(day.lateness)
        print(
            f"{name}: {day.writes_per_record:.2f} writes a record, {max(day.topics)} topics at most, "
            f"late by {late[len(late) // 2]} ms (median), {late[-1]} ms (most); {len(day.changes)} changes, "
            f"{len(day.made)} delay topics made, {len(day.deleted)} deleted"
        )


if __name__ == "__main__":
    main()

"""How much of the capacity do the policies use, and what does it cost the levels?

A simulation, without a broker and without threads: the policies of `headway.core` as the consumer drives them (ask
what to fetch, fetch it, split it), one poll after the other, over arrivals from a fixed seed. Beside them the
Java priority client's poll, which is the baseline for `capacity_burst`, and `strict` without its ageing.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from _harness import Options, Report, main

from headway.core.levels.capacity import BurstWindow, burst_shares, exponential_shares
from headway.core.levels.fair import Fair
from headway.core.levels.policies import CapacityBurst, Policy, Strict
from headway.experiments.poll_simulation import PolledLevels

QUESTION = "How much of the capacity do the policies use, and what does it cost the levels?"
LEVELS = 3
CAPACITY = 50
POLL_S = 0.01
MAX_WAIT_S = 5.0
SHARES = exponential_shares(LEVELS, CAPACITY)

Arrivals = Callable[[int, random.Random], list[int]]
"""(number of the poll, chance) -> how many records arrive at each level before it, lowest first."""

POLICIES: dict[str, Callable[[], Policy]] = {
    "fair": lambda: Fair(SHARES),
    "strict": lambda: Strict(CAPACITY, MAX_WAIT_S),
    "capacity_burst": lambda: CapacityBurst(SHARES),
}

FLOOD = 2 * CAPACITY


def _about(mean: float, chance: random.Random) -> int:
    """A whole number that is `mean` on average, and varies."""
    return int(chance.uniform(0, 2 * mean) + chance.random())


SCENARIOS: dict[str, Arrivals] = {
    "all levels flooded": lambda poll, chance: [FLOOD] * 3,
    "only the top flooded": lambda poll, chance: [0, 0, FLOOD],
    "only the bottom flooded": lambda poll, chance: [FLOOD, 0, 0],
    "top steady at half its share": lambda poll, chance: [FLOOD, 0, 14],
    "top trickles": lambda poll, chance: [FLOOD, 0, _about(2, chance)],
    "top and middle trickle": lambda poll, chance: [FLOOD, _about(3, chance), _about(2, chance)],
    "top a wave in 20 polls": lambda poll, chance: [FLOOD, 0, 200 * (poll % 20 == 0)],
    "middle bursts": lambda poll, chance: [FLOOD, 60 * (chance.random() < 0.1), _about(5, chance)],
    "top at 80 % of the capacity": lambda poll, chance: [FLOOD, 0, _about(0.8 * CAPACITY, chance)],
    "all at 95 % of the capacity": lambda poll, chance: [_about(0.95 * share, chance) for share in SHARES],
}


@dataclass(slots=True)
class Outcome:
    """What one system did with the arrivals of one scenario."""

    taken: list[list[int]] = field(default_factory=list)  # per poll, by level
    useful: int = 0  # what could have been taken, over all polls
    overshoot: int = 0  # the most that a poll returned above the capacity
    longest_wait: float = 0.0  # of a record of the lowest level, from its fetch

    def note(self, taken: list[int], waiting: int) -> None:
        """Take a poll into account, before which so many records waited."""
        self.taken.append(taken)
        self.useful += min(CAPACITY, waiting)
        self.overshoot = max(self.overshoot, sum(taken) - CAPACITY)

    @property
    def used(self) -> float:
        """The share of the capacity that was used while any level had records; what overshoots does not count."""
        return sum(min(CAPACITY, sum(taken)) for taken in self.taken) / self.useful


class Original:
    """The Java priority client's poll, in its own arithmetic: fixed shares, and bursts by the history of six polls.

    It asks each level, from the top, for up to its share of this poll, and returns all of it: what comes to a level
    whose share was lent to a burst is too much.
    """

    def __init__(self) -> None:
        self.shares = [CAPACITY * 2**level // (2**LEVELS - 1) for level in range(LEVELS)]
        self.shares[-1] += CAPACITY - sum(self.shares)
        self.history: list[list[int]] = [[] for _ in range(LEVELS)]

    def next_shares(self) -> list[int]:
        """The shares of the next poll."""
        shares = list(self.shares)
        for level in reversed(range(LEVELS)):
            if sum(count >= self.shares[level] for count in self.history[level]) >= 4:
                others = [other for other in range(LEVELS) if other != level]
                shares[level] += sum(max(0, self.shares[i] - max(self.history[i], default=0)) for i in others)
                break
        return shares

    def poll(self, backlog: Sequence[int]) -> list[int]:
        """How many records of each level it returns."""
        taken = [min(share, waiting) for share, waiting in zip(self.next_shares(), backlog, strict=True)]
        for history, count in zip(self.history, taken, strict=True):
            history.append(count)
            del history[:-6]
        return taken


def simulate_original(arrivals: Sequence[list[int]]) -> tuple[Outcome, int]:
    """The baseline, and in how many polls `burst_shares` would have given other shares for the same history."""
    original, outcome, differing = Original(), Outcome(), 0
    windows = [BurstWindow() for _ in range(LEVELS)]
    backlog = [0] * LEVELS
    for arrived in arrivals:
        backlog = [sum(pair) for pair in zip(backlog, arrived, strict=True)]
        differing += burst_shares(SHARES, windows) != original.next_shares()
        taken = original.poll(backlog)
        outcome.note(taken, sum(backlog))
        for window, count in zip(windows, taken, strict=True):
            window.add(count)
        backlog = [waiting - count for waiting, count in zip(backlog, taken, strict=True)]
    return outcome, differing


def simulate(policy: Policy, arrivals: Sequence[list[int]]) -> Outcome:
    """A policy, driven as the consumer drives it."""
    outcome, levels = Outcome(), PolledLevels(policy, LEVELS, CAPACITY)
    for poll, arrived in enumerate(arrivals):
        now = poll * POLL_S
        levels.arrive(arrived)
        waiting = levels.waiting
        fetched_at = levels.poll(now)
        outcome.note([len(times) for times in fetched_at], waiting)
        oldest = fetched_at[0][0] if fetched_at[0] else levels.buffers[0].oldest()
        outcome.longest_wait = max(outcome.longest_wait, now - (now if oldest is None else oldest))
    return outcome


def measure(report: Report, options: Options) -> None:
    """Each scenario by each policy, and then the waits under `strict`."""
    polls = 5_000 if options.quick else 50_000
    scenarios = {name: _arrivals(name, polls) for name in SCENARIOS}
    for system, policy in POLICIES.items():
        _measure_policy(report, system, {name: simulate(policy(), scenarios[name]) for name in scenarios})
    _compare_with_original(report, scenarios)
    _low_records_wait(report, polls)


def _arrivals(name: str, polls: int) -> list[list[int]]:
    chance = random.Random(name)
    return [SCENARIOS[name](poll, chance) for poll in range(polls)]


def _measure_policy(report: Report, system: str, outcomes: dict[str, Outcome]) -> None:
    used = [report.add(name, system, outcome.used, "of the capacity") for name, outcome in outcomes.items()]
    if system != "capacity_burst":
        report.at_least(f"{system}: capacity used, the least of all cases", min(used), 0.99)
    overshoot = max(outcome.overshoot for outcome in outcomes.values())
    report.at_most(f"{system}: records over max.poll.records, the most of all polls", overshoot, 0)


def _compare_with_original(report: Report, scenarios: dict[str, list[list[int]]]) -> None:
    """With the same history the shares are the same; what is taken differs by what the original returns too much."""
    differing = apart = 0
    for name, arrivals in scenarios.items():
        original, other_shares = simulate_original(arrivals)
        report.add(name, "Java priority client", original.used, "of the capacity")
        report.add(name, "Java priority client", original.overshoot, "records too many")
        differing += other_shares
        apart = max(apart, _apart(simulate(CapacityBurst(SHARES), arrivals), original))
    report.at_most("capacity_burst: polls with other shares than the Java client's, of all cases", differing, 0)
    report.at_most("capacity_burst: records off the Java client's, beyond what it returned too much", apart, 0)


def _low_records_wait(report: Report, polls: int) -> None:
    """How long a record of the lowest level, once fetched, waits while the highest alone could use all."""
    case = "longest wait of a low record under flood"
    arrivals = [[FLOOD] * LEVELS] * polls
    never_aged = Strict(CAPACITY, math.inf)
    report.add(case, "strict without ageing", simulate(never_aged, arrivals).longest_wait, "s")
    for system, policy in POLICIES.items():
        wait = report.add(case, system, simulate(policy(), arrivals).longest_wait, "s")
        if system == "strict":
            report.at_most(f"strict: {case}", wait, MAX_WAIT_S + 2 * POLL_S)


def _apart(ours: Outcome, original: Outcome) -> int:
    """By how many records a level is ever behind or ahead, beyond what the original returned too much until then."""
    behind, too_much, greatest = [0] * LEVELS, 0, 0
    for mine, theirs in zip(ours.taken, original.taken, strict=True):
        behind = [before + their - my for before, their, my in zip(behind, theirs, mine, strict=True)]
        too_much += max(0, sum(theirs) - CAPACITY)
        greatest = max(greatest, max(map(abs, behind)) - too_much)
    return greatest


if __name__ == "__main__":
    main(QUESTION, measure)

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headway.core.levels.fair import Fair
from headway.core.levels.level_buffer import LevelBuffer
from headway.core.levels.policies import CapacityBurst, Policy, Strict

shares_of_powers = st.lists(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), min_size=1, max_size=5)


class NaiveFair:
    """Earliest virtual deadline first, one pick at a time, in exact fractions."""

    def __init__(self, shares: list[int]) -> None:
        self.shares = shares
        self.starts = [Fraction(0)] * len(shares)
        self.idle = [True] * len(shares)
        self.now = Fraction(0)

    def pick(self, waiting: list[int], limit: int) -> list[int]:
        if sum(waiting) <= limit:
            self.__init__(self.shares)  # type: ignore[misc]
            return waiting
        left, picks = list(waiting), [0] * len(waiting)
        for level, count in enumerate(left):
            if count and self.idle[level]:
                self.starts[level] = max(self.starts[level], self.now)
                self.idle[level] = False
        for _ in range(limit):
            ready = [level for level, count in enumerate(left) if count]
            level = min(ready, key=lambda i: (self.starts[i] + Fraction(1, self.shares[i]), -i))
            self.now = max(self.now, self.starts[level])
            self.starts[level] += Fraction(1, self.shares[level])
            left[level] -= 1
            picks[level] += 1
        for level, count in enumerate(left):
            self.idle[level] = count == 0
        return picks


@given(shares_of_powers, st.data())
def test_fair_picks_what_a_naive_earliest_deadline_model_picks_one_by_one(
    shares: list[int], data: st.DataObject
) -> None:
    fair, naive = Fair(shares), NaiveFair(shares)
    backlogs = st.lists(st.integers(0, 40), min_size=len(shares), max_size=len(shares))
    for waiting, limit in data.draw(st.lists(st.tuples(backlogs, st.integers(1, 30)), max_size=8)):
        assert fair.pick(waiting, limit) == naive.pick(waiting, limit)


def buffers_of(counts: list[int], arrived: float = 0.0) -> list[LevelBuffer[int]]:
    buffers: list[LevelBuffer[int]] = [LevelBuffer() for _ in counts]
    for buffer, count in zip(buffers, counts, strict=True):
        buffer.put(list(range(count)), arrived)
    return buffers


def policies(levels: int) -> list[Policy]:
    shares = [2**level for level in range(levels)]
    return [CapacityBurst(shares), Fair(shares), Strict(sum(shares), max_wait=5.0)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(1, 60), st.floats(0, 10))
def test_every_policy_conserves_work_and_never_overshoots(waiting: list[int], limit: int, now: float) -> None:
    for policy in policies(len(waiting)):
        split = policy.split(buffers_of(waiting), limit, now)
        assert sum(split) == min(limit, sum(waiting))
        assert all(0 <= taken <= count for taken, count in zip(split, waiting, strict=True))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5))
def test_fair_and_strict_fill_each_level_up_to_the_whole_capacity(waiting: list[int]) -> None:
    capacity = 2 ** len(waiting) - 1
    for policy in policies(len(waiting))[1:]:
        assert policy.demand(buffers_of(waiting)) == [max(0, capacity - count) for count in waiting]


@given(shares_of_powers, st.integers(1, 20))
def test_fair_gives_levels_that_always_have_work_their_shares_to_within_one_record(
    shares: list[int], rounds: int
) -> None:
    fair = Fair(shares)
    taken = [0] * len(shares)
    limit = 7
    for _ in range(rounds):
        picks = fair.pick([limit + 1] * len(shares), limit)
        taken = [total + pick for total, pick in zip(taken, picks, strict=True)]
    ideal = [rounds * limit * share / sum(shares) for share in shares]
    assert all(abs(got - due) <= len(shares) for got, due in zip(taken, ideal, strict=True))

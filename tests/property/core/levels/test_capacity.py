from hypothesis import given
from hypothesis import strategies as st

from headway.core.levels.capacity import (
    BurstWindow,
    burst_shares,
    distribute,
    exponential_shares,
    linear_shares,
    weighted_shares,
)

levels_and_spare = st.tuples(st.integers(1, 9), st.integers(0, 10_000))
counts = st.lists(st.integers(0, 60), max_size=10)


@given(levels_and_spare)
def test_exponential_shares_sum_exactly_and_never_favour_a_lower_level(given: tuple[int, int]) -> None:
    levels, spare = given
    shares = distribute(exponential_shares, levels, 2**levels - 1 + spare)
    assert sum(shares) == 2**levels - 1 + spare
    assert shares == sorted(shares)


@given(levels_and_spare)
def test_linear_shares_sum_exactly_and_never_favour_a_lower_level(given: tuple[int, int]) -> None:
    levels, spare = given
    capacity = levels * (levels + 1) // 2 + spare
    shares = distribute(linear_shares, levels, capacity)
    assert sum(shares) == capacity
    assert shares == sorted(shares)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 1000))
def test_weighted_shares_sum_exactly_and_differ_from_the_weights_only_by_the_remainder(
    weights: list[int], spare: int
) -> None:
    capacity = sum(weights) + spare
    shares = distribute(weighted_shares(*weights), len(weights), capacity)
    assert sum(shares) == capacity
    assert all(
        share * sum(weights) <= weight * capacity < (share + 1) * sum(weights)
        for share, weight in list(zip(shares, weights, strict=True))[:-1]
    )


class NaiveWindow:
    """The reference's window, from its description, with a plain list."""

    def __init__(self, history: list[int], share: int) -> None:
        last = history[-6:]
        self.eligible = len([count for count in last if count >= share]) >= 4
        self.unused = max(0, share - max(last, default=0))


@given(st.lists(counts, min_size=1, max_size=5))
def test_bursts_equal_a_naive_model(histories: list[list[int]]) -> None:
    shares = exponential_shares(len(histories), 50)
    windows = [BurstWindow() for _ in histories]
    for window, history in zip(windows, histories, strict=True):
        for count in history:
            window.add(count)

    naive = [NaiveWindow(history, share) for history, share in zip(histories, shares, strict=True)]
    expected = list(shares)
    for level in reversed(range(len(shares))):
        if naive[level].eligible:
            expected[level] += sum(other.unused for i, other in enumerate(naive) if i != level)
            break

    assert burst_shares(shares, windows) == expected


@given(st.lists(counts, min_size=2, max_size=5))
def test_a_burst_never_takes_from_an_eligible_higher_level(histories: list[list[int]]) -> None:
    shares = exponential_shares(len(histories), 50)
    windows = [BurstWindow() for _ in histories]
    for window, history in zip(windows, histories, strict=True):
        for count in history:
            window.add(count)
    burst = burst_shares(shares, windows)
    eligible = [level for level in range(len(shares)) if windows[level].may_burst(shares[level])]
    assert all(burst[level] == shares[level] for level in range(len(shares)) if level not in eligible[-1:])

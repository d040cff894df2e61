import json
from pathlib import Path
from typing import Any

import pytest

from headway.core.levels.capacity import (
    BurstWindow,
    burst_shares,
    distribute,
    exponential_shares,
    linear_shares,
    weighted_shares,
)
from headway.errors import ConfigError

VECTORS = json.loads((Path(__file__).parents[3] / "conformance" / "priority.json").read_text())


@pytest.mark.parametrize(("levels", "capacity", "highest_first"), VECTORS["shares"])
def test_exponential_shares_are_the_java_clients(levels: int, capacity: int, highest_first: list[int]) -> None:
    assert exponential_shares(levels, capacity) == highest_first[::-1]


@pytest.mark.parametrize(("levels", "capacity"), VECTORS["shares_refused"])
def test_a_capacity_that_starves_the_lowest_level_is_refused_with_the_least_that_works(
    levels: int, capacity: int
) -> None:
    with pytest.raises(ConfigError, match=f"must be at least {2**levels - 1}"):
        exponential_shares(levels, capacity)


def test_the_least_capacity_named_in_the_refusal_works() -> None:
    assert exponential_shares(3, 7) == [1, 2, 4]
    assert linear_shares(4, 10) == [1, 2, 3, 4]
    assert weighted_shares(2, 3, 7)(3, 6) == [1, 1, 4]


def test_levels_that_no_capacity_would_do_for_are_refused_without_a_number_of_thousands_of_digits() -> None:
    for capacity in (50, 1_000_000):
        with pytest.raises(ConfigError, match=f"A capacity of {capacity} cannot be divided among 20000 levels. Raise"):
            exponential_shares(20_000, capacity)


def test_the_window_follows_the_reference_step_by_step() -> None:
    window = BurstWindow(size=6, threshold=4)
    for step in VECTORS["window"]:
        for count in step["add"]:
            window.add(count)
        assert (window.may_burst(50), window.unused(50)) == (step["eligible"], step["unused"])


@pytest.mark.parametrize("case", VECTORS["burst"]["cases"])
def test_bursts_are_the_java_clients(case: dict[str, Any]) -> None:
    windows = [BurstWindow(), BurstWindow(), BurstWindow()]
    for window, history in zip(windows, case["history"][::-1], strict=True):
        for count in history:
            window.add(count)
    assert burst_shares(exponential_shares(3, 50), windows) == case["next"][::-1]


def test_weights_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="The weight 0"):
        weighted_shares(0, 1)


def test_weights_must_be_as_many_as_the_levels() -> None:
    with pytest.raises(ConfigError, match="2 weights were given for 3 levels"):
        weighted_shares(1, 2)(3, 10)


@pytest.mark.parametrize("shares", [[5, 4], [10], [0, 10], [-1, 11], [3, 3, 4]])
def test_a_distributor_that_does_not_split_the_capacity_is_refused(shares: list[int]) -> None:
    with pytest.raises(ConfigError, match="sum to 10"):
        distribute(lambda levels, capacity: shares, 2, 10)

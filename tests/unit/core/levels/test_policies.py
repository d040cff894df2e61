import time

from headway.core.levels.fair import Fair
from headway.core.levels.level_buffer import LevelBuffer
from headway.core.levels.policies import CapacityBurst, Strict


def waiting(*batches: list[tuple[float, int]]) -> list[LevelBuffer[str]]:
    """Level buffers, lowest first, each with batches of (arrival, count)."""
    buffers: list[LevelBuffer[str]] = [LevelBuffer() for _ in batches]
    for buffer, of_level in zip(buffers, batches, strict=True):
        for arrived, count in of_level:
            buffer.put([f"from {arrived}"] * count, arrived)
    return buffers


def test_a_level_that_returns_from_idleness_does_not_claim_the_time_it_was_away() -> None:
    fair = Fair([1, 1])
    for _ in range(100):
        fair.pick([10, 0], 5)
    assert fair.pick([100, 100], 50) == [24, 26]  # one pick ahead, and not the 500 that it did not take


def test_a_high_record_is_in_the_next_round_whatever_the_backlog() -> None:
    fair = Fair([1, 2, 4])
    for _ in range(50):
        fair.pick([500, 500, 0], 7)
    assert fair.pick([500, 500, 1], 1) == [0, 0, 1]


def test_strict_lets_a_record_that_waited_too_long_go_before_higher_ones() -> None:
    strict = Strict(capacity=10, max_wait=5.0)
    buffers = waiting([(0.0, 2), (4.0, 3)], [(5.5, 20)])
    assert strict.split(buffers, 10, now=4.9) == [0, 10]
    assert strict.split(buffers, 10, now=5.6) == [2, 8]
    assert strict.split(buffers, 10, now=9.1) == [5, 5]


def test_of_records_that_waited_too_long_strict_takes_the_oldest_level_first() -> None:
    strict = Strict(capacity=4, max_wait=1.0)
    assert strict.split(waiting([(2.0, 3)], [(1.0, 3)], [(3.0, 3)]), 4, now=10.0) == [1, 3, 0]


def test_capacity_burst_keeps_what_exceeds_the_limit_for_the_next_round() -> None:
    policy = CapacityBurst([7, 14, 29])
    buffers = waiting([(0.0, 7)], [(0.0, 14)], [(0.0, 40)])
    counts = policy.split(buffers, 50, now=0.0)
    assert counts == [0, 10, 40]
    for buffer, count in zip(buffers, counts, strict=True):
        buffer.take(count)
    assert policy.demand(buffers) == [0, 10, 29]


def test_capacity_burst_lends_what_a_level_left_unused_over_the_whole_window() -> None:
    policy = CapacityBurst([7, 14, 29])
    for _ in range(4):
        policy.split(waiting([(0.0, 7)], [(0.0, 4)], [(0.0, 9)]), 50, now=0.0)
    assert policy.demand(waiting([], [], [])) == [7 + 10 + 20, 14, 29]


def test_fair_shares_a_remainder_over_thousands_of_levels_in_a_fraction_of_a_second() -> None:
    fair, waiting_of_each = Fair([1] * 10_000), [1_000] * 10_000
    began = time.process_time()
    picks = fair.split([range(count) for count in waiting_of_each], 5_005_000, 0.0)
    assert time.process_time() - began < 5.0  # one by one it took a minute
    assert sum(picks) == 5_005_000
    assert set(picks) == {500, 501}

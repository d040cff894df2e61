"""The experiments with levels, simulated: their figures are those of the ideal, within bounds that are stated here."""

import pytest

from headway.experiments.ideal_levels import ideal_drained, ideal_phases
from headway.experiments.level_figures import LevelFigures, level_figures, rates_over_time
from headway.experiments.level_setup import (
    LEVELS,
    WAYS,
    ConsumerName,
    LevelSetup,
    RecordWave,
    all_at_once,
    in_waves,
)
from headway.experiments.level_simulation import simulate_levels

NO_PRIORITY, BURST, FAIR = WAYS
RECORDS = 11_000


def figures_of(setup: LevelSetup, way: int, consumer: ConsumerName) -> LevelFigures:
    log = simulate_levels(setup, WAYS[way], consumer, lambda done: None)
    return level_figures(log, setup, setup.limit(consumer))


@pytest.mark.parametrize("setup", [all_at_once(RECORDS), in_waves(RECORDS)], ids=["at once", "in waves"])
def test_fair_drains_each_level_within_three_handler_times_of_the_ideal(setup: LevelSetup) -> None:
    fair = figures_of(setup, 2, "parallel")
    assert fair.drained == pytest.approx(ideal_drained(ideal_phases(setup)), abs=3 * setup.seconds)
    assert fair.used > 0.995
    assert fair.share_error < 0.05
    assert fair.reaction is not None
    assert fair.reaction <= 1.1 * setup.seconds
    assert fair.overshoot == 0


def test_all_levels_wait_alike_in_one_topic() -> None:
    figures = figures_of(all_at_once(RECORDS), 0, "parallel")
    assert max(figures.drained) - min(figures.drained) <= 1.0
    assert figures.reaction is None
    assert figures.share_error == pytest.approx((4 / 7 - 1 / 3 + 0.0 + 1 / 3 - 1 / 7 + 1 / 3 - 2 / 7) / 2, abs=0.01)


def test_polls_reproduce_the_published_rates_of_capacity_burst() -> None:
    """29, 14 and 7 of each poll's 50 records; when level 2 is done, level 1 has its 29 as well, then level 0 all."""
    setup = all_at_once(RECORDS)
    log = simulate_levels(setup, BURST, "priority", lambda done: None)
    edges, rates = rates_over_time(log, setup, most_bins=1000)
    at_20 = int(20 / (edges[1] - edges[0]))
    assert [round(rates[level][at_20]) for level in range(LEVELS)] == [35, 70, 145]
    figures = level_figures(log, setup, setup.limit("priority"))
    between = int((figures.drained[2] + 12) / (edges[1] - edges[0]))
    assert [round(rates[level][between]) for level in range(LEVELS)] == [35, 215, 0]
    last = int((figures.drained[1] + 12) / (edges[1] - edges[0]))
    assert [round(rates[level][last]) for level in range(LEVELS)] == [250, 0, 0]


def test_a_consumer_that_waits_for_each_poll_uses_50_of_55_slots() -> None:
    fair = figures_of(all_at_once(RECORDS), 2, "priority")
    assert fair.used == pytest.approx(50 / 55, abs=0.005)
    assert fair.overshoot == 0


@pytest.mark.parametrize("consumer", ["parallel", "priority"])
@pytest.mark.parametrize("way", range(len(WAYS)), ids=[way.name for way in WAYS])
def test_no_consumer_handles_more_records_at_a_time_than_it_may(way: int, consumer: ConsumerName) -> None:
    assert figures_of(in_waves(RECORDS), way, consumer).overshoot == 0


def test_the_original_size_takes_the_times_that_its_numbers_imply() -> None:
    """100,000 records at 145 a second, and 300,000 at 250 a second."""
    fair = figures_of(all_at_once(100_000), 2, "priority")
    assert fair.drained[2] == pytest.approx(100_000 / 145, abs=2)
    assert fair.drained[0] == pytest.approx(300_000 / 250, abs=2)


def test_a_wave_that_comes_to_idle_consumers_is_handled_at_once() -> None:
    setup = LevelSetup((RecordWave(0.0, 100), RecordWave(50.0, 100)))
    figures = figures_of(setup, 2, "parallel")
    assert figures.drained[2] == pytest.approx(51.0, abs=1.1)

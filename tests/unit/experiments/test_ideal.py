"""The ideals with which the experiments are compared."""

import pytest

from headway.experiments.ideal_levels import ideal_drained, ideal_phases
from headway.experiments.level_setup import LEVELS, all_at_once, in_waves
from headway.experiments.makespan import shortest_makespan


def test_the_ideal_handles_each_record_once() -> None:
    setup = in_waves(60_000)
    phases = ideal_phases(setup)
    for level in range(LEVELS):
        handled = sum(phase.rates[level] * (phase.ends - phase.begins) for phase in phases)
        assert handled == pytest.approx(setup.records)


def test_the_ideal_is_done_when_all_slots_have_done_all_records() -> None:
    setup = all_at_once(100_000)
    assert max(ideal_drained(ideal_phases(setup))) == pytest.approx(setup.total / setup.capacity)


def test_the_ideal_pauses_between_waves_that_leave_a_gap() -> None:
    setup = in_waves(3)
    assert [sum(phase.rates) > 0 for phase in ideal_phases(setup)][-1]


def test_one_lane_takes_the_sum_of_its_times() -> None:
    assert shortest_makespan([("a", 1.0), ("a", 2.5)], slots=16) == 3.5

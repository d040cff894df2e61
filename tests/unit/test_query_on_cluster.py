"""The simulation of a query on a cluster, whose curves docs/scale.md shows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.query_on_cluster import (
    Arrivals,
    Costs,
    Executor,
    Handler,
    Query,
    Work,
    even,
    makespan,
    one_hot,
    simulate,
    work_of,
)

from headway.kafka.reading.range_reader import Range
from headway.records.record_types import TopicPartition
from headway.spark.source.range_packing import TaskOptions

COSTS = Costs(
    batch=0.1, plan=1e-5, start=1e-3, task=0.01, task_cores=0.01, record=1e-6, record_cores=2e-6, staged=1e-5,
    staged_cores=2e-5,
)  # fmt: skip
FOUR = [Executor(slots=4, cores=4)]

works = st.lists(st.builds(Work, st.floats(0.001, 10), st.floats(0.1, 3)), min_size=1, max_size=30)
executors = st.lists(st.builds(Executor, st.integers(1, 5), st.floats(1, 8)), min_size=1, max_size=4)


@given(works, executors, st.floats(0, 0.1))
def test_tasks_take_no_less_than_their_longest_their_cores_and_their_starts_and_no_more_than_in_a_row(
    works: list[Work], executors: list[Executor], start: float
) -> None:
    took = makespan(works, executors, start)
    cores = sum(each.cores for each in executors)
    assert took >= max(work.seconds for work in works) * (1 - 1e-6)
    assert took >= sum(work.seconds * work.load for work in works) / cores * (1 - 1e-6)
    assert took >= start * (len(works) - 1)
    assert took <= sum(work.seconds * max(1, work.load) + start for work in works) * (1 + 1e-6)


def test_what_ran_on_a_lost_executor_begins_anew_on_another_one() -> None:
    works = [Work(1.0, 1.0)] * 2
    pair = [Executor(slots=1, cores=1), Executor(slots=1, cores=1, lost_at=0.5)]
    assert makespan(works, pair, start=0.0) == pytest.approx(2.0)
    assert makespan(works, pair, start=0.0, began=0.6) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="lost"):
        makespan(works, [replace(pair[1])], start=0.0)


def test_a_straggler_takes_the_micro_batch_as_long_as_its_task() -> None:
    pair = [Executor(slots=1, cores=1), Executor(slots=1, cores=1, speed=0.2)]
    assert makespan([Work(1.0, 1.0)] * 2, pair, start=0.0) == pytest.approx(5.0)


def test_waits_of_a_handler_are_side_by_side_and_its_cores_one_after_another() -> None:
    group = [Range(TopicPartition("events", partition=0, level=0), 0, 10_000)]
    waiting = work_of(group, COSTS, Handler(wait=1.0, at_a_time=1000))
    assert waiting.seconds == pytest.approx(10.01)
    assert waiting.load < 0.1
    computing = work_of(group, COSTS, Handler(cpu=0.001))
    assert computing.seconds == pytest.approx(0.01 + 10_000 * 0.00101)


def test_a_query_with_room_keeps_up_and_its_micro_batches_come_near_the_wanted_time() -> None:
    arrivals = Arrivals([700_000, 290_000, 10_000], even(8))
    outcome = simulate(arrivals, FOUR, COSTS, None, Query(10**9, 1.0), seconds=60)
    assert outcome.lag[-1][1] < 1e6
    assert outcome.wait(2, 99, since=30) < 1.0
    assert sum(batch.records for batch in outcome.batches) > 55e6
    assert 1.9 < outcome.busy_cores() < 2.8


def test_the_high_level_of_a_query_that_cannot_keep_up_waits_two_micro_batches_and_the_low_one_ever_longer() -> None:
    arrivals = Arrivals([3_000_000, 1_000_000, 10_000], even(8))
    outcome = simulate(arrivals, FOUR, COSTS, None, Query(10**9, 1.0), seconds=60)
    assert outcome.wait(2, 99, since=30) < 2.0
    assert outcome.lag[-1][1] > 50e6


def test_a_hot_partition_binds_a_query_unless_its_ranges_are_split() -> None:
    arrivals = Arrivals([1_500_000], one_hot(20))
    whole = simulate(arrivals, FOUR, COSTS, None, Query(10**9, 1.0), seconds=30)
    split = simulate(arrivals, FOUR, COSTS, None, Query(10**9, 1.0, TaskOptions(split=True)), seconds=30)
    assert whole.lag[-1][1] > 2 * split.lag[-1][1]

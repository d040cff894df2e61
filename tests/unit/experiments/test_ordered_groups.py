"""The experiments without levels, simulated."""

import pytest

from headway.core.engine.lanes import OrderingName
from headway.experiments.backends import SimulatedBackend
from headway.experiments.group_experiment import run_group_experiment
from headway.experiments.key_experiment import run_key_experiment
from headway.experiments.makespan import shortest_makespan
from headway.experiments.ordered_group import OrderedGroup, random_work


@pytest.mark.parametrize("keys", [1, 3, 40])
def test_the_engine_needs_as_long_as_list_scheduling_by_key(keys: int) -> None:
    work = random_work(600, keys)
    log = OrderedGroup("key", 16).simulated(work, lambda done: None)
    assert log.makespan == pytest.approx(shortest_makespan([(each.key, each.seconds) for each in work], 16), rel=0.01)


@pytest.mark.parametrize("ordering", ["partition", "key", "unordered"])
def test_a_group_of_plain_consumers_is_as_fast_as_one_consumer_by_partition_at_most(ordering: OrderingName) -> None:
    work = random_work(800, 100)
    plain = OrderedGroup("unordered", 1, members=16, partitions=16).simulated(work, lambda done: None)
    parallel = OrderedGroup(ordering, 16, partitions=16).simulated(work, lambda done: None)
    assert parallel.makespan <= plain.makespan + 1e-9


def test_the_table_of_keys_has_the_published_times_at_the_published_size_only() -> None:
    assert {row[-1] for row in run_key_experiment(200, SimulatedBackend(), lambda *_: None).rows} == {"-"}
    published = run_key_experiment(10_000, SimulatedBackend(), lambda *_: None)
    assert [row[-1] for row in published.rows][:2] == ["22.22 s", "26.74 s"]


def test_a_group_that_cannot_keep_up_has_long_latencies() -> None:
    result = run_group_experiment(400, SimulatedBackend(), lambda *_: None)
    runs = result.figures["runs"]
    assert runs[0]["p99"] > 10 * runs[-1]["p99"]
    assert [run["members"] for run in runs] == [1, 2, 4, 8, 16, 1, 1, 1]

"""A simulation neither loses nor repeats a record, nor does it handle one before it comes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine.lanes import OrderingName
from headway.experiments.level_setup import LEVELS, WAYS, ConsumerName, LevelSetup, RecordWave, Way
from headway.experiments.level_simulation import simulate_levels
from headway.experiments.ordered_group import OrderedGroup, random_work

WAVES = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 60)), min_size=1, max_size=4)
SETUPS = st.builds(
    LevelSetup,
    waves=WAVES.map(lambda waves: tuple(RecordWave(at, records) for at, records in sorted(waves))),
    seconds=st.sampled_from([0.1, 1.0, 2.5]),
    members=st.integers(1, 4),
    slots=st.integers(7, 20),
    poll_records=st.integers(7, 20),
)


@pytest.mark.parametrize("consumer", ["parallel", "priority"])
@given(setup=SETUPS, way=st.sampled_from(WAYS))
def test_each_record_of_each_level_is_handled_once(consumer: ConsumerName, setup: LevelSetup, way: Way) -> None:
    log = simulate_levels(setup, way, consumer, lambda done: None)
    assert Counter(log.levels) == dict.fromkeys(range(LEVELS), setup.records)
    came = Counter(zip(log.levels, log.came, strict=True))
    for level in range(LEVELS):
        expected: Counter[float] = Counter()
        for wave in setup.waves:
            expected[wave.at] += wave.records
        assert {at: count for (of, at), count in came.items() if of == level} == expected
    assert all(began >= at for began, at in zip(log.started, log.came, strict=True))


@given(
    records=st.integers(1, 200),
    keys=st.integers(1, 50),
    members=st.integers(1, 4),
    slots=st.integers(1, 5),
    ordering=st.sampled_from(["key", "partition", "unordered"]),
)
def test_each_record_of_a_group_is_handled_once(
    records: int, keys: int, members: int, slots: int, ordering: OrderingName
) -> None:
    work = random_work(records, keys)
    log = OrderedGroup(ordering, slots, members, 4).simulated(work, lambda done: None)
    handled = sorted(ended - started for started, ended in zip(log.started, log.ended, strict=True))
    assert handled == pytest.approx(sorted(each.seconds for each in work))

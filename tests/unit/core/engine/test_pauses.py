"""Pauses against a list of what was asked for."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine.pauses import Pauses
from headway.records.record_types import TopicPartition

PARTITIONS = [
    TopicPartition(topic, partition=number, level=level)
    for topic in ("orders", "clicks")
    for number in range(2)
    for level in range(2)
]
SELECTIONS = st.one_of(
    st.builds(lambda partition: {"partitions": [partition]}, st.sampled_from(PARTITIONS)),
    st.builds(lambda topic: {"topic": topic}, st.sampled_from(["orders", "clicks"])),
    st.builds(lambda level: {"level": level}, st.integers(0, 1)),
)


def is_of(partition: TopicPartition, selection: dict[str, Any]) -> bool:
    return (
        partition in selection.get("partitions", ())
        or partition.topic == selection.get("topic")
        or partition.level == selection.get("level")
    )


@given(st.lists(st.tuples(st.sampled_from(["begin", "begin", "end", "end all"]), SELECTIONS), max_size=20))
def test_a_partition_is_paused_while_any_pause_covers_it(changes: list[tuple[str, dict[str, Any]]]) -> None:
    pauses, asked = Pauses(), list[dict[str, Any]]()
    for what, selection in changes:
        if what == "begin":
            pauses.begin(**selection)
            asked.append(selection)
        elif what == "end":
            pauses.end(**selection)
            asked = [each for each in asked if each != selection]
        else:
            pauses.end_all()
            asked = []
        expected = {partition for partition in PARTITIONS if any(is_of(partition, each) for each in asked)}
        assert set(pauses.covered(PARTITIONS)) == expected
        assert {partition for partition in PARTITIONS if pauses.covers(partition)} == expected
        assert bool(pauses) == bool(asked)

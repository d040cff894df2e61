"""The states of a member's partitions: each arrow of the table, and each event that has none."""

import itertools
from collections.abc import Callable

import pytest

from headway.core.levels.assigned_partitions import (
    ASSIGNMENT_TRANSITIONS,
    AssignedPartitions,
    AssignmentEvent,
    AssignmentState,
)

Partitions = AssignedPartitions[str]

CALLS: dict[AssignmentEvent, Callable[[Partitions], object]] = {
    AssignmentEvent.ASSIGNED: lambda partitions: partitions.assign(["a"]),
    AssignmentEvent.LOCATED: lambda partitions: partitions.locate({"a": 1}),
    AssignmentEvent.SOUGHT: lambda partitions: partitions.seek("a", 2),
    AssignmentEvent.BEGUN: lambda partitions: partitions.begin(["a"]),
    AssignmentEvent.LOST_ITS_PLACE: lambda partitions: partitions.lose_places({"a": 3}),
    AssignmentEvent.FOUND_A_PLACE: lambda partitions: partitions.place("a", 4),
    AssignmentEvent.STOPPED: lambda partitions: partitions.place("a", None),
    AssignmentEvent.ENDED: lambda partitions: partitions.end(["a"]),
}
WAYS: dict[AssignmentState, list[AssignmentEvent]] = {
    AssignmentState.ABSENT: [],
    AssignmentState.STARTING: [AssignmentEvent.ASSIGNED],
    AssignmentState.READY: [AssignmentEvent.ASSIGNED, AssignmentEvent.LOCATED],
    AssignmentState.READING: [AssignmentEvent.ASSIGNED, AssignmentEvent.LOCATED, AssignmentEvent.BEGUN],
    AssignmentState.ADRIFT: [
        AssignmentEvent.ASSIGNED,
        AssignmentEvent.LOCATED,
        AssignmentEvent.BEGUN,
        AssignmentEvent.LOST_ITS_PLACE,
    ],
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(AssignmentState, AssignmentEvent)))
def test_each_event_in_each_state_does_what_the_table_says(state: AssignmentState, event: AssignmentEvent) -> None:
    partitions = Partitions()
    for each in WAYS[state]:
        CALLS[each](partitions)
    assert partitions.state_of("a") is state
    CALLS[event](partitions)
    after = ASSIGNMENT_TRANSITIONS.get((state, event), state)
    assert partitions.state_of("a") is after
    assert ("a" in partitions.all) == (after is not AssignmentState.ABSENT)
    assert ("a" in partitions.ready) == (after is AssignmentState.READY)
    assert ("a" in partitions.adrift) == (after is AssignmentState.ADRIFT)
    assert (partitions.begun() == ["a"]) == (after in (AssignmentState.READING, AssignmentState.ADRIFT))
    assert (partitions.starts(["a"]) == {}) == (after in (AssignmentState.ABSENT, AssignmentState.STARTING))


def test_a_start_that_comes_after_a_seek_does_not_count() -> None:
    partitions = Partitions()
    partitions.assign(["a", "b"])
    partitions.seek("a", 7)
    assert partitions.locate({"a": 1, "b": 1, "gone": 1}) == ["b"]
    assert partitions.starts(["a", "b"]) == {"a": 7, "b": 1}


def test_a_partition_that_must_not_go_on_by_itself_begins_again_with_a_seek() -> None:
    partitions = Partitions()
    partitions.assign(["a"])
    partitions.seek("a", 7)
    partitions.begin(["a"])
    partitions.lose_places({"a": 9})
    partitions.place("a", None)
    assert partitions.without_start() == ["a"]
    partitions.seek("a", 3)
    assert partitions.ready == {"a"}
    assert partitions.starts(["a"]) == {"a": 3}

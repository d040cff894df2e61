"""Lanes: chains of attempts, by name."""

from typing import Any

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.lanes import ALONE, Lanes, Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition


class Keyed:
    def __init__(self, key: bytes | None) -> None:
        self.raw_key = key


def attempts(*lanes: object) -> list[Attempt[Any]]:
    assignment: Assignment[Any] = Assignment(TopicPartition("orders", partition=0), OffsetMap(0), 1)
    return [Attempt(None, offset, 1, lane, assignment, 0.0, offset) for offset, lane in enumerate(lanes)]


def test_each_ordering_names_lanes() -> None:
    records = [Keyed(b"a"), Keyed(None), Keyed(b"a")]
    assert list(Ordering.KEY.lanes_of(records)) == [b"a", None, b"a"]
    assert list(Ordering.PARTITION.lanes_of(records)) == [None] * 3
    assert list(Ordering.UNORDERED.lanes_of(records)) == [ALONE] * 3
    assert list(Ordering.KEY_IF_ANY.lanes_of(records)) == [b"a", ALONE, b"a"]


def test_the_first_of_each_lane_is_its_head_and_one_without_a_lane_always_is() -> None:
    lanes: Lanes[Any] = Lanes()
    a, b, behind, alone, another = attempts("a", "b", "a", ALONE, ALONE)
    assert lanes.extend([a, b, behind, alone, another]) == [a, b, alone, another]
    assert lanes.advance(alone, ()) is None
    assert lanes.advance(a, ()) is behind


def test_a_lane_without_work_is_gone_and_begins_anew() -> None:
    lanes: Lanes[Any] = Lanes()
    first, second = attempts("a", "a")
    lanes.extend([first])
    assert lanes.advance(first, ()) is None
    assert len(lanes) == 0
    assert lanes.extend([second]) == [second]


def test_what_comes_while_the_only_work_is_tried_again_comes_behind_it() -> None:
    lanes: Lanes[Any] = Lanes()
    first, second = attempts("a", "a")
    lanes.extend([first])
    again = first.again(5.0, None, 0.0)
    assert lanes.advance(first, [again]) is again
    assert lanes.extend([second]) == []
    assert lanes.advance(again, ()) is second


def test_a_finished_work_does_not_keep_its_lane_in_memory() -> None:
    lanes: Lanes[Any] = Lanes()
    first, second = attempts("a", "a")
    lanes.extend([first, second])
    lanes.advance(first, ())
    assert first.next is None

"""Offset maps as they are drawn, and the hours in which schedules are due."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headway.core.offsets.offset_map import OffsetMap
from headway.dashboard.drawings import hour_bars, map_cells, map_strip
from tests.unit.dashboard.scene import partition


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(0, 50), st.integers(1, 60))
def test_a_drawn_map_has_each_offset_once_and_counts_what_is_done(runs: list[int], beyond: int, most: int) -> None:
    runs = runs[: len(runs) // 2 * 2]
    offset_map = OffsetMap(1000, tuple(runs))
    status = replace(partition(), committed=1000, offset_map=offset_map, log_end=offset_map.end + beyond)
    cells = map_cells(status, most)
    offsets = [offset for cell in cells for offset in range(cell.first, cell.end)]
    assert offsets == list(range(1000, offset_map.end + beyond))
    assert len(cells) <= most
    done = {offset for each in offset_map.complete for offset in each}
    assert [cell.done for cell in cells] == [len(done & set(range(cell.first, cell.end))) for cell in cells]


def test_the_stuck_record_is_seen_among_a_million_others() -> None:
    status = partition()
    assert status.stuck
    large = replace(
        status, log_end=1_000_100, offset_map=OffsetMap(100, (1, 999_999)), stuck=replace(status.stuck, offset=100)
    )
    cells = map_cells(large, 320)
    assert [cell.kind for cell in cells] == ["stuck", *["done"] * 319]
    assert [each.kind for each in map_strip(large)] == ["stuck", "done"]


def test_a_partition_that_is_done_has_no_map() -> None:
    assert map_cells(replace(partition(), committed=110, offset_map=OffsetMap(110)), 100) == []


def test_hours_without_schedules_are_drawn_as_gaps_and_far_ones_are_left_out() -> None:
    bars = hour_bars([(0.0, 5), (7200.0, 10), (3600.0 * 1000, 1)], most=4)
    assert [(bar.start, bar.schedules, bar.height) for bar in bars] == [
        (0.0, 5, 50.0),
        (3600.0, 0, 0.0),
        (7200.0, 10, 100.0),
        (10800.0, 0, 0.0),
    ]
    assert hour_bars([]) == []

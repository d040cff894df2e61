"""A query's progress by level, as Spark's JSON has it."""

import json
from typing import Any

import pytest

from headway.spark.report.level_progress import LevelProgress, level_progress, limit_of, outcomes_of, table

START = {"offsets": {"orders": {"0": {"0": 5, "1": 5}, "1": {"0": 0, "1": 0}}}, "topicIds": {}, "tasks": 1}
END = {"offsets": {"orders": {"0": {"0": 9, "1": 5}, "1": {"0": 2, "1": 1}}}, "topicIds": {}, "tasks": 1, "limit": 7}
LATEST = {
    "offsets": {"orders": {"0": {"0": 1009, "1": 5}, "1": {"0": 2, "1": 1}}},
    "topicIds": {},
    "oldestWaitSeconds": {"0": 41.2},
}
SOURCE: dict[str, Any] = {"startOffset": START, "endOffset": END, "latestOffset": LATEST}


def test_a_level_has_what_was_read_what_waits_and_for_how_long() -> None:
    expected = [LevelProgress(1, 3, 0, 0.0), LevelProgress(0, 4, 1000, 41.2)]
    assert level_progress(SOURCE) == expected
    assert level_progress({name: json.dumps(form) for name, form in SOURCE.items()}) == expected
    assert limit_of(SOURCE) == 7


def test_topics_without_levels_have_their_priorities() -> None:
    end = {
        "offsets": {"payments": {"0": 4}, "clicks": {"0": 1}},
        "topicIds": {},
        "priorities": {"payments": 2, "clicks": 0},
    }
    begun = {"begun": {"payments": {"0": 1}, "clicks": {"0": 0}}}
    source = {"startOffset": None, "endOffset": end | begun, "latestOffset": None}
    assert level_progress(source) == [LevelProgress(2, 3, 0, 0.0), LevelProgress(0, 1, 0, 0.0)]


def test_other_sources_have_no_levels() -> None:
    for offset in (None, 7, "7", '{"orders": {"0": 3}}', "not json", [1]):
        assert level_progress({"startOffset": offset, "endOffset": offset, "latestOffset": offset}) == []


def test_the_table_names_the_query_and_its_levels() -> None:
    progress = {"name": "copies", "batchId": 3, "numInputRows": 7, "durationMs": {"triggerExecution": 812}}
    assert table(progress | {"sources": [SOURCE]}).splitlines() == [
        "copies, micro-batch 3: 7 records in 0.8 s, limit 7",
        "  level 1            3 read  43%            0 waiting",
        "  level 0            4 read  57%        1,000 waiting, the oldest for 41 s",
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [(5, "5 records of 7 offsets"), (7, "7 records"), (14, "7 offsets"), (0, "0 records of 7 offsets")],
)
def test_offsets_of_transactions_are_not_counted_as_records(rows: int, said: str) -> None:
    progress = {"name": "copies", "batchId": 3, "numInputRows": rows, "durationMs": {"triggerExecution": 812}}
    assert table(progress | {"sources": [SOURCE]}).splitlines()[0] == f"copies, micro-batch 3: {said} in 0.8 s, limit 7"


def test_the_table_tells_what_came_of_the_rows_of_each_stage() -> None:
    observed = {
        "headway parallel_map of charge #1": {"ok": 1234, "failed": 2, "parked": 0, "later": 0, "retried": 3},
        "headway outputs with dead letters in orders-dead #2": {"records": 1236, "dead_letters": 2},
        "headway parallel_map of lines #3": {"ok": 0, "failed": 0},
        "headway parallel_map of unknown #4": None,
        "mine": {"rows": 5},
    }
    progress = {"name": "copies", "batchId": 3, "numInputRows": 0, "sources": [], "observedMetrics": observed}
    assert list(outcomes_of(progress)) == list(observed)[:3]
    assert table(progress).splitlines()[1:] == [
        "  parallel_map of charge: 1,234 ok, 2 failed, 3 retried",
        "  outputs with dead letters in orders-dead: 1,236 records, 2 dead letters",
        "  parallel_map of lines: nothing",
    ]

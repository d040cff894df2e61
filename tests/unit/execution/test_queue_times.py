"""Records that waited for too long: each is counted once, and told of in a sum."""

import logging
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.execution.queue_times import QueueTimes
from headway.records.record_types import TopicPartition


def job(topic: str, *arrived: float, failed: bool = False) -> Any:
    assignment = SimpleNamespace(partition=TopicPartition(topic, partition=0))
    failure = object() if failed else None
    return [SimpleNamespace(arrived=at, assignment=assignment, failure=failure) for at in arrived]


def test_of_a_topic_the_first_is_told_at_once_and_those_of_ten_seconds_in_one_sum() -> None:
    times = QueueTimes(1.0)
    times.note(job("orders", 0.0), 5.0)
    assert times.is_due(5.0)
    assert times.take(5.0) == {"orders": (1, 5.0)}
    times.note(job("orders", 0.0, 2.0, 5.9), 6.0)
    assert not times.is_due(14.9)
    assert times.is_due(15.0)
    assert times.take(15.0) == {"orders": (2, 6.0)}
    assert times.late == 3


def test_attempts_after_the_first_do_not_count_for_they_waited_for_their_back_off() -> None:
    times = QueueTimes(1.0)
    times.note(job("orders", 0.0, failed=True), 50.0)
    assert times.late == 0
    assert not times.is_due(50.0)


def test_the_sentence_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        QueueTimes(0.5).tell({"orders": (12, 3.25)})
    [sentence] = caplog.messages
    assert sentence.startswith(
        "12 records of orders waited for more than 0.5 s before they started, the longest for 3.25 s."
    )
    assert "let more run at a time" in sentence


@given(
    st.lists(
        st.tuples(st.sampled_from(["orders", "clicks"]), st.floats(0, 5), st.floats(0, 8), st.booleans()), max_size=40
    )
)
def test_none_is_left_out_and_none_told_twice(starts: list[tuple[str, float, float, bool]]) -> None:
    times, now, told = QueueTimes(2.0), 100.0, list[tuple[float, str, int]]()
    expected = 0
    for topic, waited, passes, asks in starts:
        now += passes
        times.note(job(topic, now - waited), now)
        expected += now - (now - waited) > 2.0
        if asks and times.is_due(now):
            told += [(now, name, count) for name, (count, _) in times.take(now).items()]
    told += [(now, name, count) for name, (count, _) in times.take(now, all_of_them=True).items()]
    assert sum(count for _, _, count in told) == times.late == expected
    for name in ("orders", "clicks"):
        at = [when for when, topic, _ in told[:-2] if topic == name]
        assert all(second - first >= 10.0 for first, second in pairwise(at))
    assert not times.is_due(now + 100)

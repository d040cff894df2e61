"""Records that waited for too long: each is counted once, and logged in a sum."""

import logging
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.execution.gates.queue_times import QueueTimes
from headway.records.record_types import TopicPartition


def start(times: QueueTimes, topic: str, waited: list[float], now: float, *, failed: bool = False) -> None:
    failure = object() if failed else None
    partition = TopicPartition(topic, partition=0)
    attempts: Any = [SimpleNamespace(arrived=now - each, partition=partition, failure=failure) for each in waited]
    times.started(attempts, 1, now)


def logged(caplog: pytest.LogCaptureFixture, times: QueueTimes, now: float, *, at_end: bool = False) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        times.log(now, at_end=at_end)
    return [message.partition(" waited")[0] for message in caplog.messages]


def test_of_a_topic_the_first_is_logged_at_once_and_those_of_ten_seconds_in_one_sum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = QueueTimes(1.0)
    start(times, "orders", [5.0], now=5.0)
    assert logged(caplog, times, 5.0) == ["1 records of orders"]
    start(times, "orders", [6.0, 4.0, 0.1], now=6.0)
    assert logged(caplog, times, 14.9) == []
    assert logged(caplog, times, 15.0) == ["2 records of orders"]
    assert times.metrics() == {"late": 3}


def test_attempts_after_the_first_do_not_count_for_they_waited_for_their_back_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = QueueTimes(1.0)
    start(times, "orders", [50.0], now=50.0, failed=True)
    assert times.metrics() == {"late": 0}
    assert logged(caplog, times, 50.0) == []


def test_the_sentence_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    times = QueueTimes(0.5)
    start(times, "orders", [3.25, 1.0], now=10.0)
    times.log(10.0)
    [sentence] = caplog.messages
    assert sentence.startswith(
        "2 records of orders waited for more than 0.5 s before they started. The longest wait was 3.25 s."
    )
    assert "raise max_concurrency" in sentence


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["orders", "clicks"]), st.floats(0, 5), st.floats(0, 8), st.booleans()), max_size=40
    )
)
def test_none_is_left_out_and_none_logged_twice(
    caplog: pytest.LogCaptureFixture, starts: list[tuple[str, float, float, bool]]
) -> None:
    times, now, expected = QueueTimes(2.0), 100.0, 0
    lines = list[tuple[float, str]]()
    for topic, waited, passes, asks in starts:
        now += passes
        start(times, topic, [waited], now)
        expected += now - (now - waited) > 2.0
        if asks:
            lines += [(now, line) for line in logged(caplog, times, now)]
    for name in ("orders", "clicks"):
        at = [when for when, line in lines if line.endswith(name)]
        assert all(second - first >= 10.0 for first, second in pairwise(at))
    lines += [(now, line) for line in logged(caplog, times, now, at_end=True)]
    assert sum(int(line.split()[0]) for _, line in lines) == times.metrics()["late"] == expected
    assert logged(caplog, times, now + 100) == []

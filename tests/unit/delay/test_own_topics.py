"""A scheduler's own topics are no targets, wherever schedules come from."""

import math
from itertools import repeat

import pytest

from headway.core.delay.ladder import Ladder
from headway.delay.topic_names import TopicNames
from headway.delay.topics import Layout
from headway.errors import DeliveryError
from headway.kafka.producer.columnar import Columns
from headway.spark.sink.scheduled_rows import DueRows, SchedulerDelayTopics

DELAY_TOPICS = SchedulerDelayTopics("delay", Layout(4, (0, 1000), Ladder((1000, 9000))), seen_at=math.inf)


@pytest.mark.parametrize(
    ("topic", "own"),
    [
        *((f"delay.{end}", True) for end in ("state", "ladder", "commands", "answers", "dead", "line-0", "line-x")),
        *((topic, False) for topic in ("delay", "delay.", "delay.stat", "delay-state", "other.state", "a.delay.state")),
    ],
)
def test_a_topic_is_a_schedulers_own_by_its_name(topic: str, own: bool) -> None:
    assert TopicNames("delay").owns(topic) is own


def test_a_row_that_is_due_later_in_a_schedulers_own_topic_is_refused() -> None:
    def columns(topic: str) -> Columns:
        return Columns(1, 0, repeat(topic), ["v"], repeat(None), repeat(-1), None)

    assert DueRows(DELAY_TOPICS, {}).routed(columns("orders"), [5]).topics == ["delay.line-0"]
    assert DueRows(DELAY_TOPICS, {}).routed(columns("delay.state"), [None]).topics == [
        "delay.state"
    ]  # not by way of a relay
    with pytest.raises(DeliveryError, match=r"is for delay.state, which is one of the scheduler's own topics"):
        DueRows(DELAY_TOPICS, {}).routed(columns("delay.state"), [5])


def test_lines_without_topics_are_left_out_of_a_ladder_unless_none_is_there() -> None:
    assert DELAY_TOPICS.layout.usable == Ladder((1000,))
    assert Layout(4, (0,), Ladder((1000, 9000))).usable == Ladder((1000, 9000))


def test_only_lines_with_a_name_that_a_relay_would_give_are_lines() -> None:
    topics = {f"delay.line-{end}": 4 for end in ("0", "1000", "007", "1e3", "-5", "9" * 200, "")}
    assert TopicNames("delay").delay_topics_of(topics) == {0: 4, 1000: 4}

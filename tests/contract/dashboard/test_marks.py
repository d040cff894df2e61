"""Compacted topics with values by key on a real Kafka: the marks of dashboards, and `KeyedTopic` itself."""

import json
from collections.abc import Iterator

import pytest

from headway.actions.marks import MOST_MARKS, OperatorMark, OperatorMarks
from headway.errors import ConfigError
from headway.kafka.keyed.keyed_topic import KeyedTopic
from headway.priority.producer import Producer
from tests.contract.conftest import Cluster


@pytest.fixture
def topic(kafka_cluster: Cluster) -> Iterator[KeyedTopic]:
    """A topic for values by key, which does not exist yet."""
    with KeyedTopic(kafka_cluster.config({}), f"keyed-{kafka_cluster.topic(1)}") as topic:
        yield topic


@pytest.fixture
def marks(kafka_cluster: Cluster, topic: KeyedTopic) -> Iterator[OperatorMarks]:
    """The marks in this topic."""
    with OperatorMarks(kafka_cluster.config({}), topic.name) as marks:
        yield marks


def test_marks_are_read_in_the_order_of_their_times_by_everybody(marks: OperatorMarks) -> None:
    assert marks.all() == []
    marks.set("v2", "ann", at=2000.0)
    marks.set(" v1 ", "bob", at=1000.0)
    assert marks.all() == [OperatorMark(1_000_000, "v1", "bob"), OperatorMark(2_000_000, "v2", "ann")]


def test_marks_that_cannot_be_read_are_left_out(topic: KeyedTopic, marks: OperatorMarks) -> None:
    marks.set("v1", "ann", at=1000.0)
    too_long = json.dumps({"at": 1, "text": "x" * 999}).encode()
    for number, value in enumerate([b"", b"{", b"[]", b'{"at":-1,"text":"x"}', too_long]):
        topic.put(f"odd-{number}", value)
    assert [each.text for each in marks.all()] == ["v1"]


@pytest.mark.parametrize("text", ["", "  ", "x" * 201])
def test_a_mark_has_a_text_of_reasonable_length(text: str) -> None:
    with pytest.raises(ConfigError, match="needs 1 to 200"):
        OperatorMarks({}).set(text)


@pytest.mark.slow
def test_old_marks_are_removed(topic: KeyedTopic, marks: OperatorMarks) -> None:
    for number in range(MOST_MARKS):
        topic.put(f"{number}-x", json.dumps({"at": number, "text": str(number)}).encode())
    marks.set("newest")
    texts = [each.text for each in marks.all()]
    assert len(texts) == MOST_MARKS
    assert texts[0] == "1"
    assert texts[-1] == "newest"


def test_a_keyed_topic_has_the_latest_value_of_each_key(topic: KeyedTopic) -> None:
    assert topic.read().values == {}
    topic.put("a", b"1")
    topic.put("b", b"2")
    before = topic.read()
    topic.put("a", b"3")
    topic.remove("b")
    assert before.values == {"a": b"1", "b": b"2"}
    assert topic.read().values == {"a": b"3"}
    assert topic.read() is topic.read()


def test_a_value_in_a_keyed_topic_is_small(topic: KeyedTopic, kafka_cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="at most 65,536"):
        topic.put("a", b"x" * 65_537)
    topic.put("a", b"1")
    with Producer(kafka_cluster.config({})) as other:
        other.send(topic.name, b"x" * 65_537, "foreign")
    assert topic.read().values == {"a": b"1"}

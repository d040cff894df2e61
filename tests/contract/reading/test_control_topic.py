"""A word to processes that are reached through Kafka alone: whether it was said."""

from collections.abc import Iterator

import confluent_kafka as ck
import pytest

from headway.errors import KafkaError
from headway.kafka.reading import control_topic
from headway.kafka.reading.control_topic import ControlTopic
from tests.contract.mock_brokers import MockBrokers, mock_brokers

PRODUCE = 0  # Kafka's number for the request


@pytest.fixture
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as brokers:
        brokers.create("control")
        yield brokers


def topic(brokers: MockBrokers) -> ControlTopic:
    return ControlTopic({"bootstrap.servers": brokers.bootstrap_servers}, "control")


def test_a_word_that_kafka_refuses_was_not_said(brokers: MockBrokers) -> None:
    brokers.refuse(PRODUCE, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match=r"^The topic control cannot be written: .* authorized\. Grant Write"):
        topic(brokers).say("run", b"stop")


def test_a_word_that_nobody_takes_in_time_was_not_said(brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_topic, "BROKER_ANSWERS_WITHIN", 0.5)
    brokers.lead("control", 0)
    with pytest.raises(KafkaError, match=r"^A message could not be stored in the topic control: .*timed out\.$"):
        topic(brokers).say("run", b"stop")

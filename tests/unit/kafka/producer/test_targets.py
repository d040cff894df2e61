"""The topics and partitions that records are for: asked seldom, and never taken for missing without an answer."""

import pytest

from headway.errors import DeliveryError, KafkaError
from headway.kafka.producer.targets import Targets


class Brokers:
    """Brokers that know one topic, `there`, of two partitions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refusal: KafkaError | None = None

    def partitions_of(self, topic: str, within: float) -> int:
        self.asked.append(topic)
        if self.refusal:
            raise self.refusal
        return {"there": 2}.get(topic, 0)


def test_a_missing_target_is_asked_for_once_for_all_of_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.kafka.producer.targets.ASK_AGAIN_AFTER", 3600)
    brokers = Brokers()
    targets = Targets(brokers.partitions_of)
    for topic, partition in (("there", 1), ("missing", 0), ("there", 2)) * 100:
        assert targets.have(topic, partition) is ((topic, partition) == ("there", 1))
    assert brokers.asked == ["there", "missing"]
    assert targets.too_few("there", 2) == 2
    assert targets.too_few("missing", 0) == 0


def test_a_missing_target_is_asked_for_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.kafka.producer.targets.ASK_AGAIN_AFTER", -1)
    brokers = Brokers()
    targets = Targets(brokers.partitions_of)
    assert not targets.have("missing", 0)
    assert not targets.have("missing", 0)
    assert brokers.asked == ["missing", "missing"]


@pytest.mark.parametrize("refusal", [KafkaError("No broker answers."), DeliveryError("The topic was refused.")])
def test_a_target_that_cannot_be_asked_for_is_not_taken_for_missing(refusal: KafkaError) -> None:
    brokers = Brokers()
    targets = Targets(brokers.partitions_of)
    brokers.refusal = refusal
    assert targets.have("there", 5)
    with pytest.raises(type(refusal)):
        targets.too_few("there", 5)
    brokers.refusal = None
    assert not targets.have("there", 5)

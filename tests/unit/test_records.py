import copy
import pickle
from typing import Any

import pytest
from rich.pretty import pretty_repr

from headway.records.record_types import (
    ConsumerRecord,
    DeserializedRecord,
    RecordMetadata,
    RecordSource,
    TopicPartition,
)


class Message:
    """As the Kafka client hands it over."""

    def topic(self) -> str:
        return "orders-2"

    def partition(self) -> int:
        return 4

    def offset(self) -> int:
        return 7

    def key(self) -> bytes:
        return b"secret key"

    def value(self) -> bytes:
        return b"secret value"

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def leader_epoch(self) -> None:
        return None


def read_value(message: Any) -> str:
    return str(message.value().decode())


SOURCE = RecordSource(2, "-2", Message.key, read_value)  # type: ignore[arg-type]


@pytest.mark.parametrize("show", [repr, pretty_repr])
@pytest.mark.parametrize("kind", [ConsumerRecord, DeserializedRecord])
def test_a_record_shows_its_address_and_nothing_of_its_contents(kind: type[ConsumerRecord], show: Any) -> None:
    shown = show(kind(Message(), SOURCE, b"secret value"))
    assert "secret" not in shown
    for part in ("'orders'", "level=2", "partition=4", "offset=7"):
        assert part in shown


def test_a_deserialised_value_is_read_each_time_it_is_asked_for() -> None:
    record = DeserializedRecord(Message(), SOURCE, b"raw")
    assert (record.value, record.raw_value) == ("secret value", b"secret value")


def test_records_are_equal_only_to_themselves() -> None:
    message = Message()
    first, second = (ConsumerRecord(message, SOURCE, b"v") for _ in range(2))
    assert first != second
    assert len({first, second}) == 2


def test_a_partition_and_its_level_are_given_by_name_and_said_in_words() -> None:
    place = TopicPartition("emails", level=2, partition=1)
    assert place == TopicPartition("emails", partition=1, level=2) == ("emails", 1, 2)
    assert str(place) == "partition 1 of emails at level 2"
    with pytest.raises(TypeError):
        TopicPartition("emails", 2, 1)  # type: ignore[call-arg]


def test_the_partition_of_a_record_is_an_address() -> None:
    record = ConsumerRecord(Message(), SOURCE, b"v")
    sent = RecordMetadata("orders", partition=4, level=2, offset=7, timestamp=0)
    for found in (record.topic_partition, sent.topic_partition):
        assert type(found) is TopicPartition
        assert found == TopicPartition("orders", partition=4, level=2)


def test_an_address_goes_to_other_processes() -> None:
    place = TopicPartition("emails", partition=1, level=2)
    for other in (pickle.loads(pickle.dumps(place)), copy.copy(place)):  # noqa: S301 - our own bytes
        assert type(other) is TopicPartition
        assert other == place

"""Reading by offset when there is no broker to read from."""

import pytest

from headway.errors import ConfigError, KafkaError
from headway.kafka.reading import range_reader
from headway.kafka.reading.catalog import Catalog
from headway.kafka.reading.topic_naming import TopicNaming
from headway.records.record_types import TopicPartition

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def test_without_a_broker_the_error_names_the_address_and_the_cause() -> None:
    with pytest.raises(KafkaError, match=r"cannot be reached at 127.0.0.1:1 \(.*Connection refused\)"):
        Catalog(NOBODY).find(["orders"], TopicNaming(1))


def test_a_range_that_gives_nothing_ends_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT_S", 0.5)
    wanted = [range_reader.Range(TopicPartition("orders", partition=1), 5, 9)]
    with (
        range_reader.RangeReader(NOBODY) as reader,
        pytest.raises(
            KafkaError, match=r"^No record of partition 1 of .* orders-0 at or after offset 5 arrived .*refused\)"
        ),
    ):
        list(reader.read(wanted))


def test_a_setting_that_librdkafka_does_not_know_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"fetch\.wait\.ms.* Did you mean .fetch\.wait\.max\.ms"):
        range_reader.RangeReader({**NOBODY, "fetch.wait.ms": "1"})

"""Markers in a compacted topic, on a real Apache Kafka."""

import contextlib
import threading

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from headway.broker import LocalBroker
from headway.errors import DeliveryError, TransactionError
from headway.kafka.admin import Admin
from headway.kafka.markers import Markers, create_marker_topic
from headway.kafka.row_producer import Columns, RowProducer


@pytest.fixture
def config(headway_broker: LocalBroker, headway_topic: str) -> dict[str, str]:
    settings = {"bootstrap.servers": headway_broker.bootstrap_servers}
    create_marker_topic(Admin(settings), headway_topic)
    return settings


def mark(config: dict[str, str], topic: str, key: bytes, value: bytes) -> None:
    with Markers(config, topic) as markers, RowProducer(config, f"{topic}-{key!r}") as producer:
        producer.mark(topic, markers.partition_of(key), key, value)
        producer.commit()


def settings_of(config: dict[str, str], topic: str) -> dict[str, str]:
    with Markers(config, topic) as markers:
        markers.partition_of(b"")  # waits until the broker has heard of the topic
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient(dict(config))
    [described] = admin.describe_configs([resource]).values()
    return {name: setting.value for name, setting in described.result().items()}


def test_the_topic_is_made_once_and_compacted(config: dict[str, str], headway_topic: str) -> None:
    create_marker_topic(Admin(config), headway_topic)
    assert settings_of(config, headway_topic)["cleanup.policy"] == "compact"


def test_markers_that_need_not_last_are_kept_for_a_day(config: dict[str, str], headway_topic: str) -> None:
    create_marker_topic(Admin(config), f"{headway_topic}-unnamed", lasting=False)
    settings = settings_of(config, f"{headway_topic}-unnamed")
    assert (settings["cleanup.policy"], settings["retention.ms"]) == ("delete", "86400000")


def test_the_last_committed_marker_is_found_however_far_back(config: dict[str, str], headway_topic: str) -> None:
    mark(config, headway_topic, b"job/0", b"1")
    mark(config, headway_topic, b"job/0", b"2")
    with Markers(config, headway_topic) as markers:
        partition = markers.partition_of(b"job/0")
        producer = ck.Producer(config)
        for number in range(20_000):
            producer.produce(headway_topic, b"", f"other/{number}", partition)
        assert producer.flush(30) == 0
        assert markers.last(b"job/0") == b"2"
        assert markers.last(b"job/1") is None


def test_a_marker_that_was_aborted_is_none(config: dict[str, str], headway_topic: str) -> None:
    mark(config, headway_topic, b"job/0", b"1")
    with Markers(config, headway_topic) as markers:
        with contextlib.suppress(KeyboardInterrupt), RowProducer(config, headway_topic) as producer:
            producer.mark(headway_topic, markers.partition_of(b"job/0"), b"job/0", b"2")
            producer.flush()
            raise KeyboardInterrupt  # before the commit
        with RowProducer(config, headway_topic):  # the next attempt
            assert markers.last(b"job/0") == b"1"


def test_a_marker_behind_an_open_transaction_of_others_is_waited_for(
    config: dict[str, str], headway_topic: str
) -> None:
    with Markers(config, headway_topic) as markers:
        partition = markers.partition_of(b"job/0")
        other = ck.Producer({**config, "transactional.id": "other"})
        other.init_transactions(30)
        other.begin_transaction()
        other.produce(headway_topic, b"", b"other/0", partition)
        assert other.flush(30) == 0
        mark(config, headway_topic, b"job/0", b"1")
        found: list[bytes | None] = []
        looking = threading.Thread(target=lambda: found.append(markers.last(b"job/0")))
        looking.start()
        looking.join(0.5)
        assert not found
        other.abort_transaction(30)
        looking.join(30)
        assert found == [b"1"]


def columns(topic: str, value: bytes) -> Columns:
    return Columns(1, len(value), [topic], [value], [b"key"], [-1], None)


def test_an_attempt_that_was_taken_over_ends_with_a_sentence(config: dict[str, str], headway_topic: str) -> None:
    with RowProducer(config, headway_topic) as first:
        first.send(columns(headway_topic, b"x"))
        first.flush()
        with RowProducer(config, headway_topic), pytest.raises(TransactionError, match="Another attempt"):
            first.commit()


def test_a_row_that_the_broker_refuses_is_a_sentence(config: dict[str, str], headway_topic: str) -> None:
    with RowProducer({**config, "message.max.bytes": "5000000"}) as producer:
        producer.send(columns(headway_topic, b"x" * 3_000_000))
        with pytest.raises(DeliveryError, match=f"of {headway_topic} was not stored"):
            producer.flush()

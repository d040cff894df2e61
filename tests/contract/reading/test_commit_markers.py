"""Markers in a compacted topic, on a real Apache Kafka."""

import contextlib
import threading
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions

from headway.broker import LocalBroker
from headway.errors import DeliveryError, KafkaError, TransactionError
from headway.kafka.admin import Admin
from headway.kafka.producer.columnar import ColumnarProducer, Columns
from headway.kafka.reading.commit_markers import CommitMarkers, create_marker_topic
from headway.kafka.reading.unjoined_consumer import UnjoinedConsumer
from headway.spark.sink.markers import Marker, read_marker


@pytest.fixture
def config(headway_broker: LocalBroker, headway_topic: str) -> dict[str, str]:
    settings = {"bootstrap.servers": headway_broker.bootstrap_servers}
    create_marker_topic(Admin(settings), headway_topic)
    return settings


def mark(config: dict[str, str], topic: str, key: bytes, value: bytes) -> None:
    with CommitMarkers(config, topic) as markers, ColumnarProducer(config, f"{topic}-{key!r}") as producer:
        producer.mark(topic, markers.partition_of(key), key, value)
        producer.commit()


def settings_of(config: dict[str, str], topic: str) -> dict[str, str]:
    with CommitMarkers(config, topic) as markers:
        markers.partition_of(b"")  # waits until the broker has heard of the topic
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"log_level": 0, **config})
    [described] = admin.describe_configs([resource]).values()
    return {name: setting.value for name, setting in described.result().items()}


def test_the_topic_is_made_once_and_compacted(config: dict[str, str], headway_topic: str) -> None:
    create_marker_topic(Admin(config), headway_topic)
    assert settings_of(config, headway_topic)["cleanup.policy"] == "compact"


@pytest.mark.slow
def test_markers_that_need_not_last_are_kept_for_a_day(config: dict[str, str], headway_topic: str) -> None:
    create_marker_topic(Admin(config), f"{headway_topic}-unnamed", lasting=False)
    settings = settings_of(config, f"{headway_topic}-unnamed")
    assert (settings["cleanup.policy"], settings["retention.ms"]) == ("delete", "86400000")


def test_the_last_committed_marker_is_found_however_far_back(config: dict[str, str], headway_topic: str) -> None:
    mark(config, headway_topic, b"job/0", b"1")
    mark(config, headway_topic, b"job/0", b"2")
    with CommitMarkers(config, headway_topic) as markers:
        partition = markers.partition_of(b"job/0")
        producer = ck.Producer({"log_level": 0, **config})
        for number in range(20_000):
            producer.produce(headway_topic, b"", f"other/{number}", partition)
        assert producer.flush(30) == 0
        producer.close()
        assert markers.newest(b"job/0").get(b"job/0") == b"2"
        assert markers.newest(b"job/1").get(b"job/1") is None


@pytest.mark.slow
def test_a_second_look_adds_what_was_committed_since_the_first(config: dict[str, str], headway_topic: str) -> None:
    mark(config, headway_topic, b"job/0", b"1")
    with CommitMarkers(config, headway_topic) as markers:
        assert markers.newest(b"job/0") == markers.again(b"job/0") == {b"job/0": b"1"}
        mark(config, headway_topic, b"job/1", b"2")
        mark(config, headway_topic, b"other/0", b"3")
        assert markers.again(b"job/0") == markers.again(b"job/0") == {b"job/0": b"1", b"job/1": b"2"}
        mark(config, headway_topic, b"job/0", b"4")
        assert markers.again(b"job/0") == {b"job/0": b"4", b"job/1": b"2"}


@pytest.mark.slow
def test_what_is_no_marker_is_passed_over_and_the_one_before_counts(config: dict[str, str], headway_topic: str) -> None:
    good = Marker(3, 5, "what", "when").encode()
    mark(config, headway_topic, b"job/0", good)
    for value in (b"oops", b"\xff", b"", b'{"version": 1e400}', b'{"version": 4, "rows": null}'):
        mark(config, headway_topic, b"job/0", value)
        mark(config, headway_topic, b"job/1", value)
    with CommitMarkers(config, headway_topic, read_marker) as markers:
        assert markers.newest(b"job/0") == {b"job/0": good}
        assert markers.newest(b"job/1") == {b"job/0": good}


def test_a_marker_that_was_aborted_is_none(config: dict[str, str], headway_topic: str) -> None:
    mark(config, headway_topic, b"job/0", b"1")
    with CommitMarkers(config, headway_topic) as markers:
        with contextlib.suppress(KeyboardInterrupt), ColumnarProducer(config, headway_topic) as producer:
            producer.mark(headway_topic, markers.partition_of(b"job/0"), b"job/0", b"2")
            producer.flush()
            raise KeyboardInterrupt  # before the commit
        with ColumnarProducer(config, headway_topic):  # the next attempt
            assert markers.newest(b"job/0").get(b"job/0") == b"1"


@pytest.mark.slow
def test_a_marker_behind_an_open_transaction_of_others_is_waited_for(
    config: dict[str, str], headway_topic: str
) -> None:
    with CommitMarkers(config, headway_topic) as markers:
        partition = markers.partition_of(b"job/0")
        other = ck.Producer({"log_level": 0, **config, "transactional.id": "other"})
        other.init_transactions(30)
        other.begin_transaction()
        other.produce(headway_topic, b"", b"other/0", partition)
        assert other.flush(30) == 0
        mark(config, headway_topic, b"job/0", b"1")
        found: list[bytes | None] = []
        looking = threading.Thread(target=lambda: found.append(markers.newest(b"job/0").get(b"job/0")))
        looking.start()
        looking.join(0.5)
        assert not found
        other.abort_transaction(30)
        other.close()
        looking.join(30)
        assert found == [b"1"]


def test_the_markers_of_a_writers_other_tasks_are_seen_if_they_are_newer(
    config: dict[str, str], headway_topic: str
) -> None:
    for key, value in ((b"a/job/1", b"old"), (b"a/job/0", b"1"), (b"a/job/1", b"2"), (b"b/job/0", b"3")):
        mark(config, headway_topic, key, value)
    with CommitMarkers(config, headway_topic) as markers:
        assert markers.newest(b"a/job/0") == {b"a/job/0": b"1", b"a/job/1": b"2"}
        assert markers.newest(b"a/job/2") == {b"a/job/0": b"1", b"a/job/1": b"2"}
        assert markers.newest(b"c/job/0") == {}


def test_a_marker_that_somebody_deletes_is_none(config: dict[str, str], headway_topic: str) -> None:
    mark(config, headway_topic, b"job/0", b"1")
    with CommitMarkers(config, headway_topic) as markers:
        producer = ck.Producer({"log_level": 0, **config})
        producer.produce(headway_topic, None, b"job/0", markers.partition_of(b"job/0"))
        assert producer.flush(30) == 0
        producer.close()
        assert markers.newest(b"job/0").get(b"job/0") is None


@pytest.mark.slow
def test_a_marker_is_found_after_partitions_were_added_to_the_topic(config: dict[str, str], headway_topic: str) -> None:
    keys = [f"job-{number}/0".encode() for number in range(4)]
    for key in keys:
        mark(config, headway_topic, key, b"1")
    admin = AdminClient({"log_level": 0, **config})
    admin.create_partitions([NewPartitions(headway_topic, 17)])[headway_topic].result(30)
    while len(admin.list_topics(headway_topic, timeout=30).topics[headway_topic].partitions) < 17:
        pass
    with CommitMarkers(config, headway_topic) as markers:
        assert [markers.newest(key).get(key) for key in keys] == [b"1"] * 4


@pytest.mark.slow
def test_a_topic_with_too_few_partitions_is_refused_with_what_to_do(config: dict[str, str], headway_topic: str) -> None:
    topic = f"{headway_topic}-few"
    Admin(config).create([topic], 3)
    sentence = f"The topic {topic}.* has 3 partitions and needs 16. Add partitions: .*--topic {topic} --partitions 16"
    with pytest.raises(KafkaError, match=sentence):
        create_marker_topic(Admin(config), topic)
    with CommitMarkers(config, topic) as markers, pytest.raises(KafkaError, match=sentence):
        markers.newest(b"job/0").get(b"job/0")


@pytest.mark.slow
@pytest.mark.parametrize(("lasting", "policy"), [(True, "compact"), (False, "delete")])
def test_a_topic_that_is_gone_is_created_anew_as_it_was(
    config: dict[str, str], headway_topic: str, lasting: bool, policy: str
) -> None:
    topic = f"{headway_topic}-gone"
    with CommitMarkers(config, topic, lasting=lasting) as markers:
        assert markers.newest(b"job/0").get(b"job/0") is None
    assert settings_of(config, topic)["cleanup.policy"] == policy


def forgetful(times: int) -> type[UnjoinedConsumer]:
    """A consumer whose leader does not say at first where its log ends, as one that takes over from a dead one."""

    class Forgetful(UnjoinedConsumer):
        asked = 0

        def get_watermark_offsets(self, *args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            return (-1001, -1001) if self.asked <= times else super().get_watermark_offsets(*args, **kwargs)

    return Forgetful


@pytest.mark.slow
def test_a_log_whose_end_is_not_known_is_not_empty(
    config: dict[str, str], headway_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(config, headway_topic, b"job/0", b"1")
    monkeypatch.setattr("headway.kafka.reading.unjoined_consumer.UnjoinedConsumer", forgetful(times=3))
    with CommitMarkers(config, headway_topic) as markers:
        assert markers.newest(b"job/0").get(b"job/0") == b"1"
    monkeypatch.setattr("headway.kafka.reading.unjoined_consumer.UnjoinedConsumer", forgetful(times=1_000))
    with (
        CommitMarkers(config, headway_topic, patience=0.2) as markers,
        pytest.raises(
            KafkaError, match=f"Kafka did not report within 0.2 s where partition .* of {headway_topic} begins"
        ),
    ):
        markers.newest(b"job/0").get(b"job/0")


def columns(topic: str, value: bytes) -> Columns:
    return Columns(1, len(value), [topic], [value], [b"key"], [-1], None)


@pytest.mark.slow
def test_an_attempt_that_was_taken_over_ends_with_a_sentence(config: dict[str, str], headway_topic: str) -> None:
    with ColumnarProducer(config, headway_topic) as first:
        first.send(columns(headway_topic, b"x"))
        first.flush()
        with ColumnarProducer(config, headway_topic), pytest.raises(TransactionError, match="Another attempt"):
            first.commit()


def test_a_row_that_the_broker_refuses_is_a_sentence(config: dict[str, str], headway_topic: str) -> None:
    with ColumnarProducer({**config, "message.max.bytes": "5000000"}) as producer:
        producer.send(columns(headway_topic, b"x" * 3_000_000))
        with pytest.raises(DeliveryError, match=f"of {headway_topic} was not stored"):
            producer.flush()

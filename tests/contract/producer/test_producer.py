import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from enum import Enum
from functools import partial
from typing import Any

import pytest

from headway.core.levels.naming import how_to_create
from headway.errors import ClosedError, ConfigError, DeliveryError, KafkaError, SerializationError
from headway.kafka.producer.delivery import DeliveryFuture
from headway.kafka.topic_creation import create_topic
from headway.priority.producer import Producer
from headway.records.record_types import UNKNOWN_OFFSET, ConsumerRecord, ProducerRecord, RecordMetadata, TopicPartition
from tests.contract.conftest import Cluster


def read_all(cluster: Cluster, topic: str, count: int, **settings: Any) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    with cluster.consumer(f"reads-{topic}", **settings) as consumer:
        consumer.subscribe(topic)
        while len(records) < count:
            polled = consumer.poll(30)
            assert polled, f"only {len(records)} of {count} records came"
            records += polled
    return records


@pytest.mark.quick("kafka")
def test_everything_about_a_record_arrives_as_it_was_sent(cluster: Cluster) -> None:
    topic = cluster.topic()
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b"")]
    with cluster.producer() as producer:
        sent = producer.send(
            topic, b"\x00value", b"\xffkey", level=2, headers=headers, partition=3, timestamp=1_234_567_890_123
        ).result(30)
    [record] = read_all(cluster, topic, 1)

    assert sent[:4] == (topic, 3, 2, 0)
    assert (record.topic, record.kafka_topic, record.level) == (topic, f"{topic}-2", 2)
    assert (record.partition, record.offset, record.timestamp) == (3, 0, 1_234_567_890_123)
    assert (record.key, record.value) == (b"\xffkey", b"\x00value")
    assert list(record.headers) == headers
    assert record.topic_partition == TopicPartition(topic, partition=3, level=2) == sent.topic_partition


def test_without_a_level_a_record_goes_to_level_0(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        assert producer.send(topic, b"v").result(30).level == 0


def test_a_missing_key_and_value_stay_missing(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        producer.send(topic).result(30)
    [record] = read_all(cluster, topic, 1)
    assert (record.key, record.value, list(record.headers)) == (None, None, [])


def test_a_level_may_be_another_kind_of_whole_number(cluster: Cluster) -> None:
    class Urgency(int, Enum):
        HIGH = 2

    topic = cluster.topic()
    with cluster.producer() as producer:
        for level in (Urgency.HIGH, True, 1):
            future = producer.send(topic, b"v", level=level)
            assert future.destination.kafka_topic == f"{topic}-{int(level)}"
            assert future.result(30).level == level


@pytest.mark.parametrize("level", [-1, 3, 100])
def test_a_level_that_does_not_exist_is_refused_and_nothing_is_sent(cluster: Cluster, level: int) -> None:
    with cluster.producer() as producer:
        with pytest.raises(ConfigError, match="must be from 0 to 2"):
            producer.send("orders", b"v", level=level)
        assert producer.metrics().sent == [0, 0, 0]


@pytest.mark.quick("kafka")
def test_records_of_one_key_share_a_partition_and_keep_their_order(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        futures = [producer.send(topic, str(i), f"key {i % 7}", level=1) for i in range(700)]
        places = [future.result(30) for future in futures]
    for key in range(7):
        of_key = places[key::7]
        assert len({place.partition for place in of_key}) == 1
        assert [place.offset for place in of_key] == sorted(place.offset for place in of_key)


@pytest.mark.parametrize(
    "settings", [{"acks": 1}, {"max.in.flight": 6}, {"retries": 0}, {"queuing.strategy": "lifo"}], ids=str
)
def test_what_rules_idempotence_out_is_taken(cluster: Cluster, settings: dict[str, Any]) -> None:
    with cluster.producer(**settings) as producer:
        assert producer.send(cluster.topic(), b"v").result(30).offset == 0


def test_idempotence_that_is_asked_for_and_ruled_out_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"`acks` must be set to `all` when `enable\.idempotence` is true"):
        cluster.producer(**{"enable.idempotence": True, "acks": 1})


def test_a_burst_to_a_new_topic_keeps_its_order(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer(**{"linger.ms": 1}) as producer:
        futures = [producer.send(topic, b"x" * 100, partition=0) for _ in range(40_000)]
        assert [future.result(30).offset for future in futures] == list(range(40_000))


@pytest.mark.quick("kafka")
def test_callbacks_and_metrics_tell_what_happened(cluster: Cluster) -> None:
    topic, told = cluster.topic(), list[tuple[Exception | None, RecordMetadata | None]]()
    with cluster.producer() as producer:
        futures = [
            producer.send(topic, b"v", level=i % 3, on_delivery=lambda *report: told.append(report)) for i in range(30)
        ]
        assert producer.flush(30) == 0
        assert not wait(futures, timeout=0).not_done
        metrics = producer.metrics()
    assert metrics.sent == metrics.delivered == [10, 10, 10]
    assert (metrics.failed, metrics.queued) == ([0, 0, 0], 0)
    assert sorted(str(metadata) for _, metadata in told) == sorted(str(future.result()) for future in futures)


def test_serialisers_are_plain_functions(cluster: Cluster) -> None:
    topic = cluster.topic()
    settings = {"key.serializer": str.encode, "value.serializer": lambda value: json.dumps(value).encode()}
    with cluster.producer(**settings) as producer:
        producer.send(topic, {"total": 5}, "anna").result(30)
    [record] = read_all(cluster, topic, 1, **{"value.deserializer": json.loads, "key.deserializer": bytes.decode})
    assert (record.key, record.value, record.raw_value) == ("anna", {"total": 5}, b'{"total": 5}')


def test_a_serialiser_that_fails_fails_its_own_record_only(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    topic = cluster.topic()
    with cluster.producer(**{"value.serializer": lambda value: json.dumps(value).encode()}) as producer:
        bad, good = producer.send(topic, {1j: 2}), producer.send(topic, {"a": 1})
        with pytest.raises(SerializationError, match=f"value of a record for {topic}-0"):
            bad.result(30)
        assert good.result(30).offset == 0
    assert "could not be serialised" in caplog.text


def test_a_value_that_is_not_bytes_fails_its_future_with_advice(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.producer() as producer, pytest.raises(SerializationError, match=r"set key\.serializer or value"):
        producer.send(cluster.topic(), 12.5).result(30)
    assert caplog.records


@pytest.mark.parametrize("serializers", [{}, {"value.serializer": bytes}], ids=["none", "bytes"])
def test_headers_that_are_none_fail_their_record_only(
    cluster: Cluster, serializers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    topic = cluster.topic()
    with cluster.producer(**serializers) as producer:
        bad = producer.send(topic, b"v", headers=[("trace", 5)])  # type: ignore[list-item]
        with pytest.raises((SerializationError, DeliveryError)):
            bad.result(30)
        assert producer.send(topic, b"v").result(30).offset == 0
    assert caplog.records


def test_a_record_that_kafka_refuses_fails_its_future(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    topic = cluster.topic()
    with cluster.producer(**{"message.max.bytes": 2000}) as producer:
        with pytest.raises(DeliveryError, match=f"{topic}-1 was refused"):
            producer.send(topic, b"x" * 3000, level=1).result(30)
        assert producer.metrics().failed == [0, 1, 0]
    assert "refused" in caplog.text


@pytest.mark.quick("True")
@pytest.mark.parametrize("has_levels", [True, False])
def test_who_waits_for_a_record_to_a_missing_topic_is_told_so_and_it_goes_once_the_topic_is_there(
    kafka_cluster: Cluster, headway_topic: str, has_levels: bool
) -> None:
    settings = kafka_cluster.config({})
    missing = f"{headway_topic}-0" if has_levels else headway_topic
    how = how_to_create(headway_topic, 3 if has_levels else None)
    record = ProducerRecord(headway_topic, b"", level=0 if has_levels else None)
    with Producer({**settings, "levels": 2}) if has_levels else Producer(settings) as producer:
        sent, told, until = producer.send(record), "", time.monotonic() + 30
        while "Kafka has no topic" not in told and time.monotonic() < until:
            with pytest.raises(TimeoutError) as late:
                sent.result(0.2)
            told = str(late.value)
        assert told == (
            f"A record for {headway_topic} at level 0 was not delivered within 0.2 s, because Kafka has no topic "
            f"{missing}. The record can still be delivered once the topic exists. {how} Or correct the topic's name."
        )
        create_topic(settings, headway_topic, levels=2 if has_levels else None)
        assert sent.result(60).offset == 0


@pytest.mark.parametrize(
    ("levels", "topic", "told"),
    [
        (None, "our orders", "Kafka has no topic our orders. This is not a valid name in Kafka"),
        (2, "our orders", "Kafka has no topic our orders-0. This is not a valid name in Kafka"),
    ],
)
def test_a_record_for_a_topic_that_cannot_be_is_refused_with_what_to_do(
    kafka_cluster: Cluster, levels: int | None, topic: str, told: str
) -> None:
    settings = kafka_cluster.config({})
    with (
        Producer({**settings, "levels": levels}) if levels else Producer(settings) as producer,
        pytest.raises(DeliveryError, match=f"^A record for {topic} at level 0 was not delivered: {told}"),
    ):
        producer.send(ProducerRecord(topic, b"", level=0 if levels else None)).result(30)


def test_a_full_queue_makes_send_wait_and_loses_nothing(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer(**{"queue.buffering.max.messages": 10}) as producer:
        futures = [producer.send(topic, str(i), partition=0) for i in range(500)]
        assert [future.result(30).offset for future in futures] == list(range(500))


@pytest.mark.slow
def test_a_queue_that_stays_full_fails_the_future_after_max_block_ms(caplog: pytest.LogCaptureFixture) -> None:
    config = {
        "bootstrap.servers": "127.0.0.1:1",
        "levels": 1,
        "max.block.ms": 50,
        "queue.buffering.max.messages": 1,
        "log_level": 0,
    }
    producer = Producer(config)
    first, second = producer.send("orders", b"1"), producer.send("orders", b"2")
    with pytest.raises(
        DeliveryError, match=r"no space .* within max\.block\.ms=50: 1 records have no delivery report yet"
    ):
        second.result(0)
    assert producer.close(timeout=0) == 1
    with pytest.raises(DeliveryError):
        first.result(0)
    assert caplog.records


@pytest.mark.quick("kafka")
def test_threads_may_send_at_once_and_all_room_is_free_again(cluster: Cluster) -> None:
    topic, before = cluster.topic(), sys.getswitchinterval()
    with cluster.producer(**{"buffer.memory": 6_000_000}) as producer, ThreadPoolExecutor(8) as threads:
        send = partial(producer.send, topic, b"v")
        sys.setswitchinterval(1e-6)  # so that they meet at every place where they can
        try:
            sending = [threads.submit(lambda key: [send(str(key)) for _ in range(5_000)], key) for key in range(8)]
            wait(sending)
        finally:
            sys.setswitchinterval(before)
        assert producer.flush(30) == 0
        assert producer.metrics().delivered == [40_000, 0, 0]
        assert producer.metrics().queued_bytes == 0
        for each in sending:
            offsets = [offset for future in each.result() if (offset := future.result().offset) != UNKNOWN_OFFSET]
            assert offsets == sorted(offsets)


def test_partitions_are_those_of_all_levels(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        assert producer.partitions_for(topic) == [
            TopicPartition(topic, partition=p, level=level) for level in range(3) for p in range(4)
        ]


def test_a_closed_producer_says_so(cluster: Cluster) -> None:
    producer = cluster.producer()
    assert producer.close() == 0
    assert producer.close() == 0
    with pytest.raises(ClosedError):
        producer.send("orders", b"v")


def test_a_misspelt_setting_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match=r"'max\.blok\.ms' is not known\. Did you mean 'max\.block\.ms'\?"):
        Producer({"bootstrap.servers": "x", "levels": 1, "max.blok.ms": 5})


def test_an_argument_among_the_settings_is_told_to_be_one() -> None:
    with pytest.raises(
        ConfigError, match=r"'policy' is not a setting\. Pass arguments of the class as keyword arguments"
    ):
        Producer({"bootstrap.servers": "x", "levels": 1, "policy": "strict"})


def send_and_fail(producer: Producer, topic: str) -> DeliveryFuture:
    with contextlib.suppress(ZeroDivisionError), producer.transaction():
        sent = producer.send(topic, b"no", level=2, on_delivery=lambda *_: None)
        raise ZeroDivisionError
    return sent


@pytest.mark.kafka
def test_an_aborted_transaction_is_not_read_and_a_committed_one_is_whole(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer(**{"transactional.id": topic}) as producer:
        producer.init_transactions()
        dropped = send_and_fail(producer, topic)
        with producer.transaction():
            for level in range(3):
                producer.send(topic, b"yes", level=level)
    assert [record.value for record in read_all(kafka_cluster, topic, 3)] == [b"yes"] * 3
    assert dropped.done()


@pytest.mark.kafka
def test_a_transaction_that_is_aborted_at_once_after_a_commit_leaves_the_producer_in_order(
    kafka_cluster: Cluster,
) -> None:
    topic, rounds = kafka_cluster.topic(), 60
    with kafka_cluster.producer(**{"transactional.id": topic}) as producer:
        producer.init_transactions()
        for number in range(rounds):
            with producer.transaction():
                producer.send(topic, b"yes")
            producer.begin_transaction()
            producer.send(topic, b"no")
            time.sleep(number % 5 / 1000)  # Kafka begins it, or does not, before it is aborted
            producer.abort_transaction()
    assert [record.value for record in read_all(kafka_cluster, topic, rounds)] == [b"yes"] * rounds


@pytest.mark.kafka
@pytest.mark.parametrize("lost", [{"value": b"x" * 2_000_000}, {"value": object()}, {"value": b"v", "partition": 99}])
def test_a_transaction_of_which_a_record_could_not_be_sent_is_not_committed(
    kafka_cluster: Cluster, lost: dict[str, Any]
) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer(**{"transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"no")
        producer.send(topic, **lost, on_delivery=lambda *_: None)
        with pytest.raises((DeliveryError, KafkaError)):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"yes")
    assert [record.value for record in read_all(kafka_cluster, topic, 1)] == [b"yes"]


@pytest.mark.kafka
def test_who_is_fenced_off_is_told_of_every_record_even_if_nobody_asks(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    ours = {"transactional.id": topic}
    with kafka_cluster.producer(**ours) as first:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"before").result(30)
        with kafka_cluster.producer(**ours) as second:
            second.init_transactions()
        told = [threading.Event() for _ in range(20)]
        for each in told:
            first.send(topic, b"after", on_delivery=lambda *_, each=each: each.set())
        assert all(each.wait(30) for each in told)


def commit(producer: Producer) -> None:
    """Leave a `with` block that went well."""


def fail(producer: Producer) -> None:
    """Leave it with an error of one's own."""
    raise ZeroDivisionError


@pytest.mark.kafka
@pytest.mark.parametrize(("within", "error"), [(commit, KafkaError), (fail, ZeroDivisionError)])
@pytest.mark.parametrize("sends", [True, False], ids=["with a record", "with a stored record"])
def test_who_is_fenced_off_leaves_its_transaction_at_once_and_is_told_why(
    kafka_cluster: Cluster, sends: bool, within: Callable[[Producer], None], error: type[Exception]
) -> None:
    topic = kafka_cluster.topic()
    ours = {"transactional.id": topic}
    with kafka_cluster.producer(**ours) as first, kafka_cluster.producer(**ours) as second:
        first.init_transactions()
        with pytest.raises(error) as raised, first.transaction():  # noqa: PT012 - leaving it is what raises
            first.send(topic, b"no").result(30)
            second.init_transactions()
            if sends:
                first.send(topic, b"no", on_delivery=lambda *_: None)
            began = time.monotonic()
            within(first)
        assert time.monotonic() - began < 10
        assert "onflicting" not in str(raised.value)
        with second.transaction():
            second.send(topic, b"yes")
    assert [record.value for record in read_all(kafka_cluster, topic, 1)] == [b"yes"]


@pytest.mark.kafka
def test_what_is_reported_within_a_commit_gives_its_room_back(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer(**{"transactional.id": topic, "linger.ms": 100}) as producer:
        producer.init_transactions()
        for _ in range(3):
            with producer.transaction():
                sent = [producer.send(topic, b"x" * 1_000, level=number % 3) for number in range(3_000)]
            assert all(future.done() for future in sent)
            assert producer.metrics().queued_bytes == 0


@pytest.mark.kafka
def test_headers_are_any_sequence_of_pairs(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        for headers in ((), (("a", b"b"),), [("a", b"b")], None):
            producer.send(topic, b"v", headers=headers).result(30)
    assert Counter(len(record.headers) for record in read_all(kafka_cluster, topic, 4)) == {0: 2, 1: 2}


@pytest.mark.kafka
def test_a_partition_that_is_no_integer_is_refused_and_spoils_nothing(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        with pytest.raises(DeliveryError, match=r"has partition=0\.0"):
            producer.send(topic, b"v", partition=0.0).result(30)  # type: ignore[arg-type]
        producer.send(topic, b"v", partition=0).result(30)


@pytest.mark.kafka
def test_a_flush_within_a_callback_waits_for_nobody(kafka_cluster: Cluster) -> None:
    topic, left = kafka_cluster.topic(), list[int]()
    with kafka_cluster.producer() as producer:
        for _ in range(100):
            producer.send(topic, b"v", on_delivery=lambda *_: left.append(producer.flush()))
    assert len(left) == 100


@pytest.mark.parametrize("key", ["delivery.report.only.error", "on_delivery"])
def test_a_setting_that_would_keep_reports_from_the_futures_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"The setting {key} cannot be used here. Futures need every delivery report"):
        Producer({"bootstrap.servers": "x", "levels": 1, key: True})


@pytest.mark.kafka
def test_what_a_consumer_returned_is_committed_with_the_transaction_in_all_its_groups(kafka_cluster: Cluster) -> None:
    source, target = kafka_cluster.topic(), kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        for i in range(30):
            producer.send(source, str(i), level=i % 3)
    moved: list[ConsumerRecord] = []
    with (
        kafka_cluster.consumer(f"moves-{source}") as consumer,
        kafka_cluster.producer(**{"transactional.id": source}) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe(source)
        while len(moved) < 30:
            with producer.transaction():
                for record in consumer.poll(30):
                    producer.send(target, record.value, level=record.level)
                    moved.append(record)
                producer.send_offsets(consumer)
        committed = consumer.committed(consumer.assignment())
    assert sum(offset or 0 for offset in committed.values()) == 30
    assert len(read_all(kafka_cluster, target, 30)) == 30

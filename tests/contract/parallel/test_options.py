"""Options of a parallel consumer that say what it keeps, warns of and takes for an error, on a real Apache Kafka."""

import logging
import threading
from collections import defaultdict
from typing import Any, Literal

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, Context, Ordering
from headway.errors import ConfigError, OffsetMapError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import Member, client_of, committed, consumer, send, topic_of, wait_for

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("ordering", [Ordering.KEY_IF_ANY, "key_if_any"])
def test_records_without_a_key_may_run_beside_each_other_while_those_of_a_key_keep_their_order(
    kafka_cluster: Cluster, ordering: Ordering | Literal["key_if_any"]
) -> None:
    topic, meeting = topic_of(kafka_cluster, 1), threading.Barrier(5, timeout=30)
    of_key: dict[bytes, list[int]] = defaultdict(list)

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.key is None:
            meeting.wait()
        else:
            of_key[record.key].append(int(record.value))

    send(kafka_cluster, topic, [(None, str(i)) for i in range(5)] + [(f"key-{i % 3}", str(i)) for i in range(60)])
    member = Member(consumer(kafka_cluster, topic, {"ordering": ordering}), handle)
    wait_for(lambda: member.consumer.metrics().done == 65)
    member.stop()
    assert all(values == sorted(values) for values in of_key.values())


def test_records_that_wait_too_long_are_counted_and_told_in_a_sum(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic, gate = topic_of(kafka_cluster, 1), threading.Event()
    send(kafka_cluster, topic, [("a", str(i)) for i in range(20)])
    options = {"queue_time_warning": 0.2}
    with caplog.at_level(logging.WARNING, "headway"):
        member = Member(consumer(kafka_cluster, topic, options), lambda record, context: gate.wait(30))
        wait_for(lambda: member.consumer.metrics().running == 1)
        threading.Event().wait(0.3)
        gate.set()
        wait_for(lambda: member.consumer.metrics().done == 20)
        assert member.consumer.metrics().late == 19
        member.stop()
    told = [each for each in caplog.messages if "waited for more than 0.2 s" in each]
    assert 1 <= len(told) <= 2
    assert sum(int(each.split()[0]) for each in told) == 19


@pytest.mark.parametrize("metadata", ["a note of ours", "bAAAA", "x" * 100])
def test_metadata_that_is_no_offset_map_ends_the_run_if_it_is_to(kafka_cluster: Cluster, metadata: str) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(5)])
    with client_of(kafka_cluster, topic) as client:
        client.commit(offsets=[ck.TopicPartition(topic, 0, 2, metadata)], asynchronous=False)
    handled: list[int] = []
    strict = consumer(kafka_cluster, topic, {"on_invalid_metadata": "fail"})
    with pytest.raises(
        OffsetMapError, match=r"at offset 2 cannot be used as an offset map.*on_invalid_metadata='warn' to continue"
    ):
        strict.run(lambda record: handled.append(record.offset))
    assert handled == []
    [(offset, kept)] = committed(kafka_cluster, topic).values()
    assert (offset, kept.rstrip(b"\0")) == (2, metadata.encode())

    member = Member(consumer(kafka_cluster, topic), lambda record, context: handled.append(record.offset))
    wait_for(lambda: len(handled) == 3)
    member.stop()
    assert handled == [2, 3, 4]


@pytest.mark.slow
def test_the_number_and_the_bytes_of_buffered_records_can_be_set(kafka_cluster: Cluster) -> None:
    topic, gate = topic_of(kafka_cluster, 1), threading.Event()
    send(kafka_cluster, topic, [(str(i), "x" * 1000) for i in range(5000)])
    most: dict[str, int] = {}
    for name, options in {
        "few": {"buffer_records": 20},
        "usual": {},
        "small": {"buffer_memory": 2**20, "buffer_records": 5000},
    }.items():
        gate.clear()
        settings: dict[str, Any] = {"max_concurrency": 4, **options}
        member = Member(consumer(kafka_cluster, topic, settings), lambda record, context: gate.wait(30))
        wait_for(lambda member=member: member.consumer.metrics().running == 4)  # type: ignore[misc]
        threading.Event().wait(0.5)
        most[name] = member.consumer.metrics().remaining
        member.consumer.stop(drain=False)
        gate.set()
        member.stop(drain=False)
    assert most["few"] <= 50
    assert 500 <= most["usual"] <= 2000
    assert most["small"] <= 1500


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue_time_warning": 0}, "queue_time_warning is 0; it must be above 0"),
        ({"on_invalid_metadata": "ignore"}, "on_invalid_metadata is 'ignore'; choose one of 'warn', 'fail'"),
        ({"buffer_records": 5}, "buffer_records is 5; it must be at least 16"),
        ({"buffer_memory": 5000}, "buffer_memory is 5000 bytes; it must be at least 1048576"),
    ],
)
def test_an_option_out_of_bounds_is_refused(kafka_cluster: Cluster, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        consumer(kafka_cluster, "orders", options)
    assert sentence in str(refused.value)

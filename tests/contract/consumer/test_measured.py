"""What each metric of a priority consumer means, shown by runs in which the right values are known."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pytest

from headway import AsyncPriorityConsumer, PriorityConsumer
from headway.core.levels.naming import level_topic
from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Sample
from headway.metrics.table import METRICS
from tests.contract.conftest import Cluster
from tests.contract.consumer.test_lost_places import PRIORITY, commit, delete_before, numbered
from tests.contract.parallel.members import send, settings_of, topic_of

pytestmark = pytest.mark.kafka


def values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels, without the group. Of a histogram the number of values."""
    return {
        each.labels[1:]: each.value.count if isinstance(each.value, HistogramValue) else each.value
        for each in samples
        if each.name == f"headway_{name}"
    }


def poll_until(consumer: PriorityConsumer, condition: Callable[[], Any]) -> None:
    """Samples are made while the consumer polls, at most twice a second."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        assert consumer.poll(0.05) == []


def send_to_levels(cluster: Cluster, topic: str, counts: dict[int, int], age: float) -> None:
    producer: ck.Producer = cluster.plain_producer()
    for level, count in counts.items():
        for _ in range(count):
            producer.produce(level_topic(topic, level), b"x", partition=0, timestamp=int((time.time() - age) * 1000))
    assert producer.flush(30) == 0


def test_the_metrics_of_a_priority_consumer_are_what_happened(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    settings = {"client.id": "till", "statistics.interval.ms": 100, "max.poll.records": 30}
    with kafka_cluster.consumer(topic, **settings) as consumer:
        measure = consumer.measure()
        assert consumer.measure() == measure
        assert measure() == []  # it has not polled yet
        consumer.subscribe(topic)
        poll_until(consumer, lambda: len(consumer.assignment()) == 12)  # otherwise `pause` would miss some
        send_to_levels(kafka_cluster, topic, {2: 10, 0: 100}, age=50)
        returned = high = 0
        while returned < 40 or high < 10:
            records = consumer.poll(30)
            returned += len(records)
            high += sum(record.level == 2 for record in records)
        all_levels, bottom = (topic, "0", "0"), (topic, "0")
        low = returned - 10
        time.sleep(0.6)
        consumer.pause()
        poll_until(consumer, lambda: values(measure(), "partition_end_offset").get(all_levels) == 100)
        poll_until(consumer, lambda: values(measure(), "librdkafka_requests_total"))
        samples = measure()
        assert values(samples, "level_returned_total") == {("0",): low, ("1",): 0, ("2",): 10}
        assert values(samples, "level_queue_seconds") == {("0",): low, ("1",): 0, ("2",): 10}
        waited = sum(each.value.sum for each in samples if isinstance(each.value, HistogramValue))
        assert 50 * returned <= waited < 120 * returned
        assert values(samples, "level_partitions") == {("0",): 4, ("1",): 4, ("2",): 4}
        assert values(samples, "level_not_done")[bottom] == 100 - low
        assert values(samples, "partition_not_done")[all_levels] == 100 - low
        assert values(samples, "partition_position_offset")[all_levels] == low
        assert values(samples, "partition_paused")[*all_levels, "user"] == 1
        assert values(samples, "level_ready")["0",] <= 100 - low
        share = values(samples, "level_share_ratio")
        assert sum(share.values()) == pytest.approx(1)
        assert share["2",] == pytest.approx(18 / 30)  # 4/7 of each poll, in whole records
        assert values(samples, "consumer_refused") == {(): 0}
        assert {each.labels[0] for each in samples if "librdkafka" in each.name} == {"till"}
        assert {each.name for each in samples} <= METRICS.keys()
        consumer.resume()
        while returned < 110:
            returned += len(consumer.poll(30))
    closed = measure()  # the state at the end, after the consumer was closed
    assert values(closed, "level_returned_total") == {("0",): 100, ("1",): 0, ("2",): 10}
    assert values(closed, "level_not_done")[bottom] == 0


def test_offsets_that_were_deleted_unread_are_counted(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, numbered(110))
    commit(kafka_cluster, topic, 10)
    delete_before(kafka_cluster, topic, 60)
    with closing(PriorityConsumer(kafka_cluster.config(settings_of(topic) | PRIORITY))) as consumer:
        measure = consumer.measure()
        consumer.subscribe({topic: 0})
        assert consumer.poll(30)[0].offset == 60
    assert values(measure(), "level_deleted_unread_total") == {("0",): 50}


async def test_an_asyncio_consumer_is_measured_too(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    send_to_levels(kafka_cluster, topic, {1: 5}, age=0)
    async with AsyncPriorityConsumer(kafka_cluster.consumer_config(topic)) as consumer:
        measure = await consumer.measure()
        consumer.subscribe(topic)
        returned = 0
        while returned < 5:
            returned += len(await consumer.poll(30))
    assert values(measure(), "level_returned_total") == {("0",): 0, ("1",): 5, ("2",): 0}

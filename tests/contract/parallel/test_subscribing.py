"""When a consumer may be told its topics. On librdkafka's mock."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, ParallelConsumer
from headway.errors import ConfigError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import plain_topic, send, wait_for

Handle = Callable[[Any], Any]
WAYS: dict[str, Callable[[ParallelConsumer, Handle], object]] = {
    "run": lambda consumer, handle: consumer.run(handle),
    "batches": lambda consumer, handle: consumer.run(handle, batches=Batches(10)),
    "run_and_produce": lambda consumer, handle: consumer.run_and_produce(handle),
    "run_async": lambda consumer, handle: asyncio.run(consumer.run_async(handle)),
    "run_and_produce_async": lambda consumer, handle: asyncio.run(consumer.run_and_produce_async(handle)),
    "results": lambda consumer, handle: list(consumer.results(handle)),
    "outputs": lambda consumer, handle: list(consumer.outputs(handle, batches=Batches(10))),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_subscription_while_a_consumer_runs_is_refused_and_the_run_goes_on(mock_cluster: Cluster, way: str) -> None:
    topic, other, handled = plain_topic(mock_cluster), plain_topic(mock_cluster), list[Any]()

    def handle(records: ConsumerRecord | list[ConsumerRecord]) -> None:
        handled.extend(records if isinstance(records, list) else [records])

    config = mock_cluster.config({"group.id": topic, "auto.offset.reset": "earliest"})
    with ParallelConsumer(config) as consumer:
        consumer.subscribe(topic)
        send(mock_cluster, topic, [("k", "1")])
        running = threading.Thread(target=WAYS[way], args=(consumer, handle))
        running.start()
        wait_for(lambda: handled)
        with pytest.raises(ConfigError, match="subscribe was called after the consumer had started"):
            consumer.subscribe(other)
        send(mock_cluster, topic, [("k", "2")])
        wait_for(lambda: len(handled) == 2)
        consumer.stop()
        running.join()


def test_topics_may_be_named_again_before_a_consumer_runs(mock_cluster: Cluster) -> None:
    topic = plain_topic(mock_cluster)
    with ParallelConsumer(mock_cluster.config({"group.id": topic})) as consumer:
        consumer.subscribe(plain_topic(mock_cluster))
        consumer.subscribe(topic)

"""The end of a consumer takes as long as its drain time-out, whatever its groups and brokers do meanwhile."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import confluent_kafka as ck
import pytest

from headway import ParallelConsumer, PriorityConsumer
from tests.contract.conftest import LEVELS, Cluster
from tests.contract.parallel.members import settings_of, wait_for
from tests.kafka_proxy import KafkaProxy

pytestmark = pytest.mark.kafka

EVERY_API = range(100)


@contextmanager
def groups_that_meet(cluster: Cluster, topic: str) -> Iterator[None]:
    """The group of each level waits for a member that answers nothing, as for one that was killed."""
    with ExitStack() as members:
        for level in range(LEVELS):
            own = cluster.config({"group.id": f"{topic}-{level}", "session.timeout.ms": 30_000})
            member = members.enter_context(closing(ck.Consumer(own | {"log_level": 0})))
            member.subscribe([f"{topic}-{level}"])
            while not member.assignment():
                member.poll(0.1)
        yield


def test_levels_leave_at_the_same_time_and_the_drain_time_out_bounds_the_whole_end(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with groups_that_meet(kafka_cluster, topic):
        parallel = ParallelConsumer(kafka_cluster.config(settings_of(topic, levels=LEVELS) | {"log_level": 0}))
        parallel.subscribe(topic)
        running = threading.Thread(target=parallel.run, args=(lambda record: None,))
        running.start()
        threading.Event().wait(2)  # nothing tells that the groups have begun to meet
        began = time.monotonic()
        parallel.close(timeout=2.0)
        took = time.monotonic() - began
        running.join()
    assert took < 6.0  # one level after the other took 6 s each


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parallel", "priority"])
def test_a_consumer_whose_brokers_hang_closes_in_ten_seconds(kafka_cluster: Cluster, kind: str) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        for level in range(LEVELS):
            producer.send(topic, "v", level=level, partition=0)
    read = list[int]()
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy:
        own = settings_of(topic, levels=LEVELS) | {"bootstrap.servers": proxy.bootstrap_servers, "log_level": 0}
        if kind == "parallel":
            parallel = ParallelConsumer(own)
            parallel.subscribe(topic)
            running = threading.Thread(target=parallel.run, args=(lambda record: read.append(record.level),))
            running.start()
            wait_for(lambda: len(read) == LEVELS)
            proxy.hold(*EVERY_API)
            began = time.monotonic()
            parallel.close()
            running.join()
        else:
            consumer = PriorityConsumer(own)
            consumer.subscribe(topic)
            while len(read) < LEVELS:
                read += [record.level for record in consumer.poll(0.1)]
            proxy.hold(*EVERY_API)
            began = time.monotonic()
            consumer.close()
        took = time.monotonic() - began
        proxy.hold()
        wait_for(lambda: all(thread.name != "headway-close" for thread in threading.enumerate()), seconds=60)
    assert took < 15.0

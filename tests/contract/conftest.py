"""Two clusters for one suite: librdkafka's mock, which is quick, and a real Apache Kafka, which is right."""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway.broker import LocalBroker
from headway.core.levels.naming import level_topic
from headway.kafka.binding.mock_cluster import MockCluster
from headway.priority.consumer import PriorityConsumer
from headway.priority.producer import Producer

LEVELS = 3
PARTITIONS = 4  # as the mock gives a topic


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the clients connect, and how topics come to be there."""

    bootstrap_servers: str
    create_topics: Callable[[list[str]], None]
    session_timeout: int = 6000  # milliseconds; the least that Kafka allows

    def topic(self, levels: int = LEVELS) -> str:
        """A new logical topic."""
        topic = f"orders-{uuid.uuid4().hex[:8]}"
        self.create_topics([level_topic(topic, level) for level in range(levels)])
        return topic

    def producer(self, **settings: Any) -> Producer:
        """A producer for three levels."""
        return Producer(self.config({"levels": LEVELS, "linger.ms": 0} | settings))

    def plain_producer(self) -> ck.Producer:
        """Kafka's plain client, which the tests of a process share and none closes.

        A new idempotent client sends its first record half a second late: it asks for its producer id before it is
        connected, and asks again after 500 ms.
        """
        return _plain_producer(self.bootstrap_servers)

    def forget_topics(self) -> None:
        """Let the next plain producer be a new one, which does not know topics as they were before they changed."""
        _plain_producer.cache_clear()

    def consumer(
        self, group: str, policy: Any = "capacity_burst", distributor: Any = None, **settings: Any
    ) -> PriorityConsumer:
        """A consumer of three levels that commits only when told."""
        config = self.consumer_config(group) | settings
        return PriorityConsumer(config, policy=policy, distributor=distributor)

    def consumer_config(self, group: str) -> dict[str, Any]:
        """What a consumer of three levels needs."""
        return self.config(
            {
                "levels": LEVELS,
                "max.poll.records": 70,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": self.session_timeout,
            }
        )

    def config(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings with the address of this cluster."""
        return {"bootstrap.servers": self.bootstrap_servers} | settings


@lru_cache(maxsize=4)
def _plain_producer(servers: str) -> ck.Producer:
    # Without idempotence a batch that is sent again to a new topic can come behind the next one.
    return ck.Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 5, "enable.idempotence": True})


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[Cluster]:
    """librdkafka's own cluster, in this process."""
    with MockCluster() as mock:

        def create_topics(names: list[str]) -> None:
            mock.create(names, PARTITIONS)

        # A group that somebody joins again waits for a second less than this.
        yield Cluster(mock.bootstrap_servers, create_topics, session_timeout=2000)


@pytest.fixture(scope="session")
def kafka_cluster(headway_broker: LocalBroker) -> Cluster:
    """A real Apache Kafka."""
    return cluster_of(headway_broker)


def cluster_of(broker: LocalBroker) -> Cluster:
    """A running broker as a cluster."""
    admin = AdminClient({"log_level": 0, "bootstrap.servers": broker.bootstrap_servers})

    def create_topics(names: list[str]) -> None:
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            created.result(30)
        # A broker tells of a new topic a moment after it was created, and a busy one later than tests look for it.
        deadline = time.monotonic() + 30
        while any(admin.list_topics(name, timeout=30).topics[name].error for name in names):
            assert time.monotonic() < deadline, f"{names} do not appear"
            time.sleep(0.05)

    return Cluster(broker.bootstrap_servers, create_topics)


@pytest.fixture(params=["mock", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each of the two clusters in turn."""
    found = request.getfixturevalue(f"{request.param}_cluster")
    assert isinstance(found, Cluster)
    return found

"""librdkafka's mock cluster: a broker in this process, for tests that need only records, groups and commits.

The mock has no controller and no ACLs, and never answers a request to create or describe topics. So Headway's clients
check whether their address belongs to a mock in this process, and if so, send no such requests.
"""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import cimpl

from headway.declarations import check_whole, shown
from headway.errors import ConfigError, TopicExistsError
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.forks import register_for_forks
from headway.kafka.binding.librdkafka import handle_of, lib
from headway.runtime.lifecycle import Closable

_STARTS_WITHIN = 10.0  # seconds
_running: dict[str, "MockCluster"] = {}  # the running mock clusters by their addresses


def mock_at(servers: Any) -> "MockCluster | None":
    """Return the mock cluster with these `bootstrap.servers`, or None if no such cluster runs in this process."""
    return _running.get(servers) if isinstance(servers, str) else None


_MAX_PARTITIONS = 10_000


class MockCluster(Closable):
    """A cluster with one broker in this process, without Java.

    It starts in milliseconds, and loses all data when closed.
    """

    def __init__(self) -> None:
        self._client = make_client(cimpl.Producer, {"test.mock.num.brokers": 1, "log_level": 0})
        [broker] = self._client.list_topics(timeout=_STARTS_WITHIN).brokers.values()
        self.bootstrap_servers = f"{broker.host}:{broker.port}"
        self._cluster = lib.rd_kafka_handle_mock_cluster(handle_of(self._client))
        # Without this call, a new group would wait for 3 s, as with real brokers, and a group that is joined again for
        # 2 s.
        lib.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        _running[self.bootstrap_servers] = self
        register_for_forks(self)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which a client connects to this cluster."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._client.list_topics(timeout=_STARTS_WITHIN).topics)

    def create(self, topics: Iterable[str], partitions: int) -> None:
        """Create Kafka topics with 1 to 10,000 partitions each. Raises `TopicExistsError` if one exists already."""
        check_whole("partitions", partitions, 1)
        if partitions > _MAX_PARTITIONS:
            raise ConfigError(f"partitions is {shown(partitions)}; the mock cluster accepts at most {_MAX_PARTITIONS}.")
        for topic in topics:
            if topic in self.topics():
                raise TopicExistsError(f"The mock cluster already has a topic {topic}. Choose another name.")
            if lib.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1):
                raise ConfigError(
                    f"The mock cluster cannot create a topic named {topic!r} with {partitions} partitions. Choose "
                    "another name."
                )

    def forked(self) -> None:
        """Remove the cluster's address in a forked process, where no broker runs.

        The cluster in the parent stays reachable.
        """
        _running.pop(self.bootstrap_servers, None)

    def close(self) -> None:
        """Stop the cluster and delete its records. In a forked process, this call does nothing."""
        if _running.pop(self.bootstrap_servers, None):
            self._client.close()

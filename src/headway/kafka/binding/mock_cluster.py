"""librdkafka's mock cluster: brokers in this process, for tests that need no more than records, groups and commits.

It has no controller and no rights: who asks the mock to create or describe topics waits for nothing. So clients here
look the address up among the mocks that run in this process, and do not ask.
"""

import ctypes
from collections.abc import Iterable
from ctypes import c_char_p, c_int, c_int32, c_void_p
from typing import Any

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.declarations import check_whole, shown
from headway.errors import ConfigError, KafkaError
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.forks import register_for_forks
from headway.kafka.binding.librdkafka import handle_of
from headway.runtime.lifecycle import Closable

_STARTS_WITHIN = 10.0  # seconds
_running: dict[str, "MockCluster"] = {}  # by address


def mock_at(servers: Any) -> "MockCluster | None":
    """Return the mock cluster that runs in this process at these `bootstrap.servers`, if one does."""
    return _running.get(servers) if isinstance(servers, str) else None


_MOST_PARTITIONS = 10_000


class MockCluster(Closable):
    """A cluster of one broker in this process, without Java. It starts in milliseconds, and forgets all at its end."""

    def __init__(self) -> None:
        self._client = make_client(ck.Producer, {"test.mock.num.brokers": 1, "log_level": 0})
        [broker] = self._client.list_topics(timeout=_STARTS_WITHIN).brokers.values()
        self.bootstrap_servers = f"{broker.host}:{broker.port}"
        library = ctypes.CDLL(cimpl.__file__)
        library.rd_kafka_handle_mock_cluster.restype = c_void_p
        library.rd_kafka_handle_mock_cluster.argtypes = [c_void_p]
        self._create = library.rd_kafka_mock_topic_create
        self._create.argtypes = [c_void_p, c_char_p, c_int, c_int]
        self._cluster = library.rd_kafka_handle_mock_cluster(handle_of(self._client))
        # By default each new group waits for 3 s, as brokers let it, and one that is joined again for 2 s.
        start_at_once = library.rd_kafka_mock_group_initial_rebalance_delay_ms
        start_at_once.argtypes = [c_void_p, c_int32]
        start_at_once(self._cluster, 0)
        _running[self.bootstrap_servers] = self
        register_for_forks(self)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a client that reaches it."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._client.list_topics(timeout=_STARTS_WITHIN).topics)

    def create(self, topics: Iterable[str], partitions: int) -> None:
        """Create Kafka topics of 1 to 10,000 partitions; raises `KafkaError` for one that exists."""
        check_whole("partitions", partitions, 1)
        if partitions > _MOST_PARTITIONS:
            raise ConfigError(f"partitions is {shown(partitions)}; the mock cluster takes up to {_MOST_PARTITIONS}.")
        for topic in topics:
            if topic in self.topics():
                raise KafkaError(f"The mock cluster has {topic} already. Choose another name.")
            if self._create(self._cluster, topic.encode(), partitions, 1):
                raise ConfigError(f"The mock cluster takes no topic {topic!r} of {partitions} partitions.")

    def forked(self) -> None:
        """Be a cluster of another process: it is reached by its address, and ends with that process."""
        _running.pop(self.bootstrap_servers, None)

    def close(self) -> None:
        """End the cluster; its records go with it. In a forked process it does nothing."""
        if _running.pop(self.bootstrap_servers, None):
            self._client.close()

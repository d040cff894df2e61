"""librdkafka's mock cluster of three brokers, whose partitions can lose leaders and whose brokers can go silent."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka as ck

from headway.kafka.binding.librdkafka import handle_of
from tests.broker.delay_cluster import wait_until

_NOBODY = -1


class MockBrokers:
    """Three brokers in this process; topics have four partitions."""

    def __init__(self) -> None:
        self._holder = ck.Producer({"test.mock.num.brokers": 3, "log_level": 0})
        self._librdkafka = ctypes.CDLL(ck.cimpl.__file__)
        get = self._librdkafka.rd_kafka_handle_mock_cluster
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        self._cluster = ctypes.c_void_p(get(handle_of(self._holder)))
        brokers = self._holder.list_topics(timeout=10).brokers.values()
        self.bootstrap_servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def create(self, topic: str) -> dict[int, int]:
        """Make a topic; the leader of each of its partitions."""
        partitions = self._holder.list_topics(topic, timeout=10).topics[topic].partitions
        return {number: about.leader for number, about in partitions.items()}

    def create_with(self, topic: str, partitions: int) -> None:
        """Make a topic of this many partitions."""
        create = self._librdkafka.rd_kafka_mock_topic_create
        create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
        assert create(self._cluster, topic.encode(), partitions, 1) == 0

    def lead(self, topic: str, partition: int, broker: int = _NOBODY) -> None:
        """Let a broker lead a partition from now on, or nobody."""
        set_leader = self._librdkafka.rd_kafka_mock_partition_set_leader
        set_leader.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32]
        assert set_leader(self._cluster, topic.encode(), partition, broker) == 0

    def answer_after(self, broker: int, milliseconds: int) -> None:
        """Let a broker take so long to answer."""
        set_rtt = self._librdkafka.rd_kafka_mock_broker_set_rtt
        set_rtt.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int]
        assert set_rtt(self._cluster, broker, milliseconds) == 0

    def refuse(self, request: int, error: int, times: int = 1_000) -> None:
        """Answer requests of a kind, by Kafka's number for it, with an error."""
        push = self._librdkafka.rd_kafka_mock_push_request_errors_array
        push.restype, push.argtypes = None, [ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.c_void_p]
        push(self._cluster, request, times, (ctypes.c_int * times)(*[error] * times))

    def accept(self, request: int) -> None:
        """Refuse requests of a kind no more."""
        clear = self._librdkafka.rd_kafka_mock_clear_request_errors
        clear.restype, clear.argtypes = None, [ctypes.c_void_p, ctypes.c_int16]
        clear(self._cluster, request)

    def coordinate(self, kind: str, key: str, broker: int) -> None:
        """Let a broker coordinate a "group" or a "transaction"."""
        set_coordinator = self._librdkafka.rd_kafka_mock_coordinator_set
        set_coordinator.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32]
        assert set_coordinator(self._cluster, kind.encode(), key.encode(), broker) == 0

    def stop(self, broker: int) -> None:
        """Close a broker's connections, and refuse new ones."""
        self._librdkafka.rd_kafka_mock_broker_set_down.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        assert self._librdkafka.rd_kafka_mock_broker_set_down(self._cluster, broker) == 0

    def start(self, broker: int) -> None:
        """Let a stopped broker be reached again."""
        self._librdkafka.rd_kafka_mock_broker_set_up.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        assert self._librdkafka.rd_kafka_mock_broker_set_up(self._cluster, broker) == 0

    def wait_for(self, request: int, count: int) -> None:
        """Return once so many requests of a kind have come, from the call of `count_requests` on."""
        wait_until(lambda: self._came(request) >= count, within=30)

    def count_requests(self) -> None:
        """Begin to count what comes."""
        self._librdkafka.rd_kafka_mock_start_request_tracking.argtypes = [ctypes.c_void_p]
        self._librdkafka.rd_kafka_mock_start_request_tracking(self._cluster)

    def _came(self, request: int) -> int:
        get, key_of = self._librdkafka.rd_kafka_mock_get_requests, self._librdkafka.rd_kafka_mock_request_api_key
        get.restype, get.argtypes = ctypes.POINTER(ctypes.c_void_p), [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
        key_of.restype, key_of.argtypes = ctypes.c_int16, [ctypes.c_void_p]
        destroy = self._librdkafka.rd_kafka_mock_request_destroy_array
        destroy.restype, destroy.argtypes = None, [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
        count = ctypes.c_size_t()
        requests = get(self._cluster, ctypes.byref(count))
        try:
            return sum(key_of(requests[number]) == request for number in range(count.value))
        finally:
            destroy(requests, count)

    def close(self) -> None:
        """End them."""
        self._holder.close()


@contextmanager
def mock_brokers() -> Iterator[MockBrokers]:
    """Three brokers for the length of a `with` block."""
    brokers = MockBrokers()
    try:
        yield brokers
    finally:
        brokers.close()

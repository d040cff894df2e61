"""Where partitions begin and end, asked while the broker that leads one of them is away and not missed yet."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from headway.errors import KafkaError
from headway.kafka.reading.catalog import Catalog
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.log_bounds import LATEST, LogBounds, fetched_end, list_offsets, watermarks
from headway.records.record_types import TopicPartition
from tests.compacted import read_compacted
from tests.contract.mock_brokers import MockBrokers, mock_brokers

TOPIC = "state-0"
PLACE = TOPIC, 0


class Cluster:
    """A topic with records, whose first partition is led by a broker that can be away."""

    def __init__(self, brokers: MockBrokers) -> None:
        self._brokers = brokers
        self._leader = brokers.create(TOPIC)[0]
        self.config: dict[str, Any] = {"bootstrap.servers": brokers.bootstrap_servers}
        with closing(ck.Producer({**self.config, "log_level": 0})) as producer:
            for number in range(10):
                producer.produce(TOPIC, b"%d" % number, b"%d" % (number % 3), partition=0)
            producer.flush()

    def leave(self) -> None:
        """The leader says nothing, and the others still know it as the leader."""
        self._brokers.answer_after(self._leader, 60_000)

    @contextmanager
    def away_for(self, seconds: float) -> Iterator[None]:
        """The leader is away, and comes back after so many seconds."""
        self.leave()
        with _after(seconds, self._brokers.answer_after, self._leader, 0):
            yield

    @contextmanager
    def without_leader_for(self, seconds: float) -> Iterator[None]:
        """Nobody leads the partition, for so many seconds."""
        self._brokers.lead(TOPIC, 0)
        with _after(seconds, self._brokers.lead, TOPIC, 0, self._leader):
            yield


@contextmanager
def _after(seconds: float, call: Callable[..., None], *arguments: object) -> Iterator[None]:
    timer = threading.Timer(seconds, call, arguments)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with mock_brokers() as brokers:
        yield Cluster(brokers)


def end_by_compacted(config: dict[str, Any]) -> object:
    return read_compacted(config, TOPIC, [0, 1], 30)


def end_by_onlooker(config: dict[str, Any]) -> object:
    with GroupInspector(config, "nobody") as onlooker:
        return onlooker.ends([PLACE, (TOPIC, 1)])


def end_by_catalog(config: dict[str, Any]) -> object:
    return Catalog(config).ends(
        [TopicPartition("state", partition=0, level=0), TopicPartition("state", partition=1, level=0)]
    )


def end_by_consumer(config: dict[str, Any]) -> object:
    with closing(ck.Consumer({**config, "group.id": "nobody", "log_level": 0})) as consumer:
        return watermarks(consumer, PLACE, 30)


@pytest.mark.parametrize("ask", [end_by_compacted, end_by_onlooker, end_by_catalog, end_by_consumer])
def test_a_partition_whose_leader_is_away_is_not_empty_and_is_waited_for(
    cluster: Cluster, ask: Callable[[dict[str, Any]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.kafka.reading.catalog.ONE_ANSWER_WITHIN", 0.3)
    before = ask(cluster.config)
    with cluster.away_for(0.8):
        assert ask(cluster.config) == before


def test_an_end_that_is_not_known_in_time_is_an_error_that_says_so(cluster: Cluster) -> None:
    cluster.leave()
    with pytest.raises(
        KafkaError, match=rf"^Kafka did not report within 0.3 s where partitions of {TOPIC} begin and end"
    ):
        LogBounds(cluster.config, within=0.3).ends([PLACE])


@pytest.mark.parametrize("ask", [end_by_compacted, end_by_onlooker, end_by_catalog, end_by_consumer])
def test_a_partition_without_a_leader_is_waited_for_as_well(
    cluster: Cluster, ask: Callable[[dict[str, Any]], object]
) -> None:
    before = ask(cluster.config)
    with cluster.without_leader_for(0.8):
        assert ask(cluster.config) == before


def test_who_has_asked_before_goes_on_when_the_leader_is_back(cluster: Cluster) -> None:
    bounds = LogBounds(cluster.config)
    assert (bounds.starts([PLACE]), bounds.ends([PLACE])) == ({PLACE: 0}, {PLACE: 10})
    with cluster.away_for(0.8):
        assert bounds.ends([PLACE]) == {PLACE: 10}


def test_kafka_itself_gives_no_error_for_an_end_that_it_does_not_know(cluster: Cluster) -> None:
    """Why there is a rule at all; once this fails, it may go."""
    client = AdminClient({**cluster.config, "log_level": 0})
    client.list_topics(timeout=10)
    cluster.leave()
    [answer] = client.list_offsets({ck.TopicPartition(*PLACE): LATEST}, request_timeout=0.5).values()
    assert answer.result().offset < 0
    [told] = list_offsets(client, {PLACE: LATEST}, "read_uncommitted", 0.5).values()
    assert isinstance(told, ck.KafkaError)


def test_partitions_that_do_not_exist_are_left_out_and_not_waited_for(cluster: Cluster) -> None:
    bounds = LogBounds(cluster.config)
    assert bounds.ends([PLACE, (TOPIC, 77)]) == {PLACE: 10}
    assert bounds.ends([(TOPIC, 77)]) == bounds.starts([("nowhere", 0)]) == {}
    with (
        closing(ck.Consumer({**cluster.config, "group.id": "nobody", "log_level": 0})) as consumer,
        pytest.raises(KafkaError, match="Check that the partition exists"),
    ):
        watermarks(consumer, (TOPIC, 77), 30)


def test_no_fetch_says_where_a_partition_ends_before_there_was_one(cluster: Cluster) -> None:
    with closing(ck.Consumer({"log_level": 0, **cluster.config, "group.id": "nobody"})) as consumer:
        assert fetched_end(consumer, PLACE) is None
        consumer.assign([ck.TopicPartition(*PLACE, 0)])
        assert len(consumer.consume(10, 10)) == 10
        assert fetched_end(consumer, PLACE) == 10

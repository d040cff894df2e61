"""Reading by offset asks Kafka for no group, whatever the reader, and reads what is asked for."""

import gc
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import psutil
import pytest

from headway.broker import LocalBroker
from headway.errors import ClosedError, ConfigError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.reading.commit_markers import CommitMarkers, create_marker_topic
from headway.kafka.reading.control_topic import ControlTopic, listening
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.range_reader import Range, RangeReader
from headway.kafka.reading.tail import TailReader
from headway.kafka.reading.unjoined_consumer import UnjoinedConsumer, unjoined_consumer
from headway.records.record_types import TopicPartition
from tests.broker.delay_cluster import wait_until
from tests.compacted import read_compacted
from tests.made import made_by

pytestmark = pytest.mark.kafka

CLASS = "headway.kafka.reading.unjoined_consumer.UnjoinedConsumer"
READ_ALL = {"auto.offset.reset": "earliest", "enable.partition.eof": True, "fetch.wait.max.ms": 10}


@pytest.fixture
def config(headway_broker: LocalBroker, headway_topic: str) -> dict[str, Any]:
    """The broker, on which there is a topic of two partitions with ten records in the first."""
    settings: dict[str, Any] = {"bootstrap.servers": headway_broker.bootstrap_servers}
    Admin(settings).create([headway_topic, f"{headway_topic}-0"], 2)
    with closing(ck.Producer({"log_level": 0, **settings})) as producer:
        for number in range(20):
            producer.produce((headway_topic, f"{headway_topic}-0")[number % 2], str(number), b"k", partition=0)
        assert producer.flush(30) == 0
    return settings


@pytest.fixture
def requests(config: dict[str, Any]) -> Counter[str]:
    """The requests by name that a client with `config` has made of any broker, as its statistics tell."""
    seen = Counter[str]()

    def take(statistics: str) -> None:
        for broker in json.loads(statistics)["brokers"].values():
            for request, count in broker["req"].items():
                seen[request] = max(seen[request], count)

    config.update({"stats_cb": take, "statistics.interval.ms": 20})
    return seen


def by_ranges(config: Mapping[str, Any], topic: str) -> None:
    with made_by(CLASS) as made, RangeReader(config) as reader:
        [(_, records)] = reader.read([Range(TopicPartition(topic, partition=0), 0, 10)])
        assert len(records) == 10
        serve(made)


def by_markers(config: Mapping[str, Any], topic: str) -> None:
    create_marker_topic(Admin(config), f"{topic}-markers")
    with made_by(CLASS) as made, CommitMarkers(config, f"{topic}-markers") as markers:
        assert markers.newest(b"a/1").get(b"a/1") is None
        serve(made)


def by_compacted(config: Mapping[str, Any], topic: str) -> None:
    # Records whose values are others than the last one's do not count; reading goes on while it takes as long as this.
    assert read_compacted({**config, "statistics.interval.ms": 1}, topic, [0, 1], 30) == {0: {"k": b"18"}, 1: {}}


def by_answers(config: Mapping[str, Any], topic: str) -> None:
    heard = threading.Event()
    refused: list[Exception] = []
    with closing(TailReader(config, topic, 0, lambda key, value: heard.set(), refused.append)):
        with closing(ck.Producer({"log_level": 0, "bootstrap.servers": config["bootstrap.servers"]})) as producer:
            producer.produce(topic, b"v", b"k", partition=0)
            producer.flush()
        assert heard.wait(30)


def by_control(config: Mapping[str, Any], topic: str) -> None:
    plain = {"bootstrap.servers": config["bootstrap.servers"]}
    heard = threading.Event()
    control = ControlTopic(plain, f"{topic}-control")
    with listening(config, f"{topic}-control", control.end(), "run", lambda word: heard.set()):
        control.say("run", b"stop")
        assert heard.wait(30)


def by_onlooker(config: Mapping[str, Any], topic: str) -> None:
    with made_by(CLASS) as made, GroupInspector(config, "nobody") as onlooker:
        assert len(list(onlooker.read((topic, 0), 0, 10))) == 10
        serve(made)


def serve(made: list[Any]) -> None:
    """Let the consumer tell its statistics; and ask for a coordinator, which it would by now."""
    [consumer] = made
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        consumer.consume(1, 0.05)


@pytest.mark.quick("by_ranges")
@pytest.mark.parametrize("read", [by_ranges, by_markers, by_compacted, by_answers, by_control, by_onlooker])
def test_no_reader_by_offset_asks_for_a_coordinator(
    config: dict[str, Any],
    requests: Counter[str],
    headway_topic: str,
    read: Callable[[Mapping[str, Any], str], None],
) -> None:
    while not requests["Fetch"]:  # one that is quick ends before its statistics are told
        read(config, headway_topic)
    assert requests["FindCoordinator"] == 0


@pytest.fixture(params=[{}, {"group.protocol": "consumer"}], ids=["classic", "KIP-848"])
def consumer(config: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[UnjoinedConsumer]:
    with closing(unjoined_consumer({**config, **READ_ALL, **request.param})) as consumer:
        yield consumer


def offsets_to_the_end(consumer: UnjoinedConsumer) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    ends = False

    def read() -> bool:
        nonlocal ends
        for message in consumer.consume(100, 0.1):
            if message.error() is None:
                found.append((message.partition() or 0, message.offset() or 0))
            else:
                ends = True
        return ends

    wait_until(read)
    return found


def test_it_reads_what_was_assigned_last_and_nothing_else(consumer: UnjoinedConsumer, headway_topic: str) -> None:
    for start in (0, 7, 3, 3):
        consumer.assign([ck.TopicPartition(headway_topic, 0, start)])
        assert offsets_to_the_end(consumer) == [(0, offset) for offset in range(start, 10)]
    consumer.assign([ck.TopicPartition(headway_topic, 0, ck.OFFSET_BEGINNING)])
    consumer.assign([ck.TopicPartition(headway_topic, 1, 0)])
    assert offsets_to_the_end(consumer) == []
    consumer.assign([])
    assert consumer.consume(10, 0.2) == []


@pytest.mark.slow
def test_a_topic_that_is_new_to_a_connected_client_is_read_at_once(config: dict[str, Any], headway_topic: str) -> None:
    topics = [f"{headway_topic}-new-{number}" for number in range(3)]
    Admin(config).create(topics, 1)
    with closing(unjoined_consumer({**config, **READ_ALL})) as consumer:
        consumer.assign([ck.TopicPartition(headway_topic, 0, 0)])
        assert len(offsets_to_the_end(consumer)) == 10
        took = []
        for topic in topics:
            began = time.monotonic()
            consumer.assign([ck.TopicPartition(topic, 0, 0)])
            assert offsets_to_the_end(consumer) == []
            took.append(time.monotonic() - began)
        assert min(took) < 0.5  # a member's waits for up to a second


def test_what_needs_a_group_is_refused(consumer: UnjoinedConsumer, headway_topic: str) -> None:
    committed = ck.TopicPartition(headway_topic, 0, ck.OFFSET_STORED)
    with pytest.raises(KafkaError, match=f"Partition 0 of {headway_topic} cannot be read from the offset -1001"):
        consumer.assign([ck.TopicPartition(headway_topic, 0)])
    for call in (
        lambda: consumer.subscribe([headway_topic]),
        lambda: consumer.commit(offsets=[ck.TopicPartition(headway_topic, 0, 1)], asynchronous=False),
        lambda: consumer.committed([committed], 1),
    ):
        with pytest.raises(ck.KafkaException):
            call()


def test_a_closed_one_says_so_and_one_that_is_dropped_ends(consumer: UnjoinedConsumer, headway_topic: str) -> None:
    consumer.assign([ck.TopicPartition(headway_topic, 0, 0)])
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.assign([ck.TopicPartition(headway_topic, 0, 0)])


@pytest.mark.slow
def test_one_that_is_dropped_while_it_reads_ends(config: dict[str, Any], headway_topic: str) -> None:
    before = psutil.Process().num_threads()
    for _ in range(5):
        consumer = unjoined_consumer(config)
        consumer.assign([ck.TopicPartition(headway_topic, 0, 0)])
        del consumer
    gc.collect()
    wait_until(lambda: psutil.Process().num_threads() <= before)


def test_errors_before_it_was_ready_reach_the_callback_and_a_bad_setting_is_a_sentence() -> None:
    said: list[ck.KafkaError] = []
    nobody = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": said.append}
    with closing(unjoined_consumer(nobody)) as consumer:
        consumer.assign([ck.TopicPartition("orders", 0, 0)])
        wait_until(lambda: consumer.consume(1, 0.1) or said)
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        unjoined_consumer({"no.such.setting": "1"})


@pytest.mark.slow
def test_a_topic_that_was_not_read_before_is_read_at_once(config: dict[str, Any], headway_topic: str) -> None:
    topics = [headway_topic, f"{headway_topic}-0", *(f"{headway_topic}-more-{number}" for number in range(10))]
    Admin(config).create(topics[2:], 1)
    with closing(unjoined_consumer({**config, **READ_ALL})) as consumer:

        def read(wanted: list[str]) -> None:
            consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING) for topic in wanted])
            ended: set[str | None] = set()
            while len(ended) < len(wanted):
                ended |= {message.topic() for message in consumer.consume(100, 0.01) if message.error()}

        began = time.monotonic()
        for topic in topics[:2]:
            read([topic])
        read(topics[2:])
        for topic in topics[:4]:
            read([topic])
        # Each of the first three took half a second, as librdkafka looked for leaders. A busy machine may wait twice.
        assert time.monotonic() - began < 1.45

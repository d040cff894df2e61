"""Reading ranges by offset from brokers that refuse, lose leaders, and have more than was asked for."""

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from headway.errors import KafkaError
from headway.kafka.binding.columns import IS_COMPILED, RecordRun
from headway.kafka.reading import range_reader
from headway.kafka.reading.range_reader import Range, RangeReader, fetched_ahead
from headway.records.record_types import TopicPartition
from tests.contract.conftest import PARTITIONS, Cluster
from tests.contract.mock_brokers import MockBrokers, mock_brokers
from tests.made import made_by

ORDERS = TopicPartition("orders", partition=0)
FETCH, FIND_COORDINATOR = 1, 10  # requests, by Kafka's numbers


@pytest.fixture
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as brokers:
        brokers.create("orders-0")
        yield brokers


def fill(brokers: MockBrokers, records: int, partition: int = 0) -> None:
    producer = ck.Producer({"log_level": 0, "bootstrap.servers": brokers.bootstrap_servers, "linger.ms": 1})
    for number in range(records):
        producer.produce("orders-0", b"%d" % number, partition=partition)
    assert producer.flush(30) == 0
    producer.close()


def offsets_of(records: Sequence[ck.Message] | RecordRun) -> list[int | None]:
    if isinstance(records, RecordRun):
        return list(memoryview(records.offsets).cast("q")[records.start : records.end])
    return [record.offset() for record in records]


Read = Callable[..., Iterator[tuple[TopicPartition, Sequence[ck.Message] | RecordRun]]]


@pytest.fixture(params=["messages", "columns"])
def read_with(request: pytest.FixtureRequest) -> Read:
    """Each of the two ways to read: a method of the reader."""
    if request.param == "messages":
        return RangeReader.read
    if not IS_COMPILED:
        pytest.skip("the C module that makes columns is not compiled")
    return RangeReader.read_columns


def count(brokers: MockBrokers, wanted: list[Range], read_with: Read, *, skip_lost: bool) -> int:
    """How many records of the ranges are read."""
    with RangeReader({"bootstrap.servers": brokers.bootstrap_servers}, skip_lost=skip_lost) as reader:
        return sum(len(records) for _, records in read_with(reader, wanted))


@pytest.mark.parametrize("skip_lost", [False, True])
@pytest.mark.parametrize("records", [100, 20_000])
def test_who_may_read_the_topics_and_not_the_group_reads_all(
    brokers: MockBrokers, read_with: Read, records: int, skip_lost: bool
) -> None:
    fill(brokers, records)
    brokers.refuse(FIND_COORDINATOR, ck.KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert count(brokers, [Range(ORDERS, 0, records)], read_with, skip_lost=skip_lost) == records


def test_what_may_not_be_read_is_not_skipped_as_lost(brokers: MockBrokers, read_with: Read) -> None:
    fill(brokers, 100)
    brokers.refuse(FETCH, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match=r"^The topic orders-0 cannot be read: .* authorized\. Grant Read"):
        count(brokers, [Range(ORDERS, 0, 100)], read_with, skip_lost=True)


@pytest.mark.kafka
def test_what_is_lost_from_the_start_of_a_range_is_skipped_with_a_warning_and_compaction_is_none(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, read_with: Read
) -> None:
    topic = kafka_cluster.topic(levels=1)
    at, address = TopicPartition(topic, partition=0), {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    producer = ck.Producer({"log_level": 0, **address | {"transactional.id": topic}})
    producer.init_transactions()
    for _ in range(2):  # offset 6 is the mark of the first transaction's end
        producer.begin_transaction()
        for number in range(6):
            producer.produce(f"{topic}-0", b"%d" % number, partition=0)
        producer.commit_transaction()
    producer.close()

    def read(start: int, end: int) -> list[int | None]:
        with RangeReader(address, skip_lost=True) as reader:
            return [each for _, records in read_with(reader, [Range(at, start, end)]) for each in offsets_of(records)]

    assert read(6, 10) == [7, 8, 9]
    assert not caplog.messages
    admin = AdminClient({"log_level": 0, **address})
    deleting = admin.delete_records([ck.TopicPartition(f"{topic}-0", 0, 4)])
    assert [deleted.result(30).low_watermark for deleted in deleting.values()] == [4]
    assert read(1, 6) == [4, 5]
    assert read(0, 3) == []
    assert caplog.messages == [
        f"Partition 0 of the Kafka topic {topic}-0 no longer holds all offsets from {start} to before {end} "
        "(it begins at 4). The lost records are skipped."
        for start, end in ((1, 6), (0, 3))
    ]


@pytest.mark.parametrize("kind", ["record", "end"])
def test_a_message_of_another_partition_before_the_first_records_takes_none_of_them_along(
    brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fill(brokers, 10)
    fill(brokers, 1, partition=1)
    settings = {"bootstrap.servers": brokers.bootstrap_servers}
    other = ck.Consumer({**settings, "group.id": "other", "enable.partition.eof": True, "log_level": 0})
    other.assign([ck.TopicPartition("orders-0", 1, 0)])
    messages = other.consume(2, 30)
    other.close()
    stray = [next(each for each in messages if (each.error() is None) == (kind == "record"))]
    with made_by("headway.kafka.reading.range_reader.unjoined_consumer") as consumers, RangeReader(settings) as reader:
        [consumer] = consumers
        consume = consumer.consume

        def mixed(most: int, within: float) -> list[ck.Message]:
            found = consume(most, within)
            return [*(stray.pop() for _ in stray[:] if found), *found]

        monkeypatch.setattr(consumer, "consume", mixed)
        read = [record.offset() for _, records in reader.read([Range(ORDERS, 0, 10)]) for record in records]
    assert (read, stray) == (list(range(10)), [])


@contextmanager
def growing(brokers: MockBrokers) -> Iterator[threading.Thread]:
    """Partition 0 gets records all the time, but not for ever."""
    ended = threading.Event()

    def grow() -> None:
        for _ in range(500):
            if ended.wait(0.01):
                return
            fill(brokers, 10)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join()


def test_a_partition_that_gives_nothing_is_given_up_although_another_has_ever_more_behind_its_range(
    brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch, read_with: Read
) -> None:
    monkeypatch.setattr(range_reader, "STALL_TIMEOUT_S", 0.5)
    fill(brokers, 10)
    fill(brokers, 10, partition=1)
    brokers.lead("orders-0", 1)
    wanted = [Range(ORDERS, 0, 10), Range(TopicPartition("orders", partition=1), 0, 10)]
    with growing(brokers) as producing:
        with pytest.raises(KafkaError, match=r"^No record of partition 1 of .* orders-0 at or after offset 0 arrived "):
            count(brokers, wanted, read_with, skip_lost=False)
        assert producing.is_alive()


@pytest.mark.kafka
def test_of_a_long_partition_not_much_more_is_fetched_than_its_short_range(kafka_cluster: Cluster) -> None:
    topic, value = kafka_cluster.topic(levels=1), bytes(1_000)
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "linger.ms": 5, "batch.size": 20_000}
    producer = ck.Producer({"log_level": 0, **settings})
    for number in range(5_000):
        for partition in range(PARTITIONS):
            producer.produce(f"{topic}-0", value, partition=partition)
        if not number % 500:
            producer.flush(20)
    assert producer.flush(20) == 0
    producer.close()

    received: list[int] = []
    wanted = [Range(TopicPartition(topic, partition=number), 0, 10) for number in range(PARTITIONS)]
    own = {"statistics.interval.ms": 1, "stats_cb": lambda text: received.append(json.loads(text)["rx_bytes"])}
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers, **fetched_ahead(wanted), **own}
    with RangeReader(settings) as reader:
        for _ in range(5):
            assert sum(len(records) for _, records in reader.read(wanted)) == 10 * PARTITIONS
    assert received[-1] < 12 * 2**20  # a quiet machine fetches 2 MB; with fetches of librdkafka's default size it is 36


@pytest.mark.kafka
@pytest.mark.parametrize(("together", "most"), [(1, 1), (60, 3), (20_000, 500)])
def test_all_of_each_range_comes_in_its_order_however_many_are_open(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, read_with: Read, together: int, most: int
) -> None:
    monkeypatch.setattr("headway.kafka.reading.range_reader.TOGETHER", together)
    monkeypatch.setattr("headway.kafka.reading.range_reader.MOST_TOGETHER", most)
    topic, records = kafka_cluster.topic(levels=1), 200
    with closing(ck.Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "log_level": 0})) as producer:
        for number in range(records * PARTITIONS):
            producer.produce(f"{topic}-0", b"v", partition=number % PARTITIONS)
    chosen = random.Random(together)
    with RangeReader({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as reader:
        for _ in range(5):
            bounds = [sorted(chosen.sample(range(records + 1), 2)) for _ in range(30)]
            wanted = [Range(TopicPartition(topic, partition=chosen.randrange(PARTITIONS)), *each) for each in bounds]
            found: dict[TopicPartition, list[int | None]] = defaultdict(list)
            for partition, records_of_it in read_with(reader, wanted, batch=chosen.choice([3, 50, 5_000])):
                found[partition] += offsets_of(records_of_it)
            expected: dict[TopicPartition, list[int | None]] = defaultdict(list)
            for item in wanted:
                expected[item.partition] += range(item.start, item.end)
            assert found == expected
            next(read_with(reader, wanted))  # one that is left in its midst is in nobody's way

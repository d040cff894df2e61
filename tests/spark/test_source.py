"""`format("headway")` on a real Spark and a real Apache Kafka."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics, MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def read_all(spark: SparkSession, orders: "LevelTopics", **options: str) -> DataFrame:
    return spark.read.format("headway").options(**orders.options, **options).load()


def stream(spark: SparkSession, orders: "LevelTopics", **options: object) -> DataStreamReader:
    given = {**orders.options, "startingOffsets": "earliest", **options}
    return spark.readStream.format("headway").options(**given)  # type: ignore[arg-type]


def read_available(reader: DataStreamReader, into: "MicroBatches", checkpoint: Path) -> StreamingQuery:
    writer = reader.load().writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_a_record_has_the_columns_of_sparks_kafka_source_and_its_level(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    sent = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    headers = [("trace", b"\x00\xff"), ("trace", None), ("kind", b"new")]
    orders.send(1, ["first"], partition=1, key=b"k", timestamp=int(sent.timestamp() * 1000), headers=headers)

    frame = read_all(spark, orders, includeHeaders="true")
    row = frame.collect()[0]

    assert frame.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "level")
    ]
    assert (row["key"], row["value"]) == (b"k", b"first")
    assert (row["topic"], row["level"], row["partition"], row["offset"]) == (orders.topic, 1, 1, 0)
    assert row["timestamp"].astimezone(UTC) == sent
    assert row["timestampType"] == 0
    assert [tuple(header) for header in row["headers"]] == headers


def test_what_a_record_lacks_is_null(spark: SparkSession, orders: "LevelTopics") -> None:
    orders.send(0, [None])

    row = read_all(spark, orders, includeHeaders="true").collect()[0]

    assert (row["key"], row["value"], row["headers"]) == (None, None, None)
    assert "headers" not in read_all(spark, orders).columns


def test_a_batch_read_has_every_record_of_every_level_in_the_order_of_its_partition(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    for level in range(orders.levels):
        orders.send(level, range(7_000))

    rows = read_all(spark, orders).select("level", "partition", "offset").collect()

    assert Counter(row["level"] for row in rows) == {0: 7_000, 1: 7_000, 2: 7_000}
    for level in range(orders.levels):
        for partition in range(orders.partitions):
            offsets = [row["offset"] for row in rows if (row["level"], row["partition"]) == (level, partition)]
            assert offsets == list(range(3_500))


@pytest.mark.slow
def test_the_limit_of_a_micro_batch_is_split_over_the_levels_and_what_one_leaves_is_lent(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    for level, count in enumerate((200, 200, 5)):
        orders.send(level, range(count))
    seen = micro_batches()

    read_available(stream(spark, orders, maxRecordsPerTrigger=70), seen, tmp_path)

    # The shares are 10, 20 and 40; of the 35 that level 2 leaves, level 1 gets twice as many as level 0.
    first = [len(seen.values(0, level)) for level in range(3)]
    assert sum(first) == 70
    assert first[2] == 5
    assert 42 <= first[1] <= 44
    assert all(len(rows) == 70 for number, rows in seen.rows.items() if number < 5)
    assert sum(map(len, seen.rows.values())) == 405


def test_a_high_record_is_in_the_next_micro_batch_whatever_the_low_backlog(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    orders.send(0, range(20_000))
    second_is_read = Event()

    def send_high(number: int) -> None:
        if number == 0:
            orders.send(2, range(30))
        if number == 1:
            second_is_read.set()

    seen = micro_batches(send_high)
    reader = stream(spark, orders, maxRecordsPerTrigger=70).load()
    query = reader.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path)).start()
    try:
        assert second_is_read.wait(60)
    finally:
        query.stop()

    assert len(seen.values(0, level=0)) == 70
    assert seen.values(1, level=2) == list(range(30))


def test_available_now_reads_what_was_there_at_the_start_and_ends(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    orders.send(0, range(100))
    seen = micro_batches(lambda number: orders.send(1, [1_000 + number]))
    read_available(stream(spark, orders, maxRecordsPerTrigger=40), seen, tmp_path)
    assert seen.all_values() == list(range(100))

    later = micro_batches()
    read_available(stream(spark, orders, maxRecordsPerTrigger=40), later, tmp_path)
    assert later.all_values() == [1_000, 1_001, 1_002]


@pytest.mark.slow
def test_empty_topics_and_a_query_that_has_read_everything_give_no_micro_batch(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    seen = micro_batches()
    read_available(stream(spark, orders), seen, tmp_path)
    assert seen.all_values() == []

    orders.send(1, [1])
    read_available(stream(spark, orders), seen, tmp_path)
    again = micro_batches()
    read_available(stream(spark, orders), again, tmp_path)
    assert (seen.all_values(), again.rows) == ([1], {})


@pytest.mark.slow
def test_a_new_query_starts_at_the_latest_records_unless_told_otherwise(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    orders.send(0, range(10))
    reader = spark.readStream.format("headway").options(**orders.options)
    seen = micro_batches()
    read_available(reader, seen, tmp_path)
    orders.send(0, [10])
    read_available(reader, seen, tmp_path)
    assert seen.all_values() == [10]


@pytest.mark.slow
def test_aborted_records_and_the_gaps_of_transactions_are_passed_over(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    producer = Producer({"log_level": 0, "bootstrap.servers": orders.servers, "transactional.id": orders.topic})
    producer.init_transactions(30)
    for start, commit in ((0, True), (100, False), (200, True), (300, False)):
        producer.begin_transaction()
        for value in range(start, start + 20):
            producer.produce(orders.kafka_topics[2], str(value).encode(), partition=0)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.close()

    seen = micro_batches()
    query = read_available(stream(spark, orders, maxRecordsPerTrigger=30), seen, tmp_path)

    assert seen.all_values() == [*range(20), *range(200, 220)]
    assert query.exception() is None


@pytest.mark.slow
def test_a_partition_that_a_topic_gains_is_read_from_its_first_record(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    seen = micro_batches()
    orders.send(0, range(4))
    read_available(stream(spark, orders), seen, tmp_path)

    orders.add_partitions(3)
    orders.send(0, [4, 5], partition=2)
    read_available(stream(spark, orders), seen, tmp_path)

    assert seen.all_values() == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_records_that_aged_out_before_they_were_read_fail_the_query_with_a_sentence(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    orders.send(0, range(10), partition=0)
    read_available(stream(spark, orders), micro_batches(), tmp_path)
    orders.send(0, range(10), partition=0)
    orders.cut_off(0, partition=0, before=15)

    with pytest.raises(
        StreamingQueryException, match=r"no longer holds all offsets from 10 to before 20.*new checkpoint"
    ):
        read_available(stream(spark, orders), micro_batches(), tmp_path)


@pytest.mark.slow
def test_a_topic_that_was_deleted_fails_the_query_with_a_sentence(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    read_available(stream(spark, orders), micro_batches(), tmp_path)
    orders.delete()

    with pytest.raises(StreamingQueryException, match=r"level 0 of .* does not exist.*headway topics create"):
        read_available(stream(spark, orders), micro_batches(), tmp_path)


@pytest.mark.slow
def test_fewer_levels_than_the_checkpoint_has_fail_the_query_with_a_sentence(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    orders.send(2, [1])
    read_available(stream(spark, orders), micro_batches(), tmp_path)

    with pytest.raises(StreamingQueryException, match=r"no longer include its topic or level.*new checkpoint"):
        read_available(stream(spark, orders, levels="2"), micro_batches(), tmp_path)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"maxRecordPerTrigger": "100"}, "no option `maxrecordpertrigger`. Did you mean maxRecordsPerTrigger?"),
        ({"levels": "many"}, "The option `levels` is 'many'; it must be a whole number of at least 1"),
        ({"kafka.fetch.wait.ms": "1"}, "'fetch.wait.ms' is not known. Did you mean 'fetch.wait.max.ms'?"),
    ],
)
def test_a_wrong_option_is_one_sentence_at_load(spark: SparkSession, wrong: dict[str, str], sentence: str) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "levels": "3", **wrong}
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("headway").options(**options).load()
    assert sentence in str(caught.value)
    assert "Traceback" not in str(caught.value)

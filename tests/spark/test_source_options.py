"""What the options of `format("headway")` do, on a real Spark and a real Apache Kafka."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headway.broker import LocalBroker

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics, MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "levels": "3"}


@pytest.fixture
def topics(headway_broker: LocalBroker, level_topics: type["LevelTopics"]) -> Callable[[str], "LevelTopics"]:
    """Makes level topics of a name."""
    return lambda name: level_topics(headway_broker.bootstrap_servers, name, levels=2, partitions=1)


def batch(spark: SparkSession, orders: "LevelTopics", **options: object) -> DataFrame:
    return spark.read.format("headway").options(**orders.options, **options).load()  # type: ignore[arg-type]


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in frame.select("value").collect())


def stream(spark: SparkSession, options: dict[str, str], into: Any, checkpoint: Path, **more: object) -> Any:
    reader = spark.readStream.format("headway").options(startingOffsets="earliest")
    frame = reader.options(**options, **more).load()  # type: ignore[arg-type]
    return frame.writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))


def read_available(
    spark: SparkSession, orders: "LevelTopics", into: "MicroBatches", checkpoint: Path, **options: object
) -> None:
    writer = stream(spark, orders.options, into, checkpoint, **options)
    writer.trigger(availableNow=True).start().awaitTermination()


@contextmanager
def running(writer: Any) -> Iterator[StreamingQuery]:
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


def test_a_pattern_selects_topics_that_have_all_levels(
    spark: SparkSession, headway_topic: str, topics: Callable[[str], "LevelTopics"]
) -> None:
    shops = [topics(f"{headway_topic}-{name}") for name in ("eu", "us", "log")]
    for number, shop in enumerate(shops):
        shop.send(1, [number])

    options = {**shops[0].options, "subscribePattern": f"{headway_topic}-(eu|us)"}
    del options["subscribe"]
    frame = spark.read.format("headway").options(**options).load()

    assert sorted(row["topic"] for row in frame.collect()) == [shops[0].topic, shops[1].topic]
    with pytest.raises(AnalysisException, match=r"No topic in Kafka matches .* and has 3 levels"):
        spark.read.format("headway").options(**options | {"levels": "3"}).load().collect()


@pytest.mark.slow
def test_a_topic_that_comes_to_match_a_pattern_is_read_from_its_first_record(
    spark: SparkSession,
    headway_topic: str,
    topics: Callable[[str], "LevelTopics"],
    micro_batches: type["MicroBatches"],
    tmp_path: Path,
) -> None:
    first, came = topics(f"{headway_topic}-a"), Event()
    options = {**first.options, "subscribePattern": f"{headway_topic}-."}
    del options["subscribe"]
    seen = micro_batches(lambda number: came.set() if 2 in seen.all_values() else None)

    with running(stream(spark, options, seen, tmp_path)):
        first.send(0, [1])
        topics(f"{headway_topic}-b").send(1, [2])
        assert came.wait(60)

    assert seen.all_values() == [1, 2]


def test_assigned_partitions_are_read_at_every_level_and_no_others(spark: SparkSession, orders: "LevelTopics") -> None:
    for level in range(orders.levels):
        orders.send(level, [level * 10, level * 10 + 1])
    options = {name: value for name, value in orders.options.items() if name != "subscribe"}

    def assigned(partition: int) -> DataFrame:
        chosen = json.dumps({orders.topic: [partition]})
        return spark.read.format("headway").options(**options, assign=chosen).load()

    assert values(assigned(1)) == [1, 11, 21]
    with pytest.raises(AnalysisException, match=r"names partition 7 of .*, which 3 of its 3 levels do not have"):
        assigned(7).collect()


@pytest.mark.slow
def test_under_strict_the_highest_levels_come_first(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    for level in range(orders.levels):
        orders.send(level, range(50))
    seen = micro_batches()

    read_available(spark, orders, seen, tmp_path, policy="strict", maxRecordsPerTrigger=60)

    counts = [[len(seen.values(number, level)) for level in range(3)] for number in sorted(seen.rows)]
    assert counts == [[0, 10, 50], [20, 40, 0], [30, 0, 0]]


@pytest.mark.slow
def test_under_capacity_burst_a_micro_batch_is_as_a_poll_of_the_java_client(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    orders.send(0, range(200))
    seen = micro_batches()

    read_available(spark, orders, seen, tmp_path, policy="capacity_burst", distributor="1,1,8", maxRecordsPerTrigger=50)

    assert [len(seen.rows[number]) for number in sorted(seen.rows)][:6] == [5, 5, 5, 5, 50, 50]


@pytest.mark.slow
def test_a_batch_is_what_lies_between_two_bounds(spark: SparkSession, orders: "LevelTopics") -> None:
    noon = 1_767_268_800_000
    for hour in range(6):
        orders.send(2, [hour], partition=0, timestamp=noon + hour * 3_600_000)
    none = {"0": -2, "1": -2}

    def at(offset: int) -> str:
        return json.dumps({orders.topic: {"0": none, "1": none, "2": {"0": offset, "1": -2}}})

    assert values(batch(spark, orders, startingOffsets=at(2), endingOffsets=at(4))) == [2, 3]
    assert values(batch(spark, orders, startingOffsets="2026-01-01T14:30:00Z", endingOffsets="latest")) == [3, 4, 5]
    assert values(batch(spark, orders, endingOffsets="2026-01-01T15:00:00+02:00")) == [0]
    assert values(batch(spark, orders, startingOffsets="2030-01-01T00:00:00Z")) == []
    with pytest.raises(AnalysisException, match=r"from 2 to before 9 were requested for .* which holds .* to before 6"):
        batch(spark, orders, startingOffsets=at(2), endingOffsets=at(9)).collect()
    with pytest.raises(AnalysisException, match="endingOffsets` gives no offset for partition 0 of the"):
        batch(spark, orders, endingOffsets=json.dumps({orders.topic: {"2": {"0": 1}}})).collect()


@pytest.mark.slow
def test_a_new_query_starts_at_a_time(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    now = time.time_ns() // 1_000_000  # what is older than a week, the broker may delete
    for second in range(4):
        orders.send(1, [second], timestamp=now + second * 1_000)
    seen = micro_batches()
    read_available(spark, orders, seen, tmp_path, startingOffsets=str(now + 2_000))
    assert seen.all_values() == [2, 3]


@pytest.mark.slow
def test_no_micro_batch_comes_before_so_many_records_or_the_longest_wait(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    enough, waited = Event(), Event()
    seen = micro_batches(lambda number: (enough if len(seen.rows) == 1 else waited).set())
    orders.send(0, range(30))
    writer = stream(spark, orders.options, seen, tmp_path, minRecordsPerTrigger=50, maxTriggerDelay="2s")

    with running(writer):
        orders.send(2, range(30, 60))
        assert enough.wait(60)
        began = time.monotonic()
        orders.send(2, [60])
        assert waited.wait(60)
        took = time.monotonic() - began

    assert [len(rows) for rows in seen.rows.values()] in ([60, 1], [30, 30])
    assert took >= 2


@pytest.mark.slow
def test_with_trigger_available_now_few_records_do_not_wait_for_more(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    orders.send(0, range(3))
    seen = micro_batches()
    read_available(spark, orders, seen, tmp_path, minRecordsPerTrigger=50)
    assert seen.all_values() == [0, 1, 2]


@pytest.mark.slow
def test_offsets_that_aged_out_are_skipped_when_that_is_wanted(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    seen = micro_batches()
    orders.send(0, range(10), partition=0)
    read_available(spark, orders, seen, tmp_path)
    orders.send(0, range(10, 20), partition=0)
    orders.cut_off(0, partition=0, before=15)

    read_available(spark, orders, seen, tmp_path, failOnDataLoss="false", maxRecordsPerTrigger=7)

    assert seen.all_values() == [*range(10), *range(15, 20)]


def test_a_batch_of_offsets_that_aged_out_reads_what_there_is_when_that_is_wanted(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    orders.send(0, range(20), partition=0)
    orders.cut_off(0, partition=0, before=15)
    none = {"0": -2, "1": -2}
    start = json.dumps({orders.topic: {"0": {"0": 3, "1": -2}, "1": none, "2": none}})
    with pytest.raises(AnalysisException, match="set failOnDataLoss to false"):
        batch(spark, orders, startingOffsets=start).collect()
    assert values(batch(spark, orders, startingOffsets=start, failOnDataLoss="false")) == [*range(15, 20)]


@pytest.mark.slow
def test_a_topic_that_was_deleted_and_created_again_fails_the_query_or_is_read_from_its_start(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    seen = micro_batches()
    orders.send(1, range(5), partition=0)
    read_available(spark, orders, seen, tmp_path)
    orders.create_again()
    # More than before: the offsets alone would not tell that these are other records.
    orders.send(1, range(100, 109), partition=0)

    with pytest.raises(StreamingQueryException, match=r"was deleted and recreated.*failOnDataLoss"):
        read_available(spark, orders, seen, tmp_path)
    read_available(spark, orders, seen, tmp_path, failOnDataLoss="false")

    assert seen.all_values() == [*range(5), *range(100, 109)]


@pytest.mark.slow
def test_what_is_not_committed_is_read_when_that_is_wanted(spark: SparkSession, orders: "LevelTopics") -> None:
    producer = Producer({"log_level": 0, "bootstrap.servers": orders.servers, "transactional.id": orders.topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(orders.kafka_topics[0], b"1", partition=0)
    producer.flush()
    orders.send(0, [2], partition=1)

    assert values(batch(spark, orders)) == [2]
    assert values(batch(spark, orders, isolation="read_uncommitted")) == [1, 2]
    producer.abort_transaction()
    producer.close()
    assert values(batch(spark, orders)) == [2]


def test_the_progress_of_a_query_is_committed_to_the_level_groups(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    orders.send(0, range(8))
    orders.send(2, range(3), partition=1)
    group = f"{orders.topic}-shown"

    expected = {(0, 0): 4, (0, 1): 4, (1, 0): 0, (1, 1): 0, (2, 0): 0, (2, 1): 3}
    with running(stream(spark, orders.options, micro_batches(), tmp_path, **{"group.id": group})):
        deadline = time.monotonic() + 60
        while orders.committed(group) != expected and time.monotonic() < deadline:
            pass

    assert orders.committed(group) == expected


@pytest.mark.quick("Kafka")
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets` is for spark.read, because a stream has no end"),
        ({}, r"Kafka cannot be reached at 127.0.0.1:1 \(.*Connection refused\)"),
    ],
    ids=["an option", "Kafka"],
)
def test_what_stops_a_query_from_starting_is_one_sentence(
    spark: SparkSession, wrong: dict[str, str], sentence: str, micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    query = stream(spark, NOBODY | wrong, micro_batches(), tmp_path).start()
    with pytest.raises(StreamingQueryException, match=sentence) as caught:
        query.awaitTermination()
    assert "Traceback" not in str(caught.value)


@pytest.mark.skipif(pyspark.__version__.startswith("4.2."), reason="PySpark 4.2 has no such trigger")
def test_sparks_real_time_mode_refuses_the_source_as_any_of_python(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    frame = spark.readStream.format("headway").options(**orders.options).load()
    writer = frame.select("value").writeStream.format("console").outputMode("update")
    in_real_time: Any = writer.option("checkpointLocation", str(tmp_path)).trigger  # PySpark's types lack this trigger
    with pytest.raises(StreamingQueryException, match="INPUT_STREAM_NOT_SUPPORTED"):
        in_real_time(realTime="5 minutes").start().awaitTermination()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"maxRecordsPerTrigger": "10"}, "maxRecordsPerTrigger` is for spark.readStream"),
        ({"minRecordsPerTrigger": "10"}, "minRecordsPerTrigger` is for spark.readStream"),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay` limits how long to wait for minRecordsPerTrigger"),
        ({"startingOffsets": "latest"}, "With startingOffsets=latest spark.read would read nothing"),
        ({"group.id": "billing"}, "group.id` is for spark.readStream"),
        ({}, r"Kafka cannot be reached at 127.0.0.1:1 \(.*Connection refused\)"),
    ],
)
def test_what_stops_a_batch_is_one_sentence(spark: SparkSession, wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(AnalysisException, match=sentence) as caught:
        spark.read.format("headway").options(**NOBODY, **wrong).load().collect()
    assert "Traceback" not in str(caught.value)


def test_a_topic_that_is_not_there_is_one_sentence(spark: SparkSession, orders: "LevelTopics") -> None:
    options = orders.options | {"subscribe": "odrers"}
    with pytest.raises(
        AnalysisException, match=r"The Kafka topic odrers-0, .* does not exist. Create it with `headway"
    ):
        spark.read.format("headway").options(**options).load().collect()

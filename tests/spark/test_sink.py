"""`df.write` and `df.writeStream` with `format("headway")` on a real Spark and a real Apache Kafka."""

import itertools
import json
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from headway.broker import LocalBroker
from headway.errors import DeliveryError, TransactionError
from headway.kafka.admin import Admin
from headway.kafka.reading.commit_markers import CommitMarkers, create_marker_topic
from headway.spark.sink.markers import WritePart
from headway.spark.sink.options import parse
from headway.spark.sink.writers import Target, close_version, write_part
from tests.broker.delay_cluster import MISSED_SOON
from tests.spark.stored import committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def values(servers: str, topic: str) -> list[int]:
    return sorted(record.number for record in committed(servers, topic))


def write(frame: DataFrame, orders: "LevelTopics", **options: str) -> None:
    writer = frame.write.format("headway").mode("append")
    writer.options(**{"kafka.bootstrap.servers": orders.servers, **options}).save()


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).select(sf.col("id").cast("string").alias("value"))


@pytest.mark.quick("exactly_once")
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_rows_become_records_with_key_value_headers_and_partition_on_the_topic_of_their_level(
    spark: SparkSession, orders: "LevelTopics", delivery: str
) -> None:
    columns = "topic string, level int, key string, value binary, partition int"
    headers = "headers array<struct<key: string, value: binary>>"
    frame = spark.createDataFrame(
        [
            (orders.topic, 2, "a", b"high", 1, [("trace", b"\x00\xff"), ("trace", None)]),
            (orders.topic, 0, None, None, None, None),
        ],
        f"{columns}, {headers}",
    )
    write(frame, orders, delivery=delivery)

    [high] = committed(orders.servers, f"{orders.topic}-2")
    assert (high.key, high.value, high.partition) == (b"a", b"high", 1)
    assert high.headers == [("trace", b"\x00\xff"), ("trace", None)]
    [low] = committed(orders.servers, f"{orders.topic}-0")
    assert (low.key, low.value, low.headers) == (None, None, None)


def test_what_the_source_reads_the_sink_writes(spark: SparkSession, orders: "LevelTopics") -> None:
    orders.send(1, range(500), key=b"k", headers=[("kind", b"new")])
    read = spark.read.format("headway").options(**orders.options, includeHeaders="true").load()
    write(read.select("topic", "key", "value", "headers", sf.lit(2).alias("level")), orders)

    copies = committed(orders.servers, f"{orders.topic}-2")
    assert sorted(copy.number for copy in copies) == list(range(500))
    assert {(copy.key, tuple(copy.headers)) for copy in copies} == {(b"k", (("kind", b"new"),))}
    assert len({copy.partition for copy in copies}) == 1  # that of the key


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_every_row_of_many_is_written_once_and_in_order_within_its_task(
    spark: SparkSession, orders: "LevelTopics", delivery: str
) -> None:
    topic = f"{orders.topic}-0"
    frame = numbers(spark, 60_000).withColumn("partition", sf.spark_partition_id())
    write(frame, orders, topic=topic, delivery=delivery)

    written: dict[int, list[int]] = {0: [], 1: []}
    for record in committed(orders.servers, topic):
        written[record.partition].append(record.number)
    assert written == {0: list(range(30_000)), 1: list(range(30_000, 60_000))}


@pytest.mark.slow
def test_a_write_with_the_same_application_and_version_adds_nothing(spark: SparkSession, orders: "LevelTopics") -> None:
    topic = f"{orders.topic}-0"
    for version in (3, 3, 2, 4):
        write(numbers(spark, 100), orders, topic=topic, txnAppId=orders.topic, txnVersion=str(version))

    assert Counter(values(orders.servers, topic)) == dict.fromkeys(range(100), 2)


@pytest.mark.slow
def test_a_named_write_that_is_run_again_on_other_cores_adds_nothing(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    topic = f"{orders.topic}-0"
    for tasks in (2, 8, 1):
        write(numbers(spark, 2_000, tasks), orders, topic=topic, txnAppId=orders.topic, txnVersion="1")
    with pytest.raises(
        Exception, match=r"In total, txnAppId .* version 1 has 2,001 rows, but Kafka has 2,000 different ones"
    ):
        write(numbers(spark, 2_001, 3), orders, topic=topic, txnAppId=orders.topic, txnVersion="1")
    write(numbers(spark, 2_001, 3), orders, topic=topic, txnAppId=orders.topic, txnVersion="2")
    write(numbers(spark, 2_000, 4), orders, topic=topic, txnAppId=orders.topic, txnVersion="1")  # which is an older one
    assert Counter(values(orders.servers, topic)) == {**dict.fromkeys(range(2_000), 2), 2_000: 1}


def test_two_writes_without_a_name_are_two_writes(spark: SparkSession, orders: "LevelTopics") -> None:
    topic = f"{orders.topic}-0"
    for _ in range(2):
        write(numbers(spark, 10), orders, topic=topic)
    assert values(orders.servers, topic) == sorted([*range(10), *range(10)])


def test_a_write_without_a_name_leaves_no_marker_for_ever(spark: SparkSession, orders: "LevelTopics") -> None:
    markers = f"{orders.topic}-markers"
    write(numbers(spark, 10), orders, topic=f"{orders.topic}-0", markerTopic=markers)
    assert markers not in Admin({"bootstrap.servers": orders.servers}).topics()
    assert len(committed(orders.servers, f"{markers}-unnamed")) == 2  # one of each task


# Failures


def stream(spark: SparkSession, orders: "LevelTopics", **options: str) -> DataFrame:
    # The highest level is left for what is written.
    given = {**orders.options, "levels": "2", "startingOffsets": "earliest", **options}
    return spark.readStream.format("headway").options(**given).load()


def start(frame: DataFrame, orders: "LevelTopics", checkpoint: Path, topic: str, **options: str) -> StreamingQuery:
    writer = frame.writeStream.format("headway").option("kafka.bootstrap.servers", orders.servers)
    writer = writer.options(topic=topic, **options).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def run(frame: DataFrame, orders: "LevelTopics", checkpoint: Path, topic: str, **options: str) -> None:
    start(frame, orders, checkpoint, topic, **options).awaitTermination()


def test_a_query_writes_each_record_once_over_many_micro_batches(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    orders.send(0, range(700))
    run(stream(spark, orders, maxRecordsPerTrigger="140").select("key", "value"), orders, tmp_path, f"{orders.topic}-2")
    assert values(orders.servers, f"{orders.topic}-2") == list(range(700))


def forget_commit(checkpoint: Path, number: int) -> None:
    """Make the checkpoint one of a driver that died before it noted that a micro-batch was done."""
    (checkpoint / "commits" / str(number)).unlink()
    for leftover in (checkpoint / "commits").glob(f".{number}.*"):
        leftover.unlink()


@pytest.mark.quick("exactly_once-1")
@pytest.mark.parametrize(("delivery", "copies"), [("exactly_once", 1), ("at_least_once", 2)])
def test_a_replayed_micro_batch_adds_nothing_if_delivery_is_exactly_once(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path, delivery: str, copies: int
) -> None:
    orders.send(0, range(100))
    frame = stream(spark, orders).select("key", "value")
    topic = f"{orders.topic}-2"
    run(frame, orders, tmp_path, topic, delivery=delivery)
    forget_commit(tmp_path, 0)
    run(frame, orders, tmp_path, topic, delivery=delivery)

    assert Counter(values(orders.servers, topic)) == dict.fromkeys(range(100), copies)


def test_of_a_micro_batch_that_failed_in_part_only_the_missing_part_is_added(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    orders.send(0, range(100), partition=0)
    orders.send(1, range(100, 300), partition=1)

    def refuse(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if 0 in batch.column("level").to_pylist() and not (tmp_path / "mended").exists():
                raise RuntimeError("this part fails")
            yield batch

    source = stream(spark, orders)
    frame = source.mapInArrow(refuse, source.schema).select("key", "value")
    topic = f"{orders.topic}-2"
    with pytest.raises(StreamingQueryException, match="this part fails"):
        run(frame, orders, tmp_path / "checkpoint", topic)
    assert set(values(orders.servers, topic)) <= set(range(100, 300))
    (tmp_path / "mended").touch()
    run(frame, orders, tmp_path / "checkpoint", topic)

    assert values(orders.servers, topic) == list(range(300))


@pytest.mark.slow
def test_a_transaction_that_an_earlier_attempt_left_open_is_aborted_by_the_next(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    orders.send(0, range(100), partition=0)
    topic = f"{orders.topic}-2"
    frame = stream(spark, orders).select("key", "value")
    run(frame, orders, tmp_path, topic)
    query = json.loads((tmp_path / "metadata").read_text())["id"]
    # What a task leaves that is killed in its midst, or a zombie that goes on.
    zombie = ck.Producer(
        {"log_level": 0, "bootstrap.servers": orders.servers, "transactional.id": f"headway-sink-{query}/0"}
    )
    zombie.init_transactions(30)
    zombie.begin_transaction()
    zombie.produce(topic, b"-1")
    assert zombie.flush(30) == 0

    orders.send(0, range(100, 200), partition=0)
    run(frame, orders, tmp_path, topic)

    assert values(orders.servers, topic) == list(range(200))
    with pytest.raises(ck.KafkaException, match="fenced"):
        zombie.commit_transaction(30)


@pytest.mark.slow
def test_a_task_that_takes_longer_than_its_transaction_may_is_told_so_and_waits_for_nobody(
    orders: "LevelTopics",
) -> None:
    settings = {"kafka.bootstrap.servers": orders.servers, "topic": f"{orders.topic}-0"}
    options = parse({**settings, "kafka.transaction.timeout.ms": "1000"})
    create_marker_topic(Admin({"bootstrap.servers": orders.servers}), options.marker_topic, lasting=True)

    def slowly() -> Iterator[pa.RecordBatch]:
        for _ in range(60):  # the broker looks for what takes too long every ten seconds
            yield pa.RecordBatch.from_pydict({"value": pa.array(["x"])})
            time.sleep(0.5)

    with pytest.raises(TransactionError, match=r"\d+ s to write its rows, but its transaction times out after 1 s"):
        write_part(Target(options, None), slowly(), WritePart(orders.topic, 0, 0))


def test_a_task_takes_its_slot_while_its_first_rows_are_on_their_way(
    orders: "LevelTopics", monkeypatch: pytest.MonkeyPatch
) -> None:
    target, part = task(orders)
    looked = threading.Event()
    newest = CommitMarkers.newest

    def noted(markers: CommitMarkers, key: bytes) -> dict[bytes, bytes]:
        found = newest(markers, key)
        looked.set()
        return found

    def after_the_look() -> Iterator[pa.RecordBatch]:
        assert looked.wait(30)
        yield from batches(1)

    monkeypatch.setattr(CommitMarkers, "newest", noted)
    assert write_part(target, after_the_look(), part).rows == 1
    assert values(orders.servers, f"{orders.topic}-0") == [1]


def test_a_task_whose_rows_never_come_needs_no_kafka() -> None:
    target = Target(parse({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders-0"}), None)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches()
        raise ValueError("no such column")

    assert write_part(target, iter(()), WritePart("query", 0, 0)).rows == 0
    with pytest.raises(ValueError, match="no such column"):
        write_part(target, failing(), WritePart("query", 0, 0))


# The same number, and other rows


def batches(*values: int, **columns: list[Any]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": [str(value) for value in values], **columns})


def task(orders: "LevelTopics") -> tuple[Target, WritePart]:
    """A task's target and its part in the first run of a write."""
    target = Target(parse({"kafka.bootstrap.servers": orders.servers, "topic": f"{orders.topic}-0"}), None)
    create_marker_topic(Admin({"bootstrap.servers": orders.servers}), target.options.marker_topic)
    return target, WritePart(orders.topic, 0, 0, "first run")


def write_all(target: Target, part: WritePart, *tasks: Iterator[pa.RecordBatch]) -> list[int]:
    """Write a version as Spark does: each task, and then the driver; return how many rows each task wrote."""
    written = [write_part(target, rows, part._replace(partition=number)) for number, rows in enumerate(tasks)]
    close_version(target, written)
    return [each.rows for each in written]


def test_another_attempt_at_a_task_is_known_by_its_run_and_a_replay_after_a_restart_by_its_rows(
    orders: "LevelTopics",
) -> None:
    target, part = task(orders)
    assert write_part(target, batches(1, 2), part).rows == 2
    assert write_part(target, batches(3), part).rows == 0  # with handlers that answer otherwise
    assert write_all(target, part._replace(run="second run"), batches(2, 1)) == [0]
    with pytest.raises(TransactionError, match="version 0 has 1 rows, but Kafka has 2 different ones"):
        write_all(target, part._replace(run="third run"), batches(3))
    assert values(orders.servers, f"{orders.topic}-0") == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("behind", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_older_checkpoint_is_refused_and_its_new_rows_are_written_as_the_sentence_says(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path, behind: int
) -> None:
    topic, checkpoint, backup = f"{orders.topic}-2", tmp_path / "checkpoint", tmp_path / "backup"
    frame = stream(spark, orders).select("key", "value")
    for number in range(1 + behind):
        orders.send(0, range(10 * number, 10 * number + 10))
        run(frame, orders, checkpoint, topic)
        if number == 0:
            shutil.copytree(checkpoint, backup)
    there = 10 + 10 * behind
    orders.send(0, range(there, there + 10))
    others = "has 10 different ones" if behind == 1 else "already has other rows, up to version 2"
    sentence = f"micro-batch 1 has {there} rows, but Kafka {others}, so it writes none.*the checkpoint is an older"
    with pytest.raises(StreamingQueryException, match=sentence):
        run(frame, orders, backup, topic)
    assert values(orders.servers, topic) == list(range(there))

    run(frame, orders, backup, topic, markerTopic="headway-markers-2")
    copies = Counter(values(orders.servers, topic))
    assert copies == {number: 2 if 10 <= number < there else 1 for number in range(there + 10)}


@pytest.mark.slow
def test_an_older_checkpoint_that_plans_the_same_micro_batches_adds_what_is_new(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    topic, checkpoint, backup = f"{orders.topic}-2", tmp_path / "checkpoint", tmp_path / "backup"
    orders.send(0, range(10))
    frame = stream(spark, orders, maxRecordsPerTrigger="10").select("key", "value")
    run(frame, orders, checkpoint, topic)
    shutil.copytree(checkpoint, backup)
    orders.send(0, range(10, 30))
    run(frame, orders, checkpoint, topic)
    orders.send(0, range(30, 40))
    run(frame, orders, backup, topic)
    assert values(orders.servers, topic) == list(range(40))


def answered(source: DataFrame) -> DataFrame:
    """Each row with a value that is another one each time, as a handler's answer."""

    def answer(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            answers = [uuid.uuid4().hex for _ in range(batch.num_rows)]
            yield pa.RecordBatch.from_pydict({"key": batch.column("value"), "value": pa.array(answers)})

    return source.mapInArrow(answer, "key binary, value string")


def keys(servers: str, topic: str) -> list[int]:
    return sorted(int(record.key or b"") for record in committed(servers, topic))


@pytest.mark.slow
def test_rows_that_come_out_otherwise_in_a_replay_are_refused_and_kept_as_the_sentence_says(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    orders.send(0, range(10))
    frame, topic = answered(stream(spark, orders)), f"{orders.topic}-2"
    run(frame, orders, tmp_path, topic)
    forget_commit(tmp_path, 0)
    with pytest.raises(StreamingQueryException, match="micro-batch 0 has 10 rows, but Kafka has 10 different ones"):
        run(frame, orders, tmp_path, topic)
    orders.send(0, range(10, 20))
    run(frame, orders, tmp_path, topic, keepVersion="0")
    assert keys(orders.servers, topic) == list(range(20))


def test_rows_with_an_identity_may_come_out_otherwise_in_a_replay(orders: "LevelTopics") -> None:
    target, part = task(orders)
    assert write_part(target, batches(1, 2, identity=["a", "b"]), part).rows == 2
    part = part._replace(run="second run")
    assert write_all(target, part, batches(4, 3, identity=["a", "b"])) == [0]
    with pytest.raises(TransactionError, match="has 2 rows, but Kafka has 2 different ones"):
        write_all(target, part._replace(run="third run"), batches(1, 2, identity=["a", "c"]))
    with pytest.raises(DeliveryError, match="Row 1 of its task has no identity: it is null"):
        write_part(target, batches(5, identity=[None]), part._replace(version=1))
    assert values(orders.servers, f"{orders.topic}-0") == [1, 2]


@pytest.mark.slow
def test_other_rows_under_a_version_that_is_done_are_refused_and_written_under_a_later_one(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    options = {"topic": f"{orders.topic}-0", "txnAppId": orders.topic}
    write(numbers(spark, 10, 1), orders, txnVersion="1", **options)
    new = spark.range(10, 20, 1, 1).select(sf.col("id").cast("string").alias("value"))
    for version, found in (("1", "has 10 different ones"), ("0", "already has other rows, up to version 1")):
        text = refusal(new, orders, txnVersion=version, **options)
        assert f"version {version} has 10 rows, but Kafka {found}, so it writes none." in text
    assert "Traceback" not in text
    write(new, orders, txnVersion="2", **options)
    assert values(orders.servers, options["topic"]) == list(range(20))


# Topics that change


@pytest.mark.slow
def test_a_partition_that_is_added_to_the_marker_topic_doubles_nothing(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    markers = f"{orders.topic}-markers"
    options = {"topic": f"{orders.topic}-0", "txnAppId": orders.topic, "txnVersion": "1", "markerTopic": markers}
    write(numbers(spark, 10), orders, **options)
    admin = AdminClient({"log_level": 0, "bootstrap.servers": orders.servers})
    admin.create_partitions([NewPartitions(markers, 17)])[markers].result(30)
    write(numbers(spark, 10), orders, **options)
    assert values(orders.servers, options["topic"]) == list(range(10))


@pytest.mark.slow
def test_a_marker_topic_that_is_deleted_is_made_again_in_the_same_session(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    options = {"topic": f"{orders.topic}-0", "txnAppId": orders.topic, "markerTopic": f"{orders.topic}-markers"}
    write(numbers(spark, 10), orders, txnVersion="1", **options)
    Admin({"bootstrap.servers": orders.servers}).delete([options["markerTopic"]])
    write(numbers(spark, 10), orders, txnVersion="2", **options)
    write(numbers(spark, 10), orders, txnVersion="2", **options)
    assert Counter(values(orders.servers, options["topic"])) == dict.fromkeys(range(10), 2)


@pytest.mark.slow
def test_a_broker_that_is_killed_and_started_again_costs_nothing_but_time(
    spark: SparkSession, level_topics: Any, tmp_path: Path
) -> None:
    with LocalBroker(properties=MISSED_SOON) as broker:
        orders = level_topics(broker.bootstrap_servers, "orders")
        orders.send(0, range(3_000))
        frame = stream(spark, orders, maxRecordsPerTrigger="150").select("key", "value")
        query = start(frame, orders, tmp_path, "orders-2")
        for done in (2, 8):
            while not (tmp_path / "commits" / str(done)).exists():
                assert query.isActive, query.exception()
                time.sleep(0.05)
            broker.nodes[0].kill()
            broker.nodes[0].start()
        assert query.awaitTermination(90)

        assert values(orders.servers, "orders-2") == list(range(3_000))


# Mistakes


def refusal(frame: DataFrame, orders: "LevelTopics", **options: str) -> str:
    with pytest.raises(Exception) as refused:  # noqa: PT011 - of Spark's
        write(frame, orders, **options)
    return str(refused.value)


def test_a_mistake_in_options_or_columns_is_one_sentence_at_once(spark: SparkSession, orders: "LevelTopics") -> None:
    frame = numbers(spark, 1)
    assert "Did you mean txnAppId?" in refusal(frame, orders, topic="t", txnApId="x")
    assert "Did you mean value?" in refusal(frame.withColumnRenamed("value", "valeu"), orders, topic="t")
    text = refusal(frame.withColumn("level", sf.lit(1.5)), orders, topic="t")
    assert "The column `level` is double; the headway sink needs a whole number. Cast it." in text
    assert "Traceback" not in text


def test_a_row_without_a_place_is_one_sentence_and_nothing_of_its_task_is_written(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    rows = [(orders.topic, 2, "fine"), (orders.topic, 7, "too high")]
    frame = spark.createDataFrame(rows, "topic string, level int, value string").coalesce(1)
    text = refusal(frame, orders)
    assert f"Row 2 of its task is for level 7 of {orders.topic}, but Kafka has no topic {orders.topic}-7." in text
    assert committed(orders.servers, f"{orders.topic}-2") == []


# The same rows in other tasks


def test_the_same_rows_in_other_tasks_are_not_written_again(orders: "LevelTopics") -> None:
    target, part = task(orders)
    assert write_all(target, part, batches(*range(50)), batches(*range(50, 100))) == [50, 50]
    second = part._replace(run="second run")
    assert write_all(target, second, *(batches(*range(first, first + 20)) for first in range(0, 100, 20))) == [0] * 5
    assert write_all(target, part._replace(run="third run"), batches(*range(100))) == [0]
    assert values(orders.servers, f"{orders.topic}-0") == list(range(100))


def test_rows_that_are_all_alike_are_not_written_again_in_other_tasks(orders: "LevelTopics") -> None:
    target, part = task(orders)
    assert write_all(target, part, batches(7, 7, 7), batches(7)) == [3, 1]
    assert write_all(target, part._replace(run="second run"), *(batches(7) for _ in range(4))) == [0] * 4
    assert values(orders.servers, f"{orders.topic}-0") == [7] * 4


def test_a_driver_that_dies_before_it_closes_a_version_doubles_nothing_on_other_cores(orders: "LevelTopics") -> None:
    target, part = task(orders)
    for number in range(2):
        write_part(target, batches(*range(50 * number, 50 * number + 50)), part._replace(partition=number))
    second = part._replace(run="second run")
    assert write_all(target, second, *(batches(*range(first, first + 10)) for first in range(0, 100, 10))) == [0] * 10
    assert values(orders.servers, f"{orders.topic}-0") == list(range(100))


def test_a_version_that_is_there_in_part_is_refused_in_other_tasks_and_goes_on_in_those_of_before(
    orders: "LevelTopics",
) -> None:
    target, part = task(orders)
    first = part._replace(partition=1)
    write_part(target, batches(*range(50, 100)), first)  # task 0 was never written
    in_two = (batches(*range(50)), batches(*range(50, 100)))
    for number, ends in enumerate([(0, 60, 100), (0, 50, 75, 100), (0, 100), (0, 75, 90, 95, 100)]):
        tasks = [batches(*range(begin, end)) for begin, end in itertools.pairwise(ends)]
        last = tasks.pop()
        with pytest.raises(TransactionError, match=r"version 0 has .* now divided into other tasks"):
            # The last one first: whichever task comes to it first, the others write nothing.
            write_all(target, part._replace(run=f"in other tasks {number}"), last, *tasks)
    assert values(orders.servers, f"{orders.topic}-0") == list(range(50, 100))
    assert write_all(target, part._replace(run="as before"), *in_two) == [50, 0]
    assert values(orders.servers, f"{orders.topic}-0") == list(range(100))

"""What runs on Spark works with exactly the rights that `docs/secured.md` names, and the broker denies it nothing."""

import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headway.broker import LocalBroker
from headway.core.delay.ladder import Ladder
from headway.core.roles import permissions_of
from headway.delay.topics import create_topics
from headway.spark import run_workers
from headway.workers.worker import worker_of
from tests.broker.delay_cluster import wait_until
from tests.broker.secured_role import AUDITED, SecuredUser, create, user_with
from tests.spark.programs import handlers

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A secured broker that logs what it denies."""
    with LocalBroker(secure=True, java_options=AUDITED) as broker:
        yield broker


@pytest.fixture
def name() -> str:
    """What the names of a test's topics and groups begin with."""
    return f"least-{uuid.uuid4().hex[:8]}"


def user_of(broker: LocalBroker, role: str, cases: Collection[str], **names: str | Sequence[str]) -> SecuredUser:
    """A user with the rights of a role."""
    listed = {key.replace("_", " "): [of] if isinstance(of, str) else of for key, of in names.items()}
    return user_with(broker, permissions_of(role, cases, listed))


def options(user: SecuredUser) -> dict[str, str]:
    return {f"kafka.{key}": str(value) for key, value in user.config.items()}


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).select(sf.col("id").cast("string").alias("value"))


def read(spark: SparkSession, user: SecuredUser, topic: str) -> list[int]:
    frame = spark.read.format("headway").options(**options(user), subscribe=topic, levels="1").load()
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_a_source_reads_its_topics_and_commits_for_its_group(
    spark: SparkSession, broker: LocalBroker, name: str, tmp_path: Path
) -> None:
    create(broker, f"{name}-0", partitions=2)
    producer = Producer({"log_level": 0, **broker.admin_config})
    for number in range(50):
        producer.produce(f"{name}-0", str(number))
    assert producer.flush(30) == 0
    producer.close()
    batch = user_of(broker, "spark source", [], topic=f"{name}-0")
    assert read(spark, batch, name) == list(range(50))
    assert batch.denied() == []
    stream = user_of(broker, "spark source", ["group"], topic=f"{name}-0", group=f"{name}-0")
    frame = spark.readStream.format("headway").options(
        **options(stream), **{"subscribe": name, "levels": "1", "group.id": name, "startingOffsets": "earliest"}
    )
    rows: list[int] = []
    query = (
        frame.load()
        .writeStream.foreachBatch(lambda batch, number: rows.extend(int(bytes(row.value)) for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(rows) == list(range(50))
    assert stream.denied() == []


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("named", [True, False])
def test_a_sink_writes_its_topics_and_makes_its_markers(
    spark: SparkSession, broker: LocalBroker, name: str, delivery: str, named: bool
) -> None:
    create(broker, f"{name}-0", partitions=2)
    once = delivery == "exactly_once"
    markers = f"{name}-markers" if named else f"{name}-markers-unnamed"
    cases = ["exactly-once", "create"] if once else []
    user = user_of(broker, "spark sink", cases, topic=f"{name}-0", markers=markers)
    writer = numbers(spark, 30).withColumn("topic", sf.lit(f"{name}-0")).write.format("headway").mode("append")
    if once:
        writer = writer.option("markerTopic", f"{name}-markers")
        writer = writer.options(txnAppId=name, txnVersion="1") if named else writer
    writer.options(**options(user), delivery=delivery).save()
    if once and named:
        writer.options(**options(user), delivery=delivery).save()  # finds that all is there
    assert sorted(set(user.denied())) == []
    assert read(spark, user_of(broker, "spark source", [], topic=f"{name}-0"), name) == list(range(30))


def test_a_sink_of_rows_that_are_due_later_writes_the_lines(
    spark: SparkSession, broker: LocalBroker, name: str
) -> None:
    create(broker, f"{name}-0")
    create_topics(broker.admin_config, f"{name}-delay", Ladder((1000, 2000)), 1)
    cases = ["exactly-once", "create", "due"]
    names = {"topic": f"{name}-0", "markers": f"{name}-markers-unnamed", "scheduler": f"{name}-delay"}
    user = user_of(broker, "spark sink", cases, **names)
    frame = numbers(spark, 10).withColumns({"topic": sf.lit(f"{name}-0"), "due": sf.expr("now() + interval 1 hour")})
    own = {"markerTopic": f"{name}-markers", "schedulerName": f"{name}-delay"}
    frame.write.format("headway").mode("append").options(**options(user), **own).save()
    assert sorted(set(user.denied())) == []


def test_workers_on_a_cluster_read_their_topics_and_what_they_are_told(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    worker = worker_of(handlers.local)
    assert worker
    [topic] = worker.kafka_topics()
    create(broker, topic)
    user = user_of(broker, "spark workers", ["control", "create"], topic=topic, group=worker.group)
    producer = Producer({"log_level": 0, **broker.admin_config})
    for number in range(10):
        producer.produce(topic, str(tmp_path), str(number))
    assert producer.flush(30) == 0
    producer.close()
    with run_workers(spark, "tests.spark.programs.handlers:local", 1, user.config) as running:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 10)
        running.stop()
        assert running.wait(60)
    assert sorted(set(user.denied())) == []

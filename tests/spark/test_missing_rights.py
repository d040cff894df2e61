"""One right less, on Spark: the query ends with a sentence that names it, and leaves nothing behind."""

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headway.broker import LocalBroker
from headway.core.delay.ladder import Ladder
from headway.core.permissions import Permission
from headway.core.roles import permissions_of
from headway.delay.topics import create_topics
from headway.kafka.admin import Admin
from headway.kafka.reading.control_topic import ControlTopic
from headway.spark import run_workers
from headway.spark.workers import CONTROL_TOPIC
from headway.workers.worker import worker_of
from tests.broker.secured_role import SecuredUser, create, user_with
from tests.spark.programs import handlers

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

SOON = 100.0
"""Spark starts Python processes in it, on a slow machine; a call that waits for Kafka in vain takes longer."""


@pytest.fixture
def name() -> str:
    """What the names of a test's topics and groups begin with."""
    return f"missing-{uuid.uuid4().hex[:8]}"


def permissions(role: str, cases: Collection[str], **names: str | Sequence[str]) -> list[Permission]:
    """Return the rights of a role."""
    listed = {key.replace("_", " "): [of] if isinstance(of, str) else of for key, of in names.items()}
    return permissions_of(role, cases, listed)


def options(user: SecuredUser) -> dict[str, str]:
    return {f"kafka.{key}": str(value) for key, value in user.config.items()}


def own_topics(broker: LocalBroker, name: str) -> set[str]:
    return {topic for topic in Admin(broker.admin_config).topics() if topic.startswith(name)}


def values(broker: LocalBroker, topic: str) -> list[int]:
    """Return what a topic of one partition has, without what was aborted."""
    consumer = Consumer({"log_level": 0, **broker.admin_config, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) and not message.error():
        found.append(int(message.value() or b""))
    consumer.close()
    assert message
    return sorted(found)


def error_of(work: Callable[[], object], missing: str = "") -> str:
    """Return what work raises, as Spark shows it."""
    try:
        work()
    except Exception as error:
        return str(error)
    pytest.fail(f"Nothing was raised without {missing}.")


def each_is_told(
    user: SecuredUser, needed: Sequence[Permission], work: Callable[[], object], unwritten: Sequence[str] = ()
) -> None:
    """Take each right away in turn: the work ends soon with the sentence, and works when it has all.

    Of a topic, Describe is left the second time: some of Kafka's refusals come later then, and in other words. A topic
    to which the work writes nothing itself is then enough to be seen.
    """
    user.grant(*needed)
    left = [
        (permission, Permission("Describe", "Topic", permission.name, permission.prefixed)) for permission in needed
    ]
    for missing, seen in [*((permission, None) for permission in needed), *left]:
        if seen and (missing.resource != "Topic" or missing.operation in ("Describe", "Create")):
            continue
        if seen and missing.name in unwritten:
            continue
        user.revoke(missing)
        if seen:
            user.grant(seen)
        began = time.monotonic()
        said = error_of(work, str(missing))
        took = time.monotonic() - began
        kind = {"Topic": "topic", "Group": "group", "TransactionalId": "transactional-id"}[missing.resource]
        wanted = f"--allow-principal User:{user.name} --operation {missing.operation} --{kind} {missing.name}"
        assert wanted in said, (missing, said[:3000])
        assert took < SOON, missing
        user.grant(missing)
        if seen:
            user.revoke(seen)
    work()


def sent(broker: LocalBroker, *topics: str) -> None:
    create(broker, *topics)
    sent_more(broker, *topics)


def sent_more(broker: LocalBroker, *topics: str) -> None:
    producer = Producer({"log_level": 0, **broker.admin_config})
    for topic in topics:
        for number in range(5):
            producer.produce(topic, str(number))
    assert producer.flush(30) == 0
    producer.close()


def test_a_batch_that_may_not_read_a_level_says_so(
    spark: SparkSession, headway_secure_broker: LocalBroker, name: str
) -> None:
    levels = [f"{name}-0", f"{name}-1"]
    sent(headway_secure_broker, *levels)
    user = user_with(headway_secure_broker, permissions("spark source", [], topic=f"{name}-other"))

    def read() -> None:
        frame = spark.read.format("headway").options(**options(user), subscribe=name, levels="2").load()
        assert frame.count() == 10

    each_is_told(user, permissions("spark source", [], topic=levels), read)


def test_a_stream_that_may_not_read_a_level_says_so(
    spark: SparkSession, headway_secure_broker: LocalBroker, name: str, tmp_path: Path
) -> None:
    levels = [f"{name}-0", f"{name}-1"]
    sent(headway_secure_broker, *levels)
    user = user_with(headway_secure_broker, permissions("spark source", [], topic=f"{name}-other"))
    rows: list[Any] = []
    place = str(tmp_path / "checkpoint")

    def stream() -> None:
        own = {"subscribe": name, "levels": "2", "group.id": name, "startingOffsets": "earliest"}
        frame = spark.readStream.format("headway").options(**options(user), **own).load()
        into = frame.writeStream.foreachBatch(lambda batch, number: rows.extend(batch.collect()))
        query = into.option("checkpointLocation", place).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    user.grant(*permissions("spark source", ["group"], topic=f"{name}-other", group=levels))
    each_is_told(user, permissions("spark source", [], topic=levels), stream)
    assert len(rows) == 10


def numbers(spark: SparkSession, topic: str) -> DataFrame:
    return spark.range(0, 10, 1, 2).select(sf.col("id").cast("string").alias("value"), sf.lit(topic).alias("topic"))


SINKS = {
    "exactly once": ({"delivery": "exactly_once"}, ["exactly-once"]),
    "exactly once, named": ({"delivery": "exactly_once", "txnVersion": "1"}, ["exactly-once"]),
    "at least once": ({"delivery": "at_least_once"}, list[str]()),
    "at least once, later": ({"delivery": "at_least_once"}, ["due"]),
}


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_with_one_right_less_says_which_and_writes_nothing(
    spark: SparkSession, headway_secure_broker: LocalBroker, name: str, kind: str
) -> None:
    broker, topic = headway_secure_broker, f"{name}-0"
    own, cases = SINKS[kind]
    later = "due" in cases
    create(broker, topic)
    if later:
        create_topics(broker.admin_config, f"{name}-delay", Ladder((1000, 2000)), 1)
        own = {**own, "schedulerName": f"{name}-delay"}
    if "txnVersion" in own:
        own = {**own, "txnAppId": name}
    if own["delivery"] == "exactly_once":
        own = {**own, "markerTopic": f"{name}-markers"}
    markers = f"{name}-markers" if "txnAppId" in own else f"{name}-markers-unnamed"
    names = {"topic": topic, "markers": markers, "scheduler": f"{name}-delay"}
    # Until the markers are there, their creation is what is needed of all.
    user = user_with(broker, [Permission("Write", "Topic", f"{name}-other"), Permission("Create", "Topic", markers)])
    there = own_topics(broker, name)
    frame = numbers(spark, topic)
    if later:
        frame = frame.withColumn("due", sf.expr("now() + interval 1 hour"))

    def write() -> None:
        before = own_topics(broker, name)
        try:
            # What is prepared for a write is kept for the next of the same settings, for some seconds.
            settings = {**options(user), **own, "kafka.client.id": uuid.uuid4().hex}
            frame.write.format("headway").mode("append").options(**settings).save()
        except Exception:
            assert own_topics(broker, name) - before <= {markers}
            assert values(broker, topic) == []
            raise

    each_is_told(user, permissions("spark sink", cases, **names), write, unwritten=[topic] if later else [])
    assert values(broker, topic) == ([] if later else list(range(10)))
    assert own_topics(broker, name) - there == ({markers} if "markerTopic" in own else set())


def test_workers_with_one_right_less_say_which(
    spark: SparkSession, headway_secure_broker: LocalBroker, tmp_path: Path
) -> None:
    broker = headway_secure_broker
    ControlTopic(broker.admin_config, CONTROL_TOPIC)
    worker = worker_of(handlers.local)
    assert worker
    [topic] = worker.kafka_topics()
    create(broker, topic)
    user = user_with(broker, permissions("spark source", [], topic="other"))
    producer = Producer({"log_level": 0, **broker.admin_config})
    for number in range(10):
        producer.produce(topic, str(tmp_path), str(number))
    assert producer.flush(30) == 0
    producer.close()

    def run() -> None:
        with run_workers(spark, "tests.spark.programs.handlers:local", 1, user.config) as running:
            deadline = time.monotonic() + 60
            while len(list(tmp_path.iterdir())) < 10:
                assert not running.wait(0.2)
                assert time.monotonic() < deadline
            running.stop()
            assert running.wait(60)

    each_is_told(user, permissions("spark workers", ["control"], topic=topic, group=worker.group), run)


@pytest.mark.parametrize("once", [True, False], ids=["sink", "workers"])
def test_a_topic_of_our_own_that_may_not_be_created_is_told(
    spark: SparkSession, headway_secure_broker: LocalBroker, name: str, once: bool
) -> None:
    broker, topic = headway_secure_broker, f"{name}-0"
    create(broker, topic)
    markers = f"{name}-markers-unnamed"
    names = {"topic": topic, "markers": markers, "group": "spark-workers-local"}
    admin = Admin(broker.admin_config)
    if CONTROL_TOPIC in admin.topics():
        admin.delete([CONTROL_TOPIC])
    needed = permissions("spark sink", ["exactly-once"], **names) + permissions("spark workers", ["control"], **names)
    user = user_with(broker, needed)
    own = {**options(user), "markerTopic": f"{name}-markers"}

    def work() -> None:
        if once:
            numbers(spark, topic).write.format("headway").mode("append").options(**own).save()
        else:
            run_workers(spark, "tests.spark.programs.handlers:local", 1, user.config).stop()

    assert f"--operation Create --topic {markers if once else CONTROL_TOPIC}" in error_of(work)
    assert own_topics(broker, name) == {topic}
    assert CONTROL_TOPIC not in admin.topics()


def test_a_writer_that_may_write_no_topic_at_all_is_told(
    spark: SparkSession, headway_secure_broker: LocalBroker, name: str
) -> None:
    """Kafka gives it no producer id, and says so of the cluster."""
    create(headway_secure_broker, f"{name}-0")
    user = user_with(headway_secure_broker, [Permission("Describe", "Topic", f"{name}-0")])
    own = {**options(user), "delivery": "at_least_once"}
    writer = numbers(spark, f"{name}-0").write.format("headway").mode("append").options(**own)
    assert f"--operation Write --topic {name}-0" in error_of(writer.save)


def test_a_stream_that_may_not_use_the_group_of_its_progress_goes_on_and_says_so(
    spark: SparkSession,
    headway_secure_broker: LocalBroker,
    name: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The checkpoint has the progress; the group only shows it."""
    sent(headway_secure_broker, f"{name}-0")
    user = user_with(headway_secure_broker, permissions("spark source", [], topic=f"{name}-0"))
    own = {"subscribe": name, "levels": "1", "group.id": name, "startingOffsets": "earliest"}
    rows: list[Any] = []
    frame = spark.readStream.format("headway").options(**options(user), **own).load()
    into = frame.writeStream.foreachBatch(lambda batch, number: rows.extend(batch.collect()))
    query = into.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    said = ""
    try:
        deadline = time.monotonic() + 60
        while len(rows) < 5 or f"--operation Read --group {name}-0" not in said:
            assert query.exception() is None
            assert time.monotonic() < deadline, said[-2000:]
            sent_more(headway_secure_broker, f"{name}-0")
            time.sleep(0.5)
            said += capfd.readouterr().err
    finally:
        query.stop()

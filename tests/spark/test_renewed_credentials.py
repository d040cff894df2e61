"""A password or certificate renewed under a query, which ends with a sentence, and goes on exactly once with it."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from headway.broker import LocalBroker
from headway.core.roles import permissions_of
from tests.broker.delay_cluster import wait_until
from tests.broker.secured_role import Certificate, change_password, create, start_again, user_with

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE = 180.0


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A secured broker where who is connected has to log in again every two seconds."""
    with LocalBroker(secure=True, properties={"listener.name.sasl_ssl.connections.max.reauth.ms": "2000"}) as broker:
        yield broker


def send(broker: LocalBroker, topic: str, numbers: range) -> None:
    producer = Producer({"log_level": 0, **broker.admin_config})
    for number in numbers:
        producer.produce(topic, str(number))
    assert producer.flush(60) == 0
    producer.close()


def read(broker: LocalBroker, topic: str) -> list[int]:
    """Return what is committed in a topic of one partition."""
    consumer = Consumer({"log_level": 0, **broker.admin_config, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(60)) and not message.error():
        found.append(int(message.value() or b""))
    consumer.close()
    assert message
    return sorted(found)


def start(spark: SparkSession, config: Mapping[str, Any], name: str, directory: Path) -> StreamingQuery:
    """Copy what comes to level 0 of a topic."""
    options = {f"kafka.{key}": str(value) for key, value in config.items()}
    own = {"subscribe": name, "levels": "1", "startingOffsets": "earliest"}
    frame = spark.readStream.format("headway").options(**options, **own).load()
    rows = frame.select("value", sf.lit(f"{name}-out").alias("topic"))
    writer = rows.writeStream.format("headway").options(**options, markerTopic=f"{name}-markers")
    return writer.option("checkpointLocation", str(directory / "checkpoint")).start()


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_query_whose_password_was_renewed_ends_with_the_reason_and_goes_on_exactly_once_with_the_new_one(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path, busy: bool
) -> None:
    name = f"renewed-{uuid.uuid4().hex[:8]}"
    source, out = f"{name}-0", f"{name}-out"
    create(broker, source, out)
    names = {"topic": [source], "markers": [f"{name}-markers"]}
    sink = permissions_of("spark sink", ["exactly-once", "create"], names | {"topic": [out]})
    user = user_with(broker, [*permissions_of("spark source", [], names), *sink])

    def has(count: int) -> Callable[[], bool]:
        return lambda: len(read(broker, out)) >= count

    send(broker, source, range(10))
    query = start(spark, user.config, name, tmp_path)
    try:
        wait_until(has(10), PATIENCE)
        query.processAllAvailable()  # Spark's commit asks Kafka, too
        change_password(broker, user.name, "another")
        if busy:
            send(broker, source, range(10, 20))
        with pytest.raises(StreamingQueryException, match=r"refuses this client: .*invalid credentials") as raised:
            assert query.awaitTermination(int(PATIENCE))
        assert user.config["sasl.password"] not in str(raised.value)
        if not busy:
            send(broker, source, range(10, 20))
        query = start(spark, {**user.config, "sasl.password": "another"}, name, tmp_path)
        wait_until(has(20), PATIENCE)
        query.processAllAvailable()
    finally:
        query.stop()
    assert read(broker, out) == list(range(20))


def test_a_query_whose_certificate_was_renewed_ends_with_the_reason_and_goes_on_exactly_once(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    name = f"renewed-{uuid.uuid4().hex[:8]}"
    source, out = f"{name}-0", f"{name}-out"
    create(broker, source, out)
    certificate = Certificate(broker, tmp_path)
    ends = certificate.issue(timedelta(seconds=60))
    send(broker, source, range(10))
    query = start(spark, certificate.config, name, tmp_path)
    try:
        wait_until(lambda: len(read(broker, out)) == 10, PATIENCE)
        query.processAllAvailable()  # Spark's commit asks Kafka, too
        wait_until(lambda: time.monotonic() > ends, PATIENCE)
        start_again(broker)
        send(broker, source, range(10, 20))
        with pytest.raises(StreamingQueryException, match=r"refuses this client: .*certificate"):
            assert query.awaitTermination(int(PATIENCE))
        certificate.issue()
        query = start(spark, certificate.config, name, tmp_path)
        wait_until(lambda: len(read(broker, out)) == 20, PATIENCE)
        query.processAllAvailable()
    finally:
        query.stop()
    assert read(broker, out) == list(range(20))

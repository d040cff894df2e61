"""What of the source takes time to see: an idle query, and a log that Kafka compacts."""

import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headway.broker import LocalBroker
from headway.broker.ports import free_ports

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics, MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

MEASURED_S = 10
KEYS = 5


def cpu_seconds() -> float:
    """What Spark's Java and its Python processes have used."""
    gateway: Any = SparkContext._gateway
    java = psutil.Process(gateway.proc.pid)
    times = [process.cpu_times() for process in (java, *java.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def test_an_idle_query_uses_less_than_a_twentieth_of_a_core(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    frame = spark.readStream.format("headway").options(**orders.options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    # Spark's own default, which asks the source again at once.
    spark.conf.set("spark.sql.streaming.pollingDelay", "10ms")
    query = writer.start()
    try:
        time.sleep(MEASURED_S)  # Java compiles at first
        before = cpu_seconds()
        time.sleep(MEASURED_S)
        used = cpu_seconds() - before
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.pollingDelay")

    assert query.exception() is None
    assert used < 0.05 * MEASURED_S


def test_the_records_that_compaction_leaves_are_read(
    spark: SparkSession,
    headway_broker: LocalBroker,
    headway_topic: str,
    micro_batches: type["MicroBatches"],
    tmp_path: Path,
) -> None:
    servers: dict[str, Any] = {"bootstrap.servers": headway_broker.bootstrap_servers}
    quickly = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    admin, producer = AdminClient({"log_level": 0, **servers}), Producer({"log_level": 0, **servers})
    admin.create_topics([NewTopic(f"{headway_topic}-0", 1, 1, config=quickly)])[f"{headway_topic}-0"].result(30)
    options = {"kafka.bootstrap.servers": servers["bootstrap.servers"], "subscribe": headway_topic, "levels": "1"}

    def there() -> list[int]:
        rows = spark.read.format("headway").options(**options).load().collect()
        return [int(row["value"]) for row in rows]

    # Compaction leaves the newest segment alone, and each of these is one.
    sent, deadline = 0, time.monotonic() + 100
    while len(there()) == sent or sent < 10 * KEYS:
        assert time.monotonic() < deadline
        for _ in range(KEYS):
            producer.produce(f"{headway_topic}-0", str(sent).encode(), key=str(sent % KEYS).encode())
            sent += 1
        producer.flush(10)
        time.sleep(0.5)

    left = there()
    assert left == sorted(left)
    assert left[-KEYS:] == list(range(sent - KEYS, sent))
    seen = micro_batches()
    reader = spark.readStream.format("headway").options(**options, startingOffsets="earliest", maxRecordsPerTrigger=7)
    writer = reader.load().writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert set(range(sent - KEYS, sent)) <= set(seen.all_values()) <= set(left)


@pytest.mark.parametrize("selection", ["subscribe", "subscribePattern"])
def test_a_query_goes_on_when_the_broker_was_restarted(
    selection: str, spark: SparkSession, level_topics: Any, micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    [port] = free_ports(1)
    broker = LocalBroker(data_dir=tmp_path / "broker", port=port).start()
    try:
        orders = level_topics(broker.bootstrap_servers, "orders")
        first, second = Event(), Event()
        seen = micro_batches(lambda _: (second if 11 in seen.all_values() else first).set())
        orders.send(0, range(10))
        options = {**orders.options, selection: orders.options["subscribe"], "startingOffsets": "earliest"}
        if selection != "subscribe":
            del options["subscribe"]
        frame = spark.readStream.format("headway").options(**options).load()
        query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert first.wait(60)
            broker.stop()
            broker.start()
            orders.send(2, [10, 11])
            assert second.wait(60), query.exception()
        finally:
            query.stop()
    finally:
        broker.stop()

    assert seen.all_values() == list(range(12))

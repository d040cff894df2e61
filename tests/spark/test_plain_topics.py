"""`format("headway")` on topics that exist: under their own names, with the levels that are given to them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from demo.flight_outputs import Outputs
from headway.broker import LocalBroker
from headway.kafka.admin import Admin
from headway.kafka.reading.group_inspector import GroupInspector
from headway.spark import delay, run_workers
from headway.spark.source.schema import has_level_topics
from tests.spark.stored import committed
from tests.spark.test_workers import Work, await_that

if TYPE_CHECKING:
    from tests.spark.conftest import MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class Topics:
    """The topics `payments` and `clicks` of a test, of two partitions each."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers = servers
        self.payments, self.clicks = f"{prefix}-payments", f"{prefix}-clicks"
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._producer = Producer(
            {"bootstrap.servers": servers, "log_level": 0, "linger.ms": 1, "enable.idempotence": True}
        )
        self.make(self.payments, self.clicks)

    def make(self, *names: str) -> None:
        """Create Kafka topics."""
        for made in self._admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
            made.result(30)

    def send(self, topic: str, count: int) -> None:
        """Send so many records."""
        for number in range(count):
            self._producer.produce(topic, str(number).encode(), partition=number % 2)
        assert self._producer.flush(30) == 0

    def priorities(self, payments: int, clicks: int) -> str:
        """The option of that name."""
        return json.dumps({self.payments: payments, self.clicks: clicks})


@pytest.fixture
def topics(headway_broker: LocalBroker, headway_topic: str) -> Topics:
    """Topics without levels."""
    return Topics(headway_broker.bootstrap_servers, headway_topic)


def stream(spark: SparkSession, topics: Topics, **options: object) -> DataStreamReader:
    given = {"kafka.bootstrap.servers": topics.servers, "startingOffsets": "earliest", **options}
    return spark.readStream.format("headway").options(**given)  # type: ignore[arg-type]


def read_available(reader: DataStreamReader, into: "MicroBatches", checkpoint: Path) -> None:
    writer = reader.load().writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.slow
def test_the_topic_with_the_higher_priority_is_read_first(
    spark: SparkSession, topics: Topics, micro_batches: "type[MicroBatches]", tmp_path: Path
) -> None:
    topics.send(topics.clicks, 100)
    topics.send(topics.payments, 20)
    seen = micro_batches()
    options = {"maxRecordsPerTrigger": 20, "policy": "strict", "group.id": "billing"}
    given = stream(spark, topics, priorities=topics.priorities(2, 0), **options)
    read_available(given, seen, tmp_path)

    assert [(row["topic"], row["level"]) for row in seen.rows[0]] == [(topics.payments, 2)] * 20
    assert [len(rows) for rows in seen.rows.values()] == [20] * 6
    assert seen.all_values() == sorted([*range(100), *range(20)])


@pytest.mark.slow
def test_a_query_goes_on_under_other_priorities(
    spark: SparkSession, topics: Topics, micro_batches: "type[MicroBatches]", tmp_path: Path
) -> None:
    topics.send(topics.clicks, 10)
    topics.send(topics.payments, 10)
    seen = micro_batches()
    read_available(stream(spark, topics, priorities=topics.priorities(2, 0)), seen, tmp_path)
    topics.send(topics.clicks, 5)
    read_available(stream(spark, topics, priorities=topics.priorities(0, 3)), seen, tmp_path)

    assert [(row["topic"], row["level"]) for row in seen.rows[max(seen.rows)]] == [(topics.clicks, 3)] * 5
    assert sum(map(len, seen.rows.values())) == 25


@pytest.mark.slow
def test_what_is_read_by_priority_is_written_by_priority_now_and_later(spark: SparkSession, topics: Topics) -> None:
    topics.send(topics.payments, 6)
    topics.send(topics.clicks, 4)
    options = {"kafka.bootstrap.servers": topics.servers, "priorities": topics.priorities(2, 0)}
    read = spark.read.format("headway").options(**options).load().select("topic", "level", "value")
    writer = options | {"schedulerName": topics.payments}
    read.write.format("headway").mode("append").options(**writer).save()
    assert {name: len(committed(topics.servers, name)) for name in (topics.payments, topics.clicks)} == {
        topics.payments: 12,
        topics.clicks: 8,
    }
    by_level = spark.range(3).selectExpr(
        "cast(id as string) as value", "2 as level", "timestamp'2100-01-01' + make_interval(0) as due"
    )
    by_level.write.format("headway").mode("append").options(**writer).save()
    pending = delay.pending(spark, {"bootstrap.servers": topics.servers}, topics.payments)
    assert [row["topic"] for row in pending.collect()] == [topics.payments] * 3


def test_workers_handle_topics_that_exist_at_the_levels_they_declare(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    servers = headway_broker.bootstrap_servers
    payments, clicks = (Work(servers, f"spark-plain-{name}", tmp_path) for name in ("payments", "clicks"))
    clicks.send(range(100))
    payments.send(range(100, 120))
    with run_workers(spark, "tests.spark.programs.handlers:by_priority", 1, {"bootstrap.servers": servers}) as running:
        await_that(lambda: sum(1 for _ in tmp_path.iterdir()) == 120)
        running.stop()
        assert running.wait(60)

    handled = {path.name for path in tmp_path.iterdir()}
    assert handled == {f"0-{number}" for number in range(100)} | {f"2-{number}" for number in range(100, 120)}


@pytest.mark.slow
def test_a_pipeline_of_ones_own_runs_on_topics_that_exist_and_has_a_report(topics: Topics, tmp_path: Path) -> None:
    answers = f"{topics.payments}-answers"
    topics.make(answers)
    topics.send(topics.payments, 5)
    topics.send(topics.clicks, 9)

    def run(name: str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from headway.cli import main; main()", "pipeline", "run"]
        command += [f"tests.spark.programs.own_pipelines:{name}", "-b", topics.servers, "--output", str(tmp_path)]
        command += ["--topic", f"{topics.payments}=2", "--topic", f"{topics.clicks}=0", *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)

    assert "has no 'answring'. Did you mean tests.spark.programs.own_pipelines:answering?" in run("answring").stderr
    done = run("answering", "--set", f"answers={answers}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("14 rows are in")
    stored = [json.loads(record.value or b"") for record in committed(topics.servers, answers)]
    assert {(each["level"], each["result"].split()[0]) for each in stored} == {(2, topics.payments), (0, topics.clicks)}
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_what_comes_of_flights_has_the_levels_of_the_topics_that_exist(topics: Topics) -> None:
    kafka, name = {"bootstrap.servers": topics.servers}, topics.payments
    to = Outputs("unused", kafka, f"{name}-notices", f"{name}-later", f"{name}-dead")
    to.create_topics({topics.payments: 2, topics.clicks: 0}, 3)
    made = {f"{to.notices}-{level}": 2 for level in range(3)} | {f"{to.follow_ups}-{level}": 2 for level in range(3)}
    there = dict(Admin(kafka).topics())
    assert made.items() | {(to.dead_letters, 2)} <= there.items()


def test_without_levels_a_topic_is_read_as_it_is_by_name_pattern_or_partition(
    spark: SparkSession, topics: Topics
) -> None:
    topics.send(topics.payments, 10)
    topics.send(topics.clicks, 4)

    def count(**options: str) -> int:
        given = {"kafka.bootstrap.servers": topics.servers, **options}
        return spark.read.format("headway").options(**given).load().count()

    plain = spark.read.format("headway").options(subscribe=topics.payments)
    plain = plain.option("kafka.bootstrap.servers", topics.servers)
    assert not has_level_topics(plain.load().selectExpr("level", "topic"))
    assert not has_level_topics(plain.load().selectExpr("CAST(level AS int) level", "topic"))
    assert not has_level_topics(plain.schema("topic string, level int").load())
    assert has_level_topics(plain.option("levels", "1").load())
    assert has_level_topics(plain.option("levels", "1").schema("topic string, level int").load())
    assert has_level_topics(spark.createDataFrame([("orders", 1)], "topic string, level int"))
    assert count(subscribe=topics.payments) == 10
    assert count(subscribe=f"{topics.payments},{topics.clicks}") == 14
    assert count(subscribePattern=topics.payments.removesuffix("payments") + ".*") == 14
    assert count(assign=json.dumps({topics.payments: [1]})) == 5
    assert count(subscribe=topics.payments, startingOffsets=json.dumps({topics.payments: {"0": 3, "1": -1}})) == 2


@pytest.mark.slow
def test_progress_is_committed_to_the_group_itself_where_there_is_one_level(
    spark: SparkSession, topics: Topics, micro_batches: "type[MicroBatches]", tmp_path: Path
) -> None:
    topics.send(topics.payments, 10)
    group = f"{topics.payments}-group"
    for _ in range(2):
        topics.send(topics.payments, 2)
        read_available(
            stream(spark, topics, subscribe=topics.payments, **{"group.id": group}), micro_batches(), tmp_path
        )

    places = [(topics.payments, partition) for partition in range(2)]
    with GroupInspector({"bootstrap.servers": topics.servers}, group) as inspector:
        assert {place[1]: offset for place, (offset, _) in inspector.committed(places).items()} == {0: 7, 1: 7}


@pytest.mark.slow
def test_a_checkpoint_of_topics_without_levels_is_refused_by_a_query_with_some(
    spark: SparkSession, topics: Topics, micro_batches: "type[MicroBatches]", tmp_path: Path
) -> None:
    topics.send(topics.payments, 2)
    read_available(stream(spark, topics, subscribe=topics.payments), micro_batches(), tmp_path)
    topics.make(f"{topics.payments}-0", f"{topics.payments}-1")
    with pytest.raises(StreamingQueryException, match="The checkpoint is for a query whose topics have no levels"):
        read_available(stream(spark, topics, subscribe=topics.payments, levels=2), micro_batches(), tmp_path)


def test_a_topic_that_does_not_exist_is_a_sentence(spark: SparkSession, topics: Topics) -> None:
    given = {"kafka.bootstrap.servers": topics.servers, "subscribe": f"{topics.payments}-no"}
    with pytest.raises(AnalysisException, match=f"The Kafka topic {topics.payments}-no does not exist. Create it with"):
        spark.read.format("headway").options(**given).load().count()

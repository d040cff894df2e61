"""`run_workers` on a real Spark: they handle what comes, drain when told to, and leave their groups."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from headway.broker import LocalBroker
from headway.errors import ConfigError, HeadwayError
from headway.spark import run_workers
from tests.spark.cluster import Cluster, Driver, standalone_cluster
from tests.spark.stored import committed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

HANDLERS = "tests.spark.programs.handlers"


def await_that(condition: Callable[[], bool], driver: Driver | None = None, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        said = driver.log.read_text()[-4000:] if driver else ""
        assert driver is None or driver.running, said
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


class Work:
    """A topic whose records name files to be made in a directory."""

    def __init__(self, servers: str, topic: str, directory: Path) -> None:
        self.servers = servers
        self.topic = topic
        self._directory = directory
        self._admin = AdminClient({"log_level": 0, "bootstrap.servers": servers})
        self._producer = Producer({"log_level": 0, "bootstrap.servers": servers})
        for future in self._admin.create_topics([NewTopic(topic, 4, 1)]).values():
            future.result(30)

    def send(self, numbers: range) -> None:
        for number in numbers:
            self._producer.produce(self.topic, str(self._directory), str(number))
        assert self._producer.flush(30) == 0

    def handled(self) -> set[int]:
        return {int(path.name) for path in self._directory.iterdir()}

    def members(self) -> int:
        [described] = self._admin.describe_consumer_groups([self.topic]).values()
        try:
            return len(described.result(30).members)
        except KafkaException:  # its coordinator is not there yet
            return 0

    def ends(self) -> int:
        """How many records there are."""
        consumer = Consumer({"log_level": 0, "bootstrap.servers": self.servers, "group.id": "looking"})
        ends = [consumer.get_watermark_offsets(TopicPartition(self.topic, number), 30)[1] for number in range(4)]
        consumer.close()
        return sum(ends)

    def lag(self) -> int:
        """How many records the group has not committed."""
        wanted = ConsumerGroupTopicPartitions(self.topic, [TopicPartition(self.topic, number) for number in range(4)])
        [listed] = self._admin.list_consumer_group_offsets([wanted]).values()
        offsets: Any = listed.result(30).topic_partitions
        consumer = Consumer({"log_level": 0, "bootstrap.servers": self.servers, "group.id": "looking"})
        ends = [consumer.get_watermark_offsets(TopicPartition(self.topic, each.partition), 30)[1] for each in offsets]
        consumer.close()
        return int(sum(ends) - sum(max(0, each.offset) for each in offsets))


def test_a_worker_handles_what_comes_and_leaves_its_group_when_it_is_told_to_stop(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    work = Work(headway_broker.bootstrap_servers, "spark-workers-local", tmp_path)
    work.send(range(100))
    with run_workers(spark, f"{HANDLERS}:local", 1, {"bootstrap.servers": work.servers}) as running:
        await_that(lambda: len(work.handled()) == 100)
        work.send(range(100, 150))
        await_that(lambda: len(work.handled()) == 150)
        running.stop()
        assert running.wait(60)

    assert [metrics.done for metrics in running.results] == [150]
    assert (work.members(), work.lag()) == (0, 0)


@pytest.mark.slow
def test_a_record_that_fails_for_good_ends_the_workers_with_its_sentence(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    work = Work(headway_broker.bootstrap_servers, "spark-workers-refusing", tmp_path)
    work.send(range(1))
    running = run_workers(spark, f"{HANDLERS}:refusing", 1, {"bootstrap.servers": work.servers})
    with pytest.raises(HeadwayError, match="Name a dead_letter_topic to keep such records"):
        running.wait(60)


def test_handlers_share_what_their_worker_declares(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    work = Work(headway_broker.bootstrap_servers, "spark-workers-living", tmp_path)
    work.send(range(10))
    with run_workers(spark, f"{HANDLERS}:living", 1, {"bootstrap.servers": work.servers}) as running:
        await_that(lambda: len(work.handled()) == 10)
        running.stop()
        assert running.wait(60)


def test_what_cannot_be_started_ends_the_workers_with_its_sentence(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    work = Work(headway_broker.bootstrap_servers, "spark-workers-unborn", tmp_path)
    running = run_workers(spark, f"{HANDLERS}:unborn", 1, {"bootstrap.servers": work.servers})
    with pytest.raises(HeadwayError, match=r"The lifespan no_life failed at its start.*there is no database"):
        running.wait(60)


@pytest.mark.slow
def test_a_record_that_kills_its_process_is_set_aside_and_the_others_are_handled(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    work = Work(headway_broker.bootstrap_servers, "spark-workers-poisoned", tmp_path)
    dead = Work(headway_broker.bootstrap_servers, "spark-workers-poisoned-dead", tmp_path)
    work.send(range(100))
    with run_workers(spark, f"{HANDLERS}:poisoned", 1, {"bootstrap.servers": work.servers}) as running:
        await_that(lambda: len(work.handled()) == 99)
        await_that(lambda: dead.ends() == 1)
        await_that(lambda: work.lag() == 0)  # what a process had done and not committed as it died is done again
        running.stop()
        assert running.wait(60)

    assert len(running.results) == 1  # it was one task, which outlived its processes
    assert work.handled() == set(range(100)) - {50}


def test_outputs_in_transactions_are_there_once_although_a_process_is_killed(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    work = Work(headway_broker.bootstrap_servers, "spark-workers-once", tmp_path)
    answers = Work(headway_broker.bootstrap_servers, "spark-workers-once-out", tmp_path)
    work.send(range(100))
    with run_workers(spark, f"{HANDLERS}:once", 1, {"bootstrap.servers": work.servers}) as running:
        await_that(lambda: len(committed(work.servers, answers.topic)) >= 100)
        running.stop()
        assert running.wait(60)

    assert (tmp_path / "killed").exists()
    assert work.lag() == 0
    numbers = sorted(int(record.value or b"") for record in committed(work.servers, answers.topic))
    assert numbers == list(range(100))


def test_a_handler_that_is_not_there_is_a_sentence_at_once(spark: SparkSession) -> None:
    for path, sentence in {
        f"{HANDLERS}:locl": "Did you mean",
        f"{HANDLERS}:plain": "is not a worker",
        HANDLERS: "name it as module:handler",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            run_workers(spark, path, 1, {"bootstrap.servers": "nowhere:9092"})


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.slow
def test_workers_of_an_executor_that_is_killed_are_replaced_and_all_drain_at_the_end(
    cluster: Cluster, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    work = Work(headway_broker.bootstrap_servers, "spark-workers-cluster", tmp_path)
    work.send(range(2_000))
    driver = cluster.run("working", work.servers)
    await_that(lambda: work.members() == 2 and len(work.handled()) > 100, driver)
    cluster.executors()[0].kill()
    await_that(lambda: len(work.handled()) == 2_000, driver, within=120)
    await_that(lambda: work.members() == 2, driver)
    driver.tell("stop")
    driver.wait(60)

    assert "ended 2" in driver.log.read_text()
    assert (work.members(), work.lag()) == (0, 0)

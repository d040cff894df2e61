"""Over Spark Connect, and in Spark's declarative pipelines: both run against a server that has our Python."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from headway.broker import LocalBroker
from headway.cli import headway as command
from tests.contract.conftest import Cluster, cluster_of

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

SPARK = Path(pyspark.__file__).parent

# What `spark-pipelines run` reads: Headway's source into its sink.
FLOWS = """
import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

servers, topic = os.environ["SERVERS"], os.environ["TOPIC"]

dp.create_sink("copies", "headway", {"kafka.bootstrap.servers": servers, "topic": f"{topic}-out"})


@dp.append_flow(target="copies")
def copy() -> DataFrame:
    session = SparkSession.active()
    reader = session.readStream.format("headway").option("kafka.bootstrap.servers", servers)
    reader = reader.options(subscribe=topic, levels="3", startingOffsets="earliest", minPartitions="2")
    return reader.load().selectExpr("key", "value", "level")
"""


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> Cluster:
    return cluster_of(headway_broker)


def filled(cluster: Cluster, count: int) -> str:
    """Make a topic with records of three levels, and others for copies and dead letters."""
    topic = cluster.topic()
    cluster.create_topics([*(f"{topic}-out-{level}" for level in range(3)), f"{topic}-dead"])
    send(cluster, topic, count)
    return topic


def send(cluster: Cluster, topic: str, count: int) -> None:
    with cluster.producer() as producer:
        for number in range(count):
            producer.send(topic, f"{number:03}", f"key {number % 7}", level=number % 3)


def copies(cluster: Cluster, topic: str) -> list[str]:
    """Return the values of the copies that are committed."""
    found: list[str] = []
    with cluster.consumer(f"{topic}-readers", **{"isolation.level": "read_committed"}) as consumer:
        consumer.subscribe(f"{topic}-out")
        while batch := consumer.poll(5 if not found else 1):
            found += [record.value.decode() for record in batch]
    return sorted(found)


def run(*words: str, folder: Path, **variables: str) -> str:
    """Run a program whose server is to use our Python; return its output."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment |= {"SPARK_HOME": str(SPARK), **variables}
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_source_sink_stage_and_schedules_work_over_connect(
    cluster: Cluster, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    topic = filled(cluster, 90)
    command.main(["schedule", "init", "-b", cluster.bootstrap_servers], standalone_mode=False)
    words = [cluster.bootstrap_servers, topic, str(tmp_path)]
    output = run(sys.executable, "-m", "tests.spark.programs.over_connect", *words, folder=Path(__file__).parents[2])
    [line] = [line for line in output.splitlines() if line.startswith("FOUND ")]
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    assert (found["rows"], found["copies"], found["by_key"], found["sizes"]) == (90, 90, 90, [3])
    for level in range(3):
        assert f"level {level}           30 read  33%            0 waiting" in found["told"]
    assert "parallel_map of length: 90 ok" in found["told"]
    assert f"outputs with dead letters in {topic}-dead: 90 records" in found["told"]
    assert found["schedules"] == {"pending": 20, "cancelled": {"CANCELLED": 10}, "audited": [20, 10, 10, 0]}
    assert found["pages"] == {"report": 30, "occupancy": 10, "pages": ["report.html", "schedules.html"]}
    assert found["own_names"] == [True, False]
    assert "Set splitPartitions to false, put repartition_by_key before parallel_map" in found["split"]
    assert "rate_limit" in found["rate_limit"]
    assert "Divide the rate by the number of tasks, and limit it in the handler." in found["rate_limit"]
    assert found["follow_cluster"].endswith("which does not have one. Set the source's option `minPartitions`.")
    assert found["run_workers"].startswith("run_workers needs a SparkContext, but this is a session of Spark")
    assert copies(cluster, topic) == [f"{number:03}" for number in range(90)]


def test_a_declarative_pipeline_copies_each_record_once_and_goes_on_where_it_was(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic = filled(cluster, 60)
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text(
        "name: copies\nlibraries:\n  - glob:\n      include: flows.py\n" + f"storage: file://{tmp_path}/storage\n"
    )
    (tmp_path / "flows.py").write_text(FLOWS)
    pipelines = str(Path(sys.executable).parent / "spark-pipelines")
    for _ in range(2):
        run(pipelines, "run", "--spec", str(spec), folder=tmp_path, SERVERS=cluster.bootstrap_servers, TOPIC=topic)
        send(cluster, topic, 30)
    assert copies(cluster, topic) == sorted([f"{n:03}" for n in range(60)] + [f"{n:03}" for n in range(30)])

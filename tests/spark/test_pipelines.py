"""The stages of the demo's flights pipeline, each alone, and all of it from the command line."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from demo import flights_pipeline
from demo.flight_outputs import HANDLED, Outputs, follow_ups, from_notices, to_send
from demo.flights import records
from headway import Ladder
from headway.broker.java import find_java, java_home
from headway.delay.topic_names import TopicNames
from headway.delay.topics import create_topics
from headway.errors import ConfigError
from headway.execution.context import Context
from headway.kafka.admin import Admin
from headway.spark.session.session import SHORT_LIVED
from tests.spark.stored import committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
FLIGHTS = "demo.flights_pipeline:pipeline"


def test_a_record_becomes_a_flight_that_knows_its_level(spark: SparkSession) -> None:
    record = next(records(1))
    columns = "key binary, value binary, topic string, level int, partition int, offset long, timestamp timestamp"
    frame = spark.createDataFrame([(None, record.value, "flights", 2, 1, 7, None)], columns)
    row = flights_pipeline.flights(frame).collect()[0]
    assert (row["carrier"], row["flight"], row["dest"]) == ("UA", 1545, "IAH")
    assert (row["level"], row["partition"], row["offset"]) == (2, 1, 7)


@pytest.mark.slow
def test_a_flight_without_weather_or_with_an_unknown_destination_is_kept(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("EWR", "2013-01-01 10:00", "ORD"), ("JFK", "2013-01-01 10:00", "SJU")],
        "origin string, time_hour string, dest string",
    ).selectExpr("origin", "timestamp(time_hour) as time_hour", "dest")
    noted = [("EWR", "2013-01-01T10:00:00Z", "10", "5.5", "0")] * 2
    weather = flights_pipeline.weather(
        spark.createDataFrame(noted, "origin string, time_hour string, visib string, wind_speed string, precip string")
    )
    airports = flights_pipeline.airports(
        spark.createDataFrame(
            [("ORD", "Chicago Ohare", "41.9", "-87.9")], "faa string, name string, lat string, lon string"
        )
    )

    joined = (
        flights_pipeline.with_airports(flights_pipeline.with_weather(frame, weather), airports)
        .orderBy("origin")
        .collect()
    )

    assert [(row["visibility_miles"], row["destination"]) for row in joined] == [(10.0, "Chicago Ohare"), (None, None)]


@pytest.mark.slow
def test_a_flight_knows_its_plane_and_its_airline(spark: SparkSession) -> None:
    tables = flights_pipeline.read_tables(spark)
    frame = spark.createDataFrame([("UA", "N14228"), ("ZZ", None)], "carrier string, tailnum string")

    known = flights_pipeline.with_airlines(flights_pipeline.with_planes(frame, tables.planes), tables.airlines).orderBy(
        "carrier"
    )
    united, unknown = known.collect()

    assert (united["airline"], united["plane_model"], united["plane_built"]) == (
        "United Air Lines Inc.",
        "737-824",
        1999,
    )
    assert (unknown["airline"], unknown["plane_model"], unknown["plane_seats"]) == (None, None, None)


KNOWN = "tailnum string, carrier string, airline string, flight int, dest string, destination string, arr_delay int"


def test_flights_are_handled_each_with_a_notice_and_one_that_fails_is_kept(spark: SparkSession) -> None:
    rows = [
        ("N1", "UA", "United", 1, "ORD", "Chicago", 90),
        ("N2", "UA", "United", 2, "ORD", None, -5),
        (None, "ZZ", None, 3, "ORD", None, None),
    ]
    known = spark.createDataFrame(rows, KNOWN)

    outcomes = {row["flight"]: row for row in flights_pipeline.handled(known).collect()}
    told = [outcomes[number]["notice"] for number in (1, 2, 3)]
    assert told == ["United 1 to Chicago: 90 minutes late", "United 2 to ORD: on time", "ZZ 3 to ORD did not arrive"]

    def refuse(flight: Any, _: Context) -> str:
        raise ValueError(f"no {flight.flight}")

    [failed] = flights_pipeline.handled(known.where("flight = 1"), refuse).collect()
    assert (failed["outcome"], failed["notice"], failed["error"]["message"]) == ("failed", None, "no 1")


@pytest.mark.slow
def test_each_handled_flight_has_a_notice_and_a_late_one_a_follow_up_and_a_failed_one_a_dead_letter(
    spark: SparkSession,
) -> None:
    done = datetime(2026, 1, 1, 12, tzinfo=UTC)
    known = {"carrier": "UA", "time_hour": done, "done": done, "topic": "flights", "partition": 0, "value": b"raw"}
    of_each: list[dict[str, Any]] = [
        {"flight": 1, "level": 2, "tailnum": "N1", "arr_delay": 61, "notice": "late", "outcome": "ok"},
        {"flight": 2, "level": 1, "tailnum": "N2", "arr_delay": 60, "notice": "late", "outcome": "ok"},
        {"flight": 3, "level": 2, "tailnum": "N3", "arr_delay": 99, "notice": None, "outcome": "failed"},
        {"flight": 4, "level": 2, "tailnum": None, "arr_delay": None, "notice": "gone", "outcome": "ok"},
    ]
    error = "error struct<exception: string, message: string, reason: string>"
    handled = spark.createDataFrame(
        [{**known, **each} for each in of_each],
        f"{HANDLED}, topic string, value binary, outcome string, {error}, history string",
    )
    outputs = Outputs("unused", {}, "told", "later", "dead", timedelta(minutes=30))

    records = to_send(handled, outputs).selectExpr("*", "unix_millis(due) AS at")
    sent = records.collect()
    half_past = (done.timestamp() + 1800) * 1000
    assert [(row["topic"], row["key"], row["at"]) for row in sent] == [
        ("told-2", b"N1", None),
        ("later-2", b"N1", half_past),
        ("told-1", b"N2", None),
        ("dead", None, None),
        ("told-2", None, None),
    ]
    assert sent[3]["value"] == b"raw"
    assert json.loads(sent[1]["value"])["notice"] == "late"

    kept = from_notices(records.where("topic LIKE 'told-%'")).orderBy("flight")
    assert [row["flight"] for row in kept.collect()] == [1, 2, 4]
    assert kept.schema == handled.select(*kept.columns).schema
    [later] = follow_ups(kept, timedelta(minutes=30)).selectExpr("value", "unix_millis(due) AS at").collect()
    assert (later["value"].encode(), later["at"]) == (sent[1]["value"], half_past)


def test_tables_that_are_not_there_are_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path} has no weather.csv"):
        flights_pipeline.read_tables(spark, tmp_path)


@pytest.mark.slow
@pytest.mark.kafka
def test_the_command_goes_on_where_a_program_with_the_same_pipeline_was(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    sent = list(records(300))
    kafka, names = {"bootstrap.servers": orders.servers}, (f"{orders.topic}-notices", f"{orders.topic}-later")

    def send(some: slice) -> None:
        for level in range(orders.levels):
            orders.send(level, [flight.value.decode() for flight in sent[some] if flight.level == level])

    send(slice(0, 200))
    outputs = Outputs(str(tmp_path), kafka, names[0], names[1], f"{orders.topic}-dead")
    outputs.create_topics(orders.topic, orders.levels)
    source = flights_pipeline.source(spark, kafka, orders.topic, orders.levels)
    flights_pipeline.run(spark, source, flights_pipeline.read_tables(spark), outputs, orders.levels, once=True)
    send(slice(200, 300))
    command = [sys.executable, "-c", "from headway.cli import main; main()", "pipeline", "run", FLIGHTS]
    command += ["--topic", orders.topic, "--output", str(tmp_path), "-b", orders.servers]
    own = {"notices": names[0], "follow_ups": names[1], "dead_letters": outputs.dead_letters, "after": 1}
    command += [f"--set={name}={value}" for name, value in own.items()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("300 rows are in")
    noticed = [len(committed(orders.servers, f"{names[0]}-{level}")) for level in range(3)]
    assert noticed == [sum(flight.level == level for flight in sent) for level in range(3)]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 5
    assert not re.search(r"https?://|<script|<link", page.replace("http://www.w3.org", ""))


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (["--levels", "4"], "The Kafka topic {topic}-3, level 3 of {topic}, does not exist. Create it with `head"),
        (["-X", "group.id=x"], "The option `kafka.group.id` cannot be set. Use the option `group.id`."),
    ],
)
def test_a_mistake_of_the_command_is_one_sentence_and_creates_nothing(
    orders: "LevelTopics", mistake: list[str], sentence: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "from headway.cli import main; main()", "pipeline", "run", FLIGHTS]
    command += ["--topic", orders.topic, "--output", str(tmp_path), "-b", orders.servers]
    command += [f"--set=notices={orders.topic}-notices", *mistake]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)

    assert done.returncode == 1
    assert sentence.format(topic=orders.topic) in done.stderr
    assert "Traceback" not in done.stderr
    there = Admin({"bootstrap.servers": orders.servers}).topics()
    assert not [name for name in there if name.startswith(f"{orders.topic}-notices")]


@pytest.mark.slow
@pytest.mark.kafka
def test_a_replayed_micro_batch_adds_nothing_and_a_new_checkpoint_does(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    sent = list(records(2_000))
    for level in range(orders.levels):
        orders.send(level, [flight.value.decode() for flight in sent if flight.level == level])
    kafka, name = {"bootstrap.servers": orders.servers}, orders.topic
    create_topics(kafka, name, Ladder.exponential(1, 2, 2), 2)
    outputs = Outputs(str(tmp_path), kafka, f"{name}-notices", f"{name}-later", f"{name}-dead", scheduler_name=name)
    outputs.create_topics(name, orders.levels)
    tables = flights_pipeline.read_tables(spark)

    def run() -> tuple[int, int, int]:
        flights_pipeline.run(
            spark, flights_pipeline.source(spark, kafka, name, orders.levels), tables, outputs, 3, once=True
        )
        noticed = sum(len(committed(orders.servers, f"{name}-notices-{level}")) for level in range(3))
        return (
            spark.read.parquet(str(tmp_path / "flights")).count(),
            noticed,
            len(committed(orders.servers, TopicNames(name).delay_topic(2000))),
        )

    late = sum((json.loads(flight.value)["arr_delay"] or 0) > 60 for flight in sent)
    assert run() == (2_000, 2_000, late)
    for commit in [
        each for pattern in ("0", ".0.*") for each in (tmp_path / "checkpoint").glob(f"*/commits/{pattern}")
    ]:
        commit.unlink()
    assert run() == (2_000, 2_000, late)
    shutil.rmtree(tmp_path / "checkpoint" / "handled")
    assert run() == (4_000, 4_000, 2 * late)


@pytest.mark.slow
@pytest.mark.kafka
def test_the_example_runs_with_spark_submit(orders: "LevelTopics", tmp_path: Path) -> None:
    sent = list(records(500))
    for level in range(orders.levels):
        orders.send(level, [flight.value.decode() for flight in sent if flight.level == level])
    late = sum((json.loads(flight.value)["arr_delay"] or 0) > 60 for flight in sent)

    quick = {
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
    }
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    submit += [f"--conf={name}={value}" for name, value in quick.items()]
    program = [str(ROOT / "examples" / "flights_pipeline.py"), orders.servers, orders.topic, str(tmp_path)]
    own = {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(java_home(find_java())), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*submit, *program], env=os.environ | own, capture_output=True, text=True, timeout=250, check=False
    )

    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{late} flights were more than an hour late.\n"

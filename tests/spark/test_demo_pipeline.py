"""What the demo shows of its flights, and all of it over real ones."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from demo import flights_pipeline, pipeline
from demo.flight_outputs import Outputs
from demo.flights import records

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_delays_are_means_over_the_flights_that_arrived(spark: SparkSession) -> None:
    delays = [("ORD", 0, -4), ("ORD", 0, 0), ("ORD", 2, 100), ("ORD", 2, None), ("SJU", 2, None)]
    frame = spark.createDataFrame(delays, "dest string, level int, arr_delay int")

    ord_, sju = pipeline.delay_by_destination_and_level(frame).collect()

    assert (ord_["dest"], ord_["flights"], ord_["delay"]) == ("ORD", 4, 32.0)
    assert ord_["delay_by_level"] == {0: -2.0, 2: 100.0}
    assert (sju["flights"], sju["delay"], sju["delay_by_level"]) == (1, None, {2: None})


@pytest.mark.slow
def test_delays_by_visibility_leave_out_what_is_not_known(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(0.25, 40), (0.5, 20), (10.0, 4), (None, 7), (10.0, None)], "visibility_miles double, dep_delay int"
    )
    rows = pipeline.delay_by_visibility(frame).collect()
    assert [(row["miles"], row["delay"]) for row in rows] == [(0, 30.0), (10, 4.0)]


def test_a_flight_that_arrived_twice_shows(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("UA", 1, "10"), ("UA", 1, "10"), ("UA", 2, "10")], "carrier string, flight int, time_hour string"
    )
    row = pipeline.arrivals(frame).collect()[0]
    assert (row["rows"], row["distinct"]) == (3, 2)


@pytest.mark.slow
@pytest.mark.kafka
def test_every_flight_goes_from_kafka_to_parquet_and_back_once(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    sent = list(records(1_000))
    for level in range(orders.levels):
        orders.send(level, [flight.value.decode() for flight in sent if flight.level == level])
    kafka = {"bootstrap.servers": orders.servers}
    source = flights_pipeline.source(spark, kafka, orders.topic, orders.levels)
    name = orders.topic
    outputs = Outputs(str(tmp_path), kafka, f"{name}-notices", f"{name}-later", f"{name}-dead", scheduler_name=name)
    outputs.create_topics(orders.topic, orders.levels)

    outcome = pipeline.process(spark, source, outputs, orders.levels, 1_000, Console(quiet=True))

    assert outcome.each_once
    assert outcome.each_noticed_once
    assert spark.read.parquet(str(outcome.parquet)).where("destination is not null").count() > 900
    assert outcome.plot.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "report.html").read_text()

"""The stages of the demo's pipeline, each alone, and all of them over real flights."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from demo import pipeline
from demo.flights import records

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = pytest.mark.spark


def test_a_record_becomes_a_flight_that_knows_its_level(spark: SparkSession) -> None:
    record = next(records(1))
    frame = spark.createDataFrame([(record.value, 2, 1, 7)], "value binary, level int, partition int, offset long")
    row = pipeline.flights(frame).collect()[0]
    assert (row["carrier"], row["flight"], row["dest"]) == ("UA", 1545, "IAH")
    assert (row["level"], row["partition"], row["offset"]) == (2, 1, 7)


def test_a_flight_without_weather_or_with_an_unknown_destination_is_kept(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("EWR", "2013-01-01 10:00", "ORD"), ("JFK", "2013-01-01 10:00", "SJU")],
        "origin string, time_hour string, dest string",
    ).selectExpr("origin", "timestamp(time_hour) as time_hour", "dest")
    noted = [("EWR", "2013-01-01T10:00:00Z", "10", "5.5", "0")] * 2
    weather = pipeline.weather(
        spark.createDataFrame(noted, "origin string, time_hour string, visib string, wind_speed string, precip string")
    )
    airports = pipeline.airports(
        spark.createDataFrame(
            [("ORD", "Chicago Ohare", "41.9", "-87.9")], "faa string, name string, lat string, lon string"
        )
    )

    joined = pipeline.with_airports(pipeline.with_weather(frame, weather), airports).orderBy("origin").collect()

    assert [(row["visibility_miles"], row["destination"]) for row in joined] == [(10.0, "Chicago Ohare"), (None, None)]


def test_delays_are_means_over_the_flights_that_arrived(spark: SparkSession) -> None:
    delays = [("ORD", 0, -4), ("ORD", 0, 0), ("ORD", 2, 100), ("ORD", 2, None), ("SJU", 2, None)]
    frame = spark.createDataFrame(delays, "dest string, level int, arr_delay int")

    ord_, sju = pipeline.delay_by_destination_and_level(frame).collect()

    assert (ord_["dest"], ord_["flights"], ord_["delay"]) == ("ORD", 4, 32.0)
    assert ord_["delay_by_level"] == {0: -2.0, 2: 100.0}
    assert (sju["flights"], sju["delay"], sju["delay_by_level"]) == (1, None, {2: None})


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


@pytest.mark.kafka
def test_every_flight_goes_from_kafka_to_parquet_once(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    flights = list(records(1_000))
    for level in range(orders.levels):
        orders.send(level, [flight.value.decode() for flight in flights if flight.level == level])
    source = pipeline.source(spark, orders.servers, orders.topic, orders.levels)

    outcome = pipeline.process(spark, source, 1_000, tmp_path, Console(quiet=True))

    assert outcome.each_once
    assert spark.read.parquet(str(outcome.parquet)).where("destination is not null").count() > 900
    assert outcome.plot.read_bytes().startswith(b"\x89PNG")

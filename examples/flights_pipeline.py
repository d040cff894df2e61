"""The flights pipeline, for spark-submit: `spark-submit flights_pipeline.py HOST:PORT TOPIC OUTPUT`.

It begins as the one that comes with Headway, and adds a stage of its own: what is late goes to a directory of its own.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from headway.pipelines import flights
from headway.spark import stamped


def late(known: DataFrame) -> DataFrame:
    """The flights that arrived more than an hour late, with what may have caused it."""
    return known.where("arr_delay > 60").selectExpr(
        "airline", "flight", "destination", "arr_delay", "visibility_miles", "wind_mph", "plane_built",
        "level", "produced_at", "read_at", "done_at",
    )  # fmt: skip


def main(servers: str, topic: str, output: str) -> None:
    """Read what is there now, and write the late flights of it."""
    spark = SparkSession.builder.appName("late flights").getOrCreate()
    tables = flights.read_tables(spark)
    records = flights.source(spark, {"bootstrap.servers": servers}, topic, levels=3)
    found = stamped(flights.flights(records), lambda frame: flights.enriched(frame, tables))
    query = (
        late(found)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{output}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{output}/late")
    )
    query.awaitTermination()
    print(f"{spark.read.parquet(f'{output}/late').count():,} flights were more than an hour late.")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

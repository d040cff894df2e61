"""The demo's flights, for spark-submit.

`PYTHONPATH=. spark-submit examples/flights_pipeline.py HOST:PORT TOPIC OUTPUT` runs it in a checkout. It begins as the
demo's pipeline does, and adds a stage of its own: late flights go to a directory of their own.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from demo import flights_pipeline
from headway.spark import stamped


def late(known: DataFrame) -> DataFrame:
    """The flights that arrived more than an hour late, with what may have caused it."""
    return known.where("arr_delay > 60").selectExpr(
        "airline", "flight", "destination", "arr_delay", "visibility_miles", "wind_mph", "plane_built",
        "level", "produced_at", "read_at", "done_at",
    )  # fmt: skip


def main(servers: str, topic: str, output: str) -> None:
    """Read the flights that exist now, and write the late ones."""
    spark = SparkSession.builder.appName("late flights").getOrCreate()
    tables = flights_pipeline.read_tables(spark)
    records = flights_pipeline.source(spark, {"bootstrap.servers": servers}, topic, levels=3)
    found = stamped(flights_pipeline.flights(records), lambda frame: flights_pipeline.enriched(frame, tables))
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

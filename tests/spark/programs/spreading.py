"""A query that notes where each micro-batch's tasks run: MASTER SERVERS TOPIC DIRECTORY; it ends with its input."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from tests.spark.programs.session import arguments, cluster_session


def place_and_values(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield for each batch the executor's directory, which has its number, and how many rows came."""
    for batch in batches:
        yield pa.RecordBatch.from_pylist([{"place": os.getcwd(), "task": os.getpid(), "count": batch.num_rows}])


def main() -> None:
    """Write a line for each micro-batch: the executors, the tasks with rows, and the rows."""
    servers, topic, directory = arguments()
    session = cluster_session()
    options = {"kafka.bootstrap.servers": servers, "levels": "3", "splitPartitions": "true"}
    source = session.readStream.format("headway").options(startingOffsets="earliest", subscribe=topic, **options)

    def note(frame: DataFrame, number: int) -> None:
        tasks = frame.rdd.getNumPartitions()
        rows = frame.mapInArrow(place_and_values, "place string, task long, count long").collect()
        line = {"tasks": tasks, "places": sorted({row["place"] for row in rows}), "rows": sum(r["count"] for r in rows)}
        with Path(directory, "micro-batches").open("a") as file:
            file.write(json.dumps(line) + "\n")

    checkpoint = f"{directory}/checkpoint"
    query = source.load().writeStream.foreachBatch(note).option("checkpointLocation", checkpoint).start()
    sys.stdin.readline()
    query.stop()


if __name__ == "__main__":
    main()

"""What Headway does over Spark Connect, against a server that this program starts; it prints what it found as JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import Row, SparkSession

from headway.errors import ConfigError
from headway.spark import Output, follow_cluster, outputs, parallel_map, run_workers
from headway.spark import delay as spark_delay
from headway.spark.source.schema import has_level_topics


def length(row: Any) -> Row:
    return Row(size=len(row.value))


def sentence(call: Callable[[], object]) -> str:
    try:
        call()
    except ConfigError as error:
        return str(error)
    return "nothing"


def main(servers: str, topic: str, checkpoint: str) -> dict[str, Any]:
    session = SparkSession.builder.remote("local[2]").getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers}
    given = {**kafka, "subscribe": topic, "levels": "3", "startingOffsets": "earliest"}
    batch = session.read.format("headway").options(**given).load()
    whole = session.read.format("headway").options(**given, splitPartitions="false").load()
    stream = session.readStream.format("headway").options(**given, minPartitions="2").load()

    sent = outputs(
        parallel_map(stream, length, "size int", key="key", max_concurrency=8),
        Output(f"{topic}-out", key="key", value="value", level="level"),
        dead_letter_topic=f"{topic}-dead",
    )
    writer = sent.writeStream.format("headway").options(**kafka).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination(120)
    copies = session.read.format("headway").options(**(given | {"subscribe": f"{topic}-out"})).load()
    return {
        "rows": batch.count(),
        "sizes": sorted({row.result.size for row in parallel_map(whole, length, "size int", key="key").collect()}),
        "own_names": [
            has_level_topics(reader.schema("topic string, level int").options(**kafka, **options).load())
            for reader, options in (
                (session.read.format("headway"), {"subscribe": topic, "levels": "3"}),
                (session.read.format("headway"), {"subscribe": f"{topic}-0"}),
            )
        ],
        "split": sentence(lambda: parallel_map(batch, length, "size int", key="key")),
        "copies": copies.count(),
        "pending": spark_delay.pending(session, {"bootstrap.servers": servers}).count(),
        "follow_cluster": sentence(lambda: follow_cluster(session)),
        "run_workers": sentence(lambda: run_workers(session, "no:matter", 1, {"bootstrap.servers": servers})),
    }


if __name__ == "__main__":
    print("FOUND " + json.dumps(main(*sys.argv[1:])))

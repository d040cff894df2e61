"""What Headway does over Spark Connect, against a server that this program starts; it prints what it found as JSON."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from headway import Relay
from headway.delay.topic_names import DEFAULT_NAME
from headway.errors import ConfigError
from headway.spark import (
    Output,
    ProgressListener,
    follow_cluster,
    outputs,
    parallel_map,
    repartition_by_key,
    run_workers,
)
from headway.spark import delay as spark_delay
from headway.spark.report.file import write_report
from headway.spark.report.timestamps import DONE, PRODUCED, READ
from headway.spark.source.schema import has_level_topics

SCHEDULED = 20


def length(row: Any) -> Row:
    return Row(size=len(row.value))


def sentence(call: Callable[[], object]) -> str:
    try:
        call()
    except ConfigError as error:
        return str(error)
    return "nothing"


def told_by_listener(session: SparkSession, run: Callable[[], object]) -> str:
    """Return the text of the micro-batch that this runs."""
    texts: list[str] = []
    told = threading.Event()

    def write(text: str) -> None:
        texts.append(text)
        told.set()

    listener = ProgressListener(write)
    session.streams.addListener(listener)
    run()
    assert told.wait(30)
    session.streams.removeListener(listener)
    return "\n".join(texts)


def schedules(session: SparkSession, servers: str, topic: str) -> dict[str, Any]:
    """Schedule rows, cancel half of them, and audit that."""
    kafka = {"bootstrap.servers": servers}
    rows = session.range(SCHEDULED).select(
        sf.col("id").cast("string").alias("key"), (sf.current_timestamp() + sf.expr("interval 1 hour")).alias("due")
    )
    writer = rows.withColumn("value", sf.col("key")).write.format("headway").mode("append")
    writer.options(**{"kafka.bootstrap.servers": servers, "schedulerName": DEFAULT_NAME, "topic": f"{topic}-0"}).save()
    number = sf.col("key").cast("string").cast("int")
    pending = spark_delay.pending(session, kafka).select(number.alias("id"), "due").toPandas()
    with Relay(kafka).running():
        counts = spark_delay.cancel_where(session, kafka, number % 2 == 0)
    left = spark_delay.pending(session, kafka).select(number.alias("id"))
    there = session.createDataFrame(pending)
    cancelled = there.join(left, "id", "left_anti").select("id")
    delivered = there.where("false").select("id", sf.col("due").alias("delivered"))
    [audited] = spark_delay.summary(spark_delay.audit(there, delivered, cancelled)).collect()
    return {
        "pending": len(pending),
        "cancelled": {outcome.name: count for outcome, count in counts.items()},
        "audited": [audited.ids, audited.cancelled, audited.pending, audited.lost],
    }


def pages(session: SparkSession, servers: str, directory: Path) -> dict[str, Any]:
    """Write a report of records, and of schedules."""
    parquet, kafka = str(directory / "parquet"), {"bootstrap.servers": servers}
    seconds = sf.timestamp_seconds(1_700_000_000 + sf.col("id"))
    times = dict.fromkeys((PRODUCED, READ, DONE), seconds)
    session.range(30).withColumns({"level": (sf.col("id") % 3).cast("int"), **times}).write.parquet(parquet)
    return {
        "report": write_report(session, parquet, directory / "report.html"),
        "occupancy": spark_delay.write_occupancy(session, kafka, directory / "schedules.html"),
        "pages": sorted(page.name for page in directory.glob("*.html")),
    }


def main(servers: str, topic: str, directory: str) -> dict[str, Any]:
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
    writer = sent.writeStream.format("headway").options(**kafka)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    told = told_by_listener(session, lambda: writer.start().awaitTermination(120))
    copies = session.read.format("headway").options(**(given | {"subscribe": f"{topic}-out"})).load()
    by_key = parallel_map(repartition_by_key(batch), length, "size int", key="key")
    return {
        "rows": batch.count(),
        "told": told,
        "by_key": by_key.count(),
        "sizes": sorted({row.result.size for row in parallel_map(whole, length, "size int", key="key").collect()}),
        "own_names": [
            has_level_topics(reader.schema("topic string, level int").options(**kafka, **options).load())
            for reader, options in (
                (session.read.format("headway"), {"subscribe": topic, "levels": "3"}),
                (session.read.format("headway"), {"subscribe": f"{topic}-0"}),
            )
        ],
        "split": sentence(lambda: parallel_map(batch, length, "size int", key="key")),
        "rate_limit": sentence(lambda: parallel_map(whole, length, "size int", key="key", rate_limit=5)),
        "copies": copies.count(),
        "schedules": schedules(session, servers, topic),
        "pages": pages(session, servers, Path(directory)),
        "follow_cluster": sentence(lambda: follow_cluster(session)),
        "run_workers": sentence(lambda: run_workers(session, "no:matter", 1, {"bootstrap.servers": servers})),
    }


if __name__ == "__main__":
    print("FOUND " + json.dumps(main(*sys.argv[1:])))

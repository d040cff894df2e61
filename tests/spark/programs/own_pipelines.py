"""Pipelines that tests run with `headway pipeline run`."""

from typing import Any

from pyspark.sql import functions as sf

from headway.pipelines import PipelineRun
from headway.spark import Output, outputs, parallel_map, stamped


def answer(row: Any) -> str:
    """Answer a record."""
    return f"{row.topic} {row.value.decode()}"


def answering(run: PipelineRun) -> None:
    """Send an answer to each record, and keep the answers."""
    to = run.options["answers"]
    records = run.source(maxRecordsPerTrigger=7, policy="strict").withColumnRenamed("timestamp", "produced_at")
    answered = stamped(records, lambda frame: parallel_map(frame, answer, "string", key=None))
    times = sf.to_json(sf.struct("result", "level", "produced_at", "read_at", "done_at"))
    writer = outputs(answered, Output(to, value=times), dead_letter_topic=to).writeStream.format("headway")
    run.start(writer.options(**run.sink_options), "answered")
    kept = "result string, level int, produced_at timestamp, read_at timestamp, done_at timestamp"
    stored = run.source({to: 0})
    run.keep(stored.select(sf.from_json(sf.col("value").cast("string"), kept).alias("row")).select("row.*"))


def silent(run: PipelineRun) -> None:
    """Keep nothing."""
    run.start(run.source().writeStream.format("noop"), "silent")

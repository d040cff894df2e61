"""A query through the stage, exactly once, at 100 records a time: MASTER SERVERS TOPIC TARGET DEAD DIRECTORY."""

from typing import Any

from pyspark.sql import Row

from headway.spark import Output, outputs, parallel_map
from tests.spark.programs.session import arguments, cluster_session


def place(row: Any) -> Row:
    return Row(place=f"{row.level} {row.value.decode()}")


def main() -> None:
    """Hand on what is there now."""
    servers, topic, target, dead, directory = arguments()
    kafka = {"kafka.bootstrap.servers": servers}
    source = cluster_session().readStream.format("headway").options(**kafka, subscribe=topic, levels=3)
    frame = source.options(startingOffsets="earliest", maxRecordsPerTrigger=100, minPartitions=3).load()
    handled = parallel_map(frame, place, "place string", key="key", max_concurrency=4)
    sent = outputs(handled, Output(target, key="key", value="result.place"), dead_letter_topic=dead)
    sink = sent.writeStream.format("headway").options(**kafka, checkpointLocation=f"{directory}/checkpoint")
    sink.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()

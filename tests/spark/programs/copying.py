"""A query from the levels of a topic to another topic, exactly once: MASTER SERVERS TOPIC TARGET DIRECTORY.

While a file `die` is in the directory, a task dies right after it has committed its transaction.
"""

from pathlib import Path

from tests.spark.programs.session import arguments, cluster_session


def main() -> None:
    """Copy what is there now, in micro-batches of 300 records."""
    servers, topic, target, directory = arguments()
    spark = cluster_session(
        **{
            "spark.python.daemon.module": "tests.spark.programs.dying_daemon",
            "spark.executorEnv.DIE": str(Path(directory, "die")),
        }
    )
    kafka = {"kafka.bootstrap.servers": servers}
    source = spark.readStream.format("headway").options(**kafka, subscribe=topic, startingOffsets="earliest")
    frame = source.options(levels=2, maxRecordsPerTrigger=300).load().select("key", "value")
    sink = frame.writeStream.format("headway").options(**kafka, topic=target)
    checkpoint = str(Path(directory, "checkpoint"))
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()

"""A query from the levels of a topic to Parquet, in micro-batches of 300 records: MASTER SERVERS TOPIC DIRECTORY."""

from tests.spark.programs.session import arguments, cluster_session


def main() -> None:
    """Write what is there now."""
    servers, topic, directory = arguments()
    source = cluster_session().readStream.format("headway").options(startingOffsets="earliest", subscribe=topic)
    source = source.options(**{"kafka.bootstrap.servers": servers}, levels=3, maxRecordsPerTrigger=300)
    frame = source.load().selectExpr("level", "cast(cast(value as string) as int) as number")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
    writer.trigger(availableNow=True).start(f"{directory}/landed").awaitTermination()


if __name__ == "__main__":
    main()

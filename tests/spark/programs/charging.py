"""A query whose handlers change their minds when it is started again: MASTER SERVERS TOPIC DIRECTORY.

It reads level 0 of the topic, writes two receipts of each row to level 1, and dead letters to level 2. While a file
`first` is in the directory, rows from 1,001 on wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headway import Context, FatalError
from headway.spark import InputRow, Output, outputs, parallel_map
from tests.spark.programs.session import arguments, cluster_session


def charging(first_run: Path) -> Callable[[InputRow, Context], Awaitable[str]]:
    """Return a handler that charges odd numbers in the first run, and even ones after it."""

    async def charge(row: InputRow, context: Context) -> str:
        number, is_first_run = int(row.value), first_run.exists()
        while number > 1_000 and first_run.exists():
            await asyncio.sleep(0.05)
        if (number % 2 == 0) == is_first_run:
            raise FatalError("declined")
        return f"-{number}"

    return charge


def start(spark: SparkSession, servers: str, topic: str, directory: Path) -> StreamingQuery:
    """Start the query, for what is there now."""
    kafka, receipts = {"kafka.bootstrap.servers": servers}, f"{topic}-1"
    source = spark.readStream.format("headway").options(**kafka, subscribe=topic, startingOffsets="earliest")
    charged = parallel_map(source.option("levels", 1).load(), charging(directory / "first"), "string", key=None)
    records = outputs(charged, Output(receipts, "value"), Output(receipts, "result"), dead_letter_topic=f"{topic}-2")
    writer = records.writeStream.format("headway").options(**kafka)
    return writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()


def main() -> None:
    """Run it to its end."""
    servers, topic, directory = arguments()
    start(cluster_session(), servers, topic, Path(directory)).awaitTermination()


if __name__ == "__main__":
    main()

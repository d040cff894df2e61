"""Rows to a topic, exactly once, of which one task's first attempt is slow: MASTER SERVERS TARGET DIRECTORY.

Spark starts a second attempt beside it, which fences it off. The first says in a file when it is about to write.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from tests.spark.programs.session import arguments, cluster_session

SLOW_S = 6.0
ROWS, TASKS = 4_000, 4


def main() -> None:
    """Write the numbers once."""
    servers, target, directory = arguments()
    spark = cluster_session(
        **{
            "spark.speculation": "true",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "100",  # so that the sink has begun when its rows stop
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "500ms",
        }
    )

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        task: Any = TaskContext.get()
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)  # so that the transaction is open
            if task.partitionId() == 0 and task.taskAttemptId() < TASKS:
                Path(directory, "slow").touch()
                time.sleep(SLOW_S)
            elif task.partitionId() == 0:
                Path(directory, "speculative").touch()
                time.sleep(SLOW_S / 2)  # the first wants to go on while this one writes
            yield batch.slice(half)

    rows = spark.range(0, ROWS, 1, TASKS)
    frame = rows.mapInArrow(slowly, rows.schema).selectExpr("cast(id as string) as value")
    writer = frame.write.format("headway").mode("append").option("kafka.bootstrap.servers", servers)
    writer.options(topic=target, txnAppId=target, txnVersion=1).save()


if __name__ == "__main__":
    main()

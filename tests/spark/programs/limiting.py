"""A job on all executors with one rate: MASTER FILE RATE. The file has when each row began, and where."""

import os
from pathlib import Path

from headway.spark import InputRow, parallel_map
from tests.spark.programs.session import arguments, cluster_session

# All executors are there before the first task, and take tasks wherever their rows are.
ON_ALL = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.locality.wait": "0s",
}


async def directory(row: InputRow) -> str:
    """Return where the executor runs, which is another place for each."""
    return os.getcwd()


def main() -> None:
    """Run tasks of unequal sizes."""
    file, rate = arguments()
    rows = cluster_session(**ON_ALL).range(0, 400, 1, 1).selectExpr("id", "if(id < 150, id % 2, id % 5) as part")
    limited = parallel_map(rows.repartition(6, "part"), directory, "string", key=None, rate_limit=float(rate))
    found = limited.selectExpr("cast(started as double) as started", "result").collect()
    Path(file).write_text("".join(f"{row.started} {row.result}\n" for row in found))


if __name__ == "__main__":
    main()

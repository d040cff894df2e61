"""A stage with a resource profile of its own, on a cluster: MASTER FILE.

It writes which memory the executors of its tasks have, without the profile and with it.
"""

import json
import os
from pathlib import Path
from typing import Any

import psutil
from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

from headway.spark import parallel_map
from tests.spark.programs.session import arguments, cluster_session

ALLOCATION = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true"}


def memory(row: Any) -> str:
    """Return the setting of the memory of the executor that runs this."""
    for process in psutil.Process(os.getpid()).parents():
        if found := [word for word in process.cmdline() if word.startswith("-Xmx")]:
            return found[0]
    return "none"


def main() -> None:
    """Run the stage twice."""
    [file] = arguments()
    session = cluster_session(**ALLOCATION)
    of_executors = ExecutorResourceRequests().cores(1).memory("640m")
    profile = ResourceProfileBuilder().require(of_executors).require(TaskResourceRequests().cpus(1)).build
    frame = session.range(0, 2, 1, 2)
    without = parallel_map(frame, memory, "string", key=None)
    within = parallel_map(frame, memory, "string", key=None, profile=profile)
    found = [sorted({row.result for row in rows.collect()}) for rows in (without, within)]
    Path(file).write_text(json.dumps(found))
    session.stop()


if __name__ == "__main__":
    main()

"""The daemon of Spark's Python workers, with all that tasks import: a worker, which is its fork, then begins at once.

Spark starts a worker for each slot and for each kind of work that a task does. Each fork of PySpark's own daemon would
import Arrow, pandas and Headway, for most of a second of a core. Spark runs this module in its place where
`spark.python.daemon.module` names it. Headway has to be installed where the workers run.
"""

import sys
from importlib import import_module

from pyspark.daemon import manager

_OF_TASKS = ("headway.spark.source.data_source", "headway.spark.sink.writers", "headway.spark.stage.task")

if __name__ == "__main__":
    if sys.argv[1:] == ["pyspark.worker"]:  # the other daemons are for planning, and each has one worker
        for name in _OF_TASKS:
            import_module(name)
    manager()

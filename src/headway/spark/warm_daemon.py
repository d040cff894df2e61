"""The daemon that forks Spark's Python workers, with everything that tasks import, so that a worker starts at once.

Spark starts a worker for each slot and for each kind of work in a task. Each fork of PySpark's own daemon would import
Arrow, pandas and Headway, which takes most of a second of CPU. Spark runs this module instead if
`spark.python.daemon.module` names it. Headway must be installed where the workers run.
"""

import sys
from importlib import import_module

from pyspark.daemon import manager

_OF_TASKS = ("headway.spark.source.data_source", "headway.spark.sink.writers", "headway.spark.stage.task")

if __name__ == "__main__":
    if sys.argv[1:] == ["pyspark.worker"]:  # the other daemons are for planning, and have one worker each
        for name in _OF_TASKS:
            import_module(name)
    manager()

"""A daemon that imports the modules that tasks need before it forks Spark's Python workers, so that they start fast.

Spark starts a Python worker for each core and for each kind of Python code in a task. With PySpark's own daemon, each
worker would import Arrow, pandas and Headway after the fork, which takes most of a second of CPU. Spark runs this
module instead if the setting `spark.python.daemon.module` names it. Headway must be installed where the workers run.
"""

import sys
from importlib import import_module

from pyspark.daemon import manager

_OF_TASKS = ("headway.spark.source.data_source", "headway.spark.sink.writers", "headway.spark.stage.task")

if __name__ == "__main__":
    # Spark's other daemons fork a single worker, which only plans queries, so it would not pay to import these modules.
    if sys.argv[1:] == ["pyspark.worker"]:
        for name in _OF_TASKS:
            import_module(name)
    manager()

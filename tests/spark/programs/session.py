"""What the programs have in common."""

import sys

from pyspark.sql import SparkSession

from headway.spark import local_session


def arguments() -> list[str]:
    """Those behind the first, which names the cluster."""
    return sys.argv[2:]


def cluster_session(**settings: str) -> SparkSession:
    """A session on the cluster that the first argument names."""
    own = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
    return local_session("headway tests", {**own, **settings}, master=sys.argv[1], short_lived=True)

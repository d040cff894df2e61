"""Passes the number of tasks that a cluster runs at a time to the processes that plan a session's queries.

Spark plans a Python source in a separate process, which has no `SparkContext`. Both this process and the driver can
access the directory of the Spark program's files, which Spark creates and removes. Whenever the number changes, the
driver writes it to a file in this directory.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext, SparkFiles
from pyspark.sql import SparkSession

from headway.spark.session.session_context import context_of

_FILE = "headway-parallelism"
_LOOK_EVERY = 1.0  # seconds between checks of whether the number of cores has changed

_followed: set[str] = set()


def follow_cluster(session: SparkSession) -> None:
    """Make the queries of a session divide each micro-batch into as many tasks as the cluster has cores.

    The number of cores is Spark's `defaultParallelism`, and is updated when executors are added or removed. If neither
    this function nor the option `minPartitions` is used, queries use the number of cores of the driver's machine.
    `local_session` calls this function.

    Raises `ConfigError` for a session of Spark Connect, which does not provide the number.
    """
    context = context_of(session, "follow_cluster", "Set the source's option `minPartitions`.")
    directory = SparkFiles.getRootDirectory()
    if directory in _followed:
        return
    _followed.add(directory)
    written = _write(context, directory, None)
    threading.Thread(
        target=_follow, args=(context, directory, written), name="headway-parallelism", daemon=True
    ).start()


def cluster_parallelism() -> int | None:
    """Return the number of cores that `follow_cluster` wrote, or None if it has not written one.

    The processes that plan queries call this function.
    """
    try:
        root = Path(SparkFiles.getRootDirectory())
    except (AssertionError, AttributeError):  # raised outside Spark
        return None
    for directory in (root, root.parent):  # in a query's process, the root is a subdirectory
        with suppress(OSError, ValueError):
            count = int((directory / _FILE).read_text())
            return count if count > 0 else None
    return None


def _follow(context: SparkContext, directory: str, written: int) -> None:
    pause = threading.Event()
    # Any error here means that the session has ended.
    with suppress(Exception):
        while not pause.wait(_LOOK_EVERY):
            written = _write(context, directory, written)
    _followed.discard(directory)


def _write(context: SparkContext, directory: str, written: int | None) -> int:
    """Return the cluster's present number of cores, and write it to the file if it differs from `written`."""
    count = context.defaultParallelism
    if count != written:
        unfinished = Path(directory, f"{_FILE}.new")
        unfinished.write_text(str(count))
        os.replace(unfinished, Path(directory, _FILE))
    return count

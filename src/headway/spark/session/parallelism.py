"""Passes the number of tasks that a cluster runs at once to the processes that plan a session's queries.

Spark plans a Python source in a process without a `SparkContext`. That process shares with the driver the directory of
the program's files, which Spark creates and removes. The driver writes the number there whenever it changes.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext, SparkFiles
from pyspark.sql import SparkSession

from headway.spark.session.session_context import context_of

_FILE = "headway-parallelism"
_LOOK_EVERY = 1.0  # seconds

_followed: set[str] = set()


def follow_cluster(session: SparkSession) -> None:
    """Let the session's queries divide their micro-batches by the cores of its cluster, as executors come and go.

    Without this, and without the option `minPartitions`, they use the number of cores of the driver's machine. The
    number is Spark's `defaultParallelism`. `local_session` calls this.

    Raises `ConfigError` for a session of Spark Connect, which does not provide the number.
    """
    context = context_of(session, "follow_cluster", "Set the source's option minPartitions.")
    directory = SparkFiles.getRootDirectory()
    if directory in _followed:
        return
    _followed.add(directory)
    written = _write(context, directory, None)
    threading.Thread(
        target=_follow, args=(context, directory, written), name="headway-parallelism", daemon=True
    ).start()


def cluster_parallelism() -> int | None:
    """Return the number that `follow_cluster` wrote, or None. Called in processes that plan a query."""
    try:
        root = Path(SparkFiles.getRootDirectory())
    except (AssertionError, AttributeError):  # outside Spark
        return None
    for directory in (root, root.parent):  # a query has its own directory inside the program's
        with suppress(OSError, ValueError):
            count = int((directory / _FILE).read_text())
            return count if count > 0 else None
    return None


def _follow(context: SparkContext, directory: str, written: int) -> None:
    pause = threading.Event()
    # If anything fails here, the session has ended.
    with suppress(Exception):
        while not pause.wait(_LOOK_EVERY):
            written = _write(context, directory, written)
    _followed.discard(directory)


def _write(context: SparkContext, directory: str, written: int | None) -> int:
    """Write the number if it differs from the one written before, and return it."""
    count = context.defaultParallelism
    if count != written:
        unfinished = Path(directory, f"{_FILE}.new")
        unfinished.write_text(str(count))
        os.replace(unfinished, Path(directory, _FILE))
    return count

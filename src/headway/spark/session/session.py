"""A Spark session set up for fast micro-batches and a quiet console."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headway.broker.jars import cache_dir
from headway.broker.java import find_java, java_home
from headway.spark.session.parallelism import follow_cluster
from headway.spark.session.stderr_filter import filtered_stderr

LOGGING = Path(__file__).with_name("log4j2.properties")

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without this setting, PySpark sets the level to WARN, whatever the file says.
    "spark.log.level": "ERROR",
    # An idle query asks for new records at this interval, rather than as often as it can.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Over TCP, each task of a Python source waits 40 ms, because its small writes meet delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # A batch reads only what its filters need.
    "spark.sql.python.filterPushdown.enabled": "true",
}

ON_THIS_MACHINE: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Forks of PySpark's own daemon each import Arrow, pandas and Headway: the first micro-batch takes 17 s, not 12.
    "spark.python.daemon.module": "headway.spark.warm_daemon",
    # Micro-batches are small, so more shuffle tasks than cores would only cost their start.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    # On a local disk these two take a third off the time of a micro-batch (165 to 110 ms).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""On a cluster, the executors must reach the driver, shuffles are larger, and a checkpoint is not on a local disk.

Headway may be sent there with the job, and so is not there yet when a daemon starts.
"""

# In its first half minute, Java is busy compiling: with only the fast compiler, the demo takes two thirds of the time.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def local_session(
    name: str = "headway",
    settings: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
    short_lived: bool = False,
) -> SparkSession:
    """Return a session on all cores of this machine or on the cluster of `master`, or the session that already exists.

    It becomes the active session of the calling thread, because in a thread without one Spark does not find
    `format("headway")` for writing.

    `settings` are Spark's, and take precedence over ours. `short_lived` is for a session of about a minute: it is fast
    from the start, but does not get faster. Sets JAVA_HOME to a Java that Spark can run on, downloading one if needed.
    Sets PYSPARK_PYTHON to this Python, unless it already names the Python of a cluster. On this machine, unless it is
    already set, SPARK_HOME becomes a directory of links in Headway's cache, with which Python workers start in a third
    of the time. Spark takes all three from the environment of the process that starts it.
    """
    os.environ["JAVA_HOME"] = str(java_home(find_java()))
    if _is_this_machine(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = sys.executable
        use_installed_pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    given = {**settings_for(master, short_lived=short_lived), **(settings or {})}
    conf = SparkConf().setMaster(master or "local[*]").setAppName(name).setAll(list(given.items()))
    _start_java(conf)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    _make_active(session)
    follow_cluster(session)
    if _is_this_machine(master):
        _write_no_checksums(session)
    return session


def settings_for(master: str | None, *, short_lived: bool = False) -> dict[str, str]:
    """Return Spark's settings for a session on this machine or on the cluster of `master`."""
    java_options = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {SHORT_LIVED if short_lived else ''}"
    here = ON_THIS_MACHINE if _is_this_machine(master) else {}
    return {"spark.driver.extraJavaOptions": java_options.rstrip(), **SETTINGS, **here}


def _is_this_machine(master: str | None) -> bool:
    return master is None or master.startswith("local")


def _write_no_checksums(session: SparkSession) -> None:
    """Keep Hadoop from writing a checksum file beside each local file, with a `chmod` for both, at 10 ms each.

    A micro-batch writes two files to its checkpoint. Disks have their own checksums.
    """
    java: Any = session._jvm
    java.org.apache.hadoop.fs.FileSystem.getLocal(session._jsc.hadoopConfiguration()).setWriteChecksum(False)


def _make_active(session: SparkSession) -> None:
    java: Any = session._jvm
    SparkSession._get_j_spark_session_class(java).setActiveSession(session._jsparkSession)


def _start_java(conf: SparkConf) -> None:
    """Start this process's Java unless it has one. Under `spark-submit`, Java has started this process."""
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        with filtered_stderr() as stderr:
            gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


def use_installed_pyspark() -> None:
    """Set SPARK_HOME to a directory of links to the installed Spark, unless it is set or links cannot be created.

    Spark puts `python/lib/pyspark.zip` of its home first on the path of its Python processes. Python does not cache the
    bytecode of modules in an archive, so each process that starts would compile PySpark again, for a second or two of
    CPU. The directory has no such archive.
    """
    if "SPARK_HOME" in os.environ:
        return
    with suppress(OSError):
        os.environ["SPARK_HOME"] = str(linked_home(Path(pyspark.__file__).parent, cache_dir()))


def linked_home(spark: Path, cache: Path) -> Path:
    """Return a directory of links to everything in a Spark except its Python archives, creating it if necessary."""
    place = hashlib.sha256(str(spark).encode()).hexdigest()[:12]
    home = cache / f"spark-{pyspark.__version__}-{place}"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="spark-", dir=cache))
    for each in spark.iterdir():
        if each.name != "python":
            (made / each.name).symlink_to(each)
    try:
        made.rename(home)
    except OSError:  # another process was faster
        for link in made.iterdir():
            link.unlink()
        made.rmdir()
    return home

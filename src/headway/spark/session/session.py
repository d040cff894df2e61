"""Creates a Spark session that is set up for fast micro-batches and prints no needless messages."""

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
    # Without this setting, PySpark sets the log level to WARN, whatever the logging configuration file says.
    "spark.log.level": "ERROR",
    # The interval at which an idle query looks for new records. The default would take more CPU.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Over TCP, each task of a Python source would wait 40 ms, because TCP delays the acknowledgement of small writes.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # With this setting, `spark.read` does not read records that the query's filters exclude.
    "spark.sql.python.filterPushdown.enabled": "true",
}

ON_THIS_MACHINE: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # With PySpark's own daemon, each Python worker imports Arrow, pandas and Headway itself, so the first micro-batch
    # takes 17 s instead of 12 s.
    "spark.python.daemon.module": "headway.spark.warm_daemon",
    # Micro-batches are small, so to start more shuffle tasks than there are cores would cost more time than it saves.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    # With a checkpoint on a local disk, the next two settings shorten a micro-batch by a third (165 ms to 110 ms).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Settings only for a session on this machine.

They do not suit a cluster, because there executors must be able to reach the driver, shuffles are larger, and the
checkpoint is not on a local disk. And if Headway is sent to the cluster with the job, Headway is not installed yet when
a daemon starts.
"""

# Java options for a session that lasts about a minute. By default, Java spends the first half minute compiling. If it
# uses only its fast compiler (C1), the demo takes two thirds of the time.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def local_session(
    name: str = "headway",
    settings: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
    short_lived: bool = False,
) -> SparkSession:
    """Return a session on all cores of this machine, or on the cluster of `master`. An existing session is reused.

    The session becomes the active session of the calling thread, because in a thread without an active session, Spark
    does not find `format("headway")` for writing.

    This function sets three environment variables, from which Spark takes its configuration when it starts:

    - JAVA_HOME is set to a Java that Spark can run on. If there is none, Java is downloaded.
    - PYSPARK_PYTHON is set to this Python. For a cluster, a value that is already set is kept.
    - SPARK_HOME is set only for a session on this machine, to a directory of links in Headway's cache. With these
      links, Python workers start in a third of the time. A value that is already set is kept.

    Args:
        name: The name of the Spark application.
        settings: Spark settings, which override Headway's.
        master: The URL of a cluster, or None for this machine.
        short_lived: Set this to True if the session lasts only about a minute. The session is then fast from the start,
            but does not become faster over time.
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
    """Return Headway's Spark settings for a session on this machine, or on the cluster of `master`."""
    java_options = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {SHORT_LIVED if short_lived else ''}"
    here = ON_THIS_MACHINE if _is_this_machine(master) else {}
    return {"spark.driver.extraJavaOptions": java_options.rstrip(), **SETTINGS, **here}


def _is_this_machine(master: str | None) -> bool:
    return master is None or master.startswith("local")


def _write_no_checksums(session: SparkSession) -> None:
    """Keep Hadoop from writing a checksum file for each local file, for which it runs `chmod`. That takes 10 ms.

    A micro-batch writes two files to its checkpoint. The files need no checksums, because disks have checksums of their
    own.
    """
    java: Any = session._jvm
    java.org.apache.hadoop.fs.FileSystem.getLocal(session._jsc.hadoopConfiguration()).setWriteChecksum(False)


def _make_active(session: SparkSession) -> None:
    java: Any = session._jvm
    SparkSession._get_j_spark_session_class(java).setActiveSession(session._jsparkSession)


def _start_java(conf: SparkConf) -> None:
    """Start the Java process of this program, unless it is already running.

    If the program was started with `spark-submit`, the Java process is running already.
    """
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        with filtered_stderr() as stderr:
            gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


def use_installed_pyspark() -> None:
    """Set SPARK_HOME to a directory of links to the installed Spark, so that Python workers start faster.

    If SPARK_HOME contains `python/lib/pyspark.zip`, Spark puts this archive first on the path of its Python processes.
    Python does not cache the bytecode of modules in an archive, so each process would compile PySpark again, which
    takes one or two seconds of CPU. The directory of links does not contain the archive.

    Does nothing if SPARK_HOME is already set, or if the links cannot be created.
    """
    if "SPARK_HOME" in os.environ:
        return
    with suppress(OSError):
        os.environ["SPARK_HOME"] = str(linked_home(Path(pyspark.__file__).parent, cache_dir()))


def linked_home(spark: Path, cache: Path) -> Path:
    """Return a directory of links to all parts of an installed Spark except its directory `python`.

    The directory is created if it does not exist.
    """
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
    except OSError:  # another process created the directory first
        for link in made.iterdir():
            link.unlink()
        made.rmdir()
    return home

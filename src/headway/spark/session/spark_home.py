"""A Spark home without the archive of PySpark, so that Python workers import the installed package.

Spark puts `python/lib/pyspark.zip` of its home first on the path of its Python processes. Python does not cache the
bytecode of modules in an archive, so each process that starts would compile PySpark again, for a second or two of CPU.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark

from headway.broker.jars import cache_dir


def use_installed_pyspark() -> None:
    """Set SPARK_HOME to a directory of links to the installed Spark, unless it is set or links cannot be created."""
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

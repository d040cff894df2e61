"""A home of Spark without the archive of PySpark, so that Python workers import the package that is installed.

Spark puts `python/lib/pyspark.zip` of its home first on the path of its Python processes. Python keeps no bytecode of
what it imports from an archive. So each process that starts compiles PySpark anew, for a second or two of a core.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark

from headway.broker.jars import cache_dir


def use_installed_pyspark() -> None:
    """Set SPARK_HOME to a directory of links to the installed Spark, unless it is set or links cannot be made."""
    if "SPARK_HOME" in os.environ:
        return
    with suppress(OSError):
        os.environ["SPARK_HOME"] = str(linked_home(Path(pyspark.__file__).parent, cache_dir()))


def linked_home(spark: Path, cache: Path) -> Path:
    """Return a directory with links to all of an installed Spark but its Python archives; make it if there is none."""
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
    except OSError:  # another process was quicker
        for link in made.iterdir():
            link.unlink()
        made.rmdir()
    return home

"""The `SparkContext` of a session, or a sentence on why a session of Spark Connect has none."""

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headway.errors import ConfigError


def context_of(session: SparkSession, call: str, instead: str) -> SparkContext:
    """Return the session's context for a call that needs it.

    Raises `ConfigError` for a session of Spark Connect; `instead` is what to do there.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            f"{call} needs a session with a SparkContext, but this is a session of Spark Connect, which has none. "
            f"{instead}"
        )
    return session.sparkContext

"""The `SparkContext` of a session, or the sentence that a session of Spark Connect has none."""

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headway.errors import ConfigError


def context_of(session: SparkSession, call: str, instead: str) -> SparkContext:
    """Return the session's context, for a call that needs one.

    Raises `ConfigError` for a session of Spark Connect; `instead` says what to do there.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            f"{call} needs a session with a SparkContext, and this one is of Spark Connect, which has none. {instead}"
        )
    return session.sparkContext

"""Gets the `SparkContext` of a session, which a session of Spark Connect does not have."""

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headway.errors import ConfigError


def context_of(session: SparkSession, call: str, instead: str) -> SparkContext:
    """Return the `SparkContext` of the session.

    Raises `ConfigError` for a session of Spark Connect. The error message names the function `call` that needs the
    context, and ends with the sentence `instead`, which describes what users of Spark Connect can do.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            f"{call} needs a SparkContext, but this is a session of Spark Connect, which does not have one. {instead}"
        )
    return session.sparkContext

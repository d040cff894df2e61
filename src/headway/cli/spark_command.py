"""What the commands share that run on Spark."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from headway.errors import ConfigError, HeadwayError

T = TypeVar("T")

# An error of ours that was raised in one of Spark's workers, in what Spark tells of it.
_OURS = re.compile(r"^.*headway\.errors\.\w+: (.+)$", re.MULTILINE)

master_option = click.option(
    "--master", metavar="URL", help="The Spark to run on, as spark://host:7077. By default this machine."
)


def on_spark(name: str, master: str | None, work: Callable[[Any], T], *, for_long: bool = False) -> T:
    """What `work(session)` returns, on this machine or on a cluster; Ctrl-C ends it at once."""
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from headway.spark import local_session  # noqa: PLC0415 - an extra, and slow to import
        from headway.spark.apart import apart  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError("This command needs Spark: `pip install headway[spark]`.") from error

    def run() -> T:
        spark = local_session(name, master=master, short_lived=master is None and not for_long)
        try:
            return work(spark)
        except PySparkException as error:
            if sentences := _OURS.findall(str(error)):
                raise HeadwayError(sentences[-1]) from error
            raise
        finally:
            spark.stop()

    return apart(run)

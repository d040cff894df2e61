"""The option `--master`, and the Spark session of all commands that need Spark."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from headway.errors import ConfigError
from headway.runtime.extras import how_to_install

T = TypeVar("T")

master_option = click.option(
    "--master", metavar="URL", help="The Spark to run on, such as spark://host:7077. By default this machine."
)


def on_spark(name: str, master: str | None, work: Callable[[Any], T], *, for_long: bool = False) -> T:
    """Run `work(session)` on this machine or on a cluster, and return its result. Ctrl-C ends the work at once."""
    try:
        from headway.spark import local_session  # noqa: PLC0415 - an extra, and slow to import
        from headway.spark.session.error_messages import our_sentence  # noqa: PLC0415 - as above
        from headway.spark.session.interruptible import interruptible  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise ConfigError(f"This command needs Spark: {how_to_install('spark')}.") from error

    def run() -> T:
        spark = local_session(name, master=master, short_lived=master is None and not for_long)
        try:
            with our_sentence():
                return work(spark)
        finally:
            spark.stop()

    return interruptible(run)

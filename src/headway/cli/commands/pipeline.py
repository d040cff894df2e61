"""`headway pipeline`: run your own pipelines on Spark."""

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from headway.cli.commands.levels import LEVELS
from headway.cli.options.kafka_options import ConnectionSettings, KeyValue, kafka_options
from headway.cli.options.spark_session import master_option, on_spark
from headway.cli.options.topic_choice import topic_and_level
from headway.errors import ConfigError
from headway.workers.find_workers import import_module


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark.

    \b
      headway pipeline run shop.charging:pipeline --topic orders --levels 3
    """


@pipeline.command()
@click.argument("name")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    help="A topic to read. For topics without levels, add the level of each, such as payments=2.",
)
@click.option("--levels", type=LEVELS, help="The number of levels of the topics; 3 by default.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory for results. By default NAME-output.",
)
@click.option("--set", "own", type=KeyValue("region=eu"), multiple=True, help="An option for the pipeline itself.")
@master_option
@click.option(
    "--forever",
    is_flag=True,
    help="Keep reading new records until Ctrl-C.",
)
@kafka_options
def run(
    name: str,
    topics: Sequence[str],
    levels: int | None,
    output: Path | None,
    own: Sequence[tuple[str, str]],
    master: str | None,
    forever: bool,
    connection: ConnectionSettings,
) -> None:
    """Run the pipeline NAME on the records in Kafka, and write a report.

    NAME is a function, such as package.module:pipeline. It is called with a headway.pipelines.PipelineRun, which
    provides the source and starts the queries. When the pipeline is started again, it continues where it stopped.

    \b
      headway pipeline run shop.charging:pipeline --topic orders --levels 3 --output out
      headway pipeline run shop.charging:pipeline --topic orders --master spark://host:7077
      headway pipeline run shop.charging:pipeline --topic payments=2 --topic clicks=0
    """
    chosen, count = _topics(topics, levels)
    directory = output or Path(f"{name.replace(':', '-')}-output")
    page = directory / "report.html"
    function = find_pipeline(name)  # before Spark starts, because starting Spark takes a while

    def work(spark: Any) -> tuple[int | None, str]:
        from headway.pipelines import PipelineRun  # noqa: PLC0415 - needs PySpark
        from headway.spark.report.file import write_report  # noqa: PLC0415 - needs PySpark

        running = PipelineRun(spark, connection.config, chosen, count, str(directory), not forever, dict(own))
        function(running)
        running.wait()
        if not running.kept:
            return None, running.results
        return write_report(spark, running.results, page, title=f"{name} by priority"), running.results

    click.echo(f"Reading {', '.join(topics)} …", err=True)
    written, results = on_spark(f"headway {name}", master, work, for_long=forever)
    if written is None:
        click.echo(f"{name} has finished. It kept no results, so there is no report.")
    else:
        click.echo(f"{written:,} rows are in {results}, and the report on them is {page}.")


def find_pipeline(name: str) -> Callable[[Any], Any]:
    """Return the function with this name, without importing PySpark. Raises `ConfigError` if it does not exist."""
    module_name, colon, function = name.partition(":")
    if not colon:
        raise ConfigError(f"There is no pipeline {name}. Name yours as package.module:pipeline.")
    module = import_module(module_name, "headway pipeline run")
    found = getattr(module, function, None)
    if found is None:
        own = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        near = difflib.get_close_matches(function, own, n=1)
        hint = f"Did you mean {module_name}:{near[0]}?" if near else "Name a function of this module."
        raise ConfigError(f"{module_name} has no {function!r}. {hint}")
    if not callable(found):
        raise ConfigError(
            f"{name} is of type {type(found).__name__}, not a function. A pipeline is a function of a PipelineRun."
        )
    return found  # type: ignore[no-any-return]


def _topics(names: Sequence[str], levels: int | None) -> tuple[Sequence[str] | dict[str, int], int]:
    """Return the topics and the number of levels, without a request to Kafka."""
    if not any("=" in name for name in names):
        return names, levels or 3
    if levels is not None:
        raise click.UsageError(
            "--levels is for topics with levels, but these topics are each given their own level. Leave out --levels."
        )
    priorities = dict(map(topic_and_level, names))
    return priorities, 1 + max(priorities.values())

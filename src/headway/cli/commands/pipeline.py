"""`headway pipeline`: run the example pipeline or your own on Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from headway.cli.commands.levels import LEVELS
from headway.cli.options.kafka_options import ConnectionSettings, KeyValue, kafka_options
from headway.cli.options.spark_session import master_option, on_spark
from headway.cli.options.topic_choice import topic_and_level
from headway.pipelines.discovery import find_pipeline


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark: the example, or your own.

    \b
      headway pipeline run flights --topic flights --levels 3 --output out
      headway pipeline run shop.charging:pipeline --topic orders --levels 3
    """


@pipeline.command()
@click.argument("name")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    default=["flights"],
    show_default=True,
    help="The topics to read: with levels, or without them as payments=2.",
)
@click.option("--levels", type=LEVELS, help="The number of levels of the topics; 3 by default.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory for results. By default NAME-output.",
)
@click.option("--set", "own", type=KeyValue("region=eu"), multiple=True, help="An option of your own pipeline.")
@click.option("--notices", metavar="TOPIC", help="flights: where notices go; by default flight-notices.")
@click.option("--follow-ups", metavar="TOPIC", help="flights: where follow-ups go; by default flight-follow-ups.")
@click.option("--dead-letters", metavar="TOPIC", help="flights: where failed flights go; by default flight-dead.")
@click.option(
    "--after", type=click.FloatRange(min=0), help="flights: the delay of follow-ups in seconds; by default 3600."
)
@click.option(
    "--tables", type=click.Path(exists=True, file_okay=False, path_type=Path), help="flights: CSV files to join with."
)
@master_option
@click.option("--forever", is_flag=True, help="Keep running on new records until Ctrl-C. By default it ends.")
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
    **of_flights: Any,
) -> None:
    """Run the pipeline NAME on the records in Kafka, and write a report.

    NAME is flights, or a function of yours as package.module:pipeline. The function is called with a
    headway.pipelines.PipelineRun, which gives it the source and starts its queries.

    flights: the flights of New York by priority, joined with weather, airports, planes and airlines, and handled in
    parallel. Each sends a notice to Kafka at its level, and a late flight a follow-up, which `headway relay` delivers;
    flights that failed become dead letters. The notices are kept as Parquet. When started again, it goes on where it
    was. Its stages are functions in `headway.pipelines.flights`.

    \b
      headway pipeline run flights --topic flights --levels 3 --output out
      headway pipeline run flights --master spark://host:7077
      headway pipeline run shop.charging:pipeline --topic payments=2 --topic clicks=0
    """
    given = {name: str(value) for name, value in of_flights.items() if value is not None}
    is_flights = name == "flights"
    if given and not is_flights:
        first = next(iter(given)).replace("_", "-")
        raise click.UsageError(
            f"--{first} applies to the pipeline flights only. Give options to your own pipeline with --set NAME=VALUE."
        )
    if own and is_flights:
        raise click.UsageError("--set applies to your own pipelines. The options of flights are --notices and others.")
    chosen, count = _topics(topics, levels)
    place = output or Path(f"{name.replace(':', '-')}-output")
    page = place / "report.html"

    def work(spark: Any) -> tuple[int | None, str]:
        from headway.pipelines.pipeline_run import PipelineRun  # noqa: PLC0415 - needs PySpark
        from headway.spark.report.file import write_report  # noqa: PLC0415

        results = "flights" if is_flights else "results"
        options = given if is_flights else dict(own)
        running = PipelineRun(spark, connection.config, chosen, count, str(place), not forever, options, results)
        (find_pipeline(name) if own_one is None else own_one)(running)
        running.wait()
        if not running.kept:
            return None, running.results
        title = "Flights by priority" if is_flights else f"{name} by priority"
        return write_report(spark, running.results, page, title=title), running.results

    own_one = None if is_flights else find_pipeline(name)  # before Spark starts
    click.echo(f"Reading {', '.join(topics)} …", err=True)
    written, results = on_spark(f"headway {name}", master, work, for_long=forever)
    if written is None:
        click.echo(f"{name} has finished. It kept no results, so there is no report.")
        return
    what = "flights" if is_flights else "rows"
    click.echo(f"{written:,} {what} are in {results}, and the report on them is {page}.")
    if is_flights:
        notices, follow_ups = given.get("notices", "flight-notices"), given.get("follow_ups", "flight-follow-ups")
        click.echo(
            f"Notices are in {notices}; `headway relay` delivers the follow-ups to {follow_ups} when they are due."
        )


def _topics(names: Sequence[str], levels: int | None) -> tuple[Sequence[str] | dict[str, int], int]:
    """Return the topics and the number of levels, without asking Kafka."""
    if not any("=" in name for name in names):
        return names, levels or 3
    if levels is not None:
        raise click.UsageError("--levels is for topics with levels, but each of these names its level. Leave it out.")
    priorities = dict(map(topic_and_level, names))
    return priorities, 1 + max(priorities.values())

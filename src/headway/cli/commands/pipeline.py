"""`headway pipeline`: pipelines on Spark to run, and to start from."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from headway.cli.commands.levels import LEVELS
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.options.spark_session import master_option, on_spark


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark, and start your own from them.

    \b
      headway pipeline run flights --topic flights --levels 3 --output out
    """


@pipeline.command()
@click.argument("name", type=click.Choice(["flights"]))
@click.option("--topic", default="flights", show_default=True, help="Where the flights are.")
@click.option("--levels", type=LEVELS, default=3, show_default=True, help="How many it has.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default="flights-output", show_default=True)
@click.option("--notices", default="flight-notices", show_default=True, help="Where a notice of each flight goes.")
@click.option("--follow-ups", default="flight-follow-ups", show_default=True, help="Where follow-ups of late ones go.")
@click.option("--dead-letters", default="flight-dead", show_default=True, help="Where those go that failed.")
@click.option("--after", type=click.FloatRange(min=0), default=3600, show_default=True, help="So many seconds later.")
@click.option("--tables", type=click.Path(exists=True, file_okay=False, path_type=Path), help="CSV files to join with.")
@master_option
@click.option("--forever", is_flag=True, help="Go on with what comes, until Ctrl-C; by default it ends.")
@kafka_options
def run(
    name: str,
    topic: str,
    levels: int,
    output: Path,
    notices: str,
    follow_ups: str,
    dead_letters: str,
    after: float,
    tables: Path | None,
    master: str | None,
    forever: bool,
    connection: ConnectionSettings,
) -> None:
    """Run the pipeline NAME on what is in Kafka, and write a report.

    flights: the flights of New York by priority, joined with weather, airports, planes and airlines, and handled in
    parallel. A notice of each goes to Kafka at its level, and for those that were late a follow-up, which `headway
    relay` delivers; those that failed are dead letters. The notices are kept as Parquet. Started again it goes on where
    it was. Its stages are functions in `headway.pipelines.flights`.

    \b
      headway pipeline run flights --topic flights --levels 3 --output out
      headway pipeline run flights --master spark://host:7077
    """

    def run_flights(spark: Any) -> int:
        from headway.pipelines import flights  # noqa: PLC0415 - needs PySpark
        from headway.pipelines.flight_outputs import Outputs  # noqa: PLC0415
        from headway.spark.report.file import write_report  # noqa: PLC0415

        records = flights.source(spark, connection.config, topic, levels)
        outputs = Outputs(str(output), connection.config, notices, follow_ups, dead_letters, timedelta(seconds=after))
        outputs.create_topics(topic, levels)
        flights.run(spark, records, flights.read_tables(spark, tables), outputs, levels, once=not forever)
        return write_report(spark, str(output / "flights"), output / "report.html", title="Flights by priority")

    click.echo(f"Reading {topic} …", err=True)
    written = on_spark(f"headway {name}", master, run_flights, for_long=forever)
    click.echo(f"{written:,} flights are in {output / 'flights'}, and how they fared in {output / 'report.html'}.")
    click.echo(f"Notices are in {notices}; `headway relay` delivers the follow-ups to {follow_ups} when they are due.")

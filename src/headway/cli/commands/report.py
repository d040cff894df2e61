"""`headway report`: the results of a pipeline, as a page with plots."""

from pathlib import Path
from typing import Any

import click

from headway.cli.options.spark_session import master_option, on_spark

_A_YEAR = 366 * 86_400


@click.command()
@click.argument("parquet")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="report.html",
    show_default=True,
    help="The page to write.",
)
@click.option(
    "--window",
    type=click.IntRange(1, _A_YEAR),
    metavar="SECONDS",
    help="The length of a window. By default there are at most 60 windows.",
)
@click.option("--title", default="Headway report", show_default=True, help="The title of the page.")
@master_option
def report(parquet: str, output: Path, window: int | None, title: str, master: str | None) -> None:
    """Write a page with plots of a pipeline's throughput, waiting times and lag.

    The plots are by level and time window. PARQUET is a directory of records with the columns level, produced_at,
    read_at and done_at, as `headway pipeline run` writes it. The page is a single file that needs no network. Records
    without a level, or without one of the times, are left out, and the page shows how many there are.

    \b
      headway pipeline run shop.charging:pipeline --topic orders --levels 3 --output out
      headway report out/results --output orders.html
    """

    def write(spark: Any) -> int:
        from headway.spark.report.file import write_report  # noqa: PLC0415 - needs PySpark

        return write_report(spark, parquet, output, title=title, seconds=window)

    click.echo(f"Wrote {output}, a report on {on_spark('headway report', master, write):,} records.")

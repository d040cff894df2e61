"""Tables for people; programs ask for --json."""

import sys
from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Column, Table

# A pipe has no width, and a name that is cut off there is lost.
_UNBOUNDED = 10_000


def show_table(columns: Iterable[Column], rows: Iterable[Iterable[str]]) -> None:
    """Print a table to stdout: as wide as it needs to be, unless a terminal is narrower."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _UNBOUNDED)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())

"""Tables for people to read. Programs should use --json."""

import sys
from collections.abc import Iterable
from typing import Literal, NamedTuple

import click

# The width of a table if stdout is a pipe. A program that reads from the pipe needs complete names.
_UNBOUNDED = 10_000


class Column(NamedTuple):
    """A column of a table: its title and its layout."""

    title: str
    justify: Literal["left", "right"] = "left"
    overflow: Literal["ellipsis", "fold"] = "ellipsis"
    no_wrap: bool = False


def show_table(columns: Iterable[Column], rows: Iterable[Iterable[str]]) -> None:
    """Print a table to stdout. The table is as wide as its content, unless the terminal is narrower."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and often there is nothing to show
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify, overflow, no_wrap in columns:
        table.add_column(title, justify=justify, overflow=overflow, no_wrap=no_wrap)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _UNBOUNDED)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())

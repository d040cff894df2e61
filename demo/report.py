"""What was promised and what was seen, on the console."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from demo.evidence import Evidence, Promise, percentile
from demo.live import MEANINGS

_MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "–"}


def waits_table(evidence: Evidence) -> Table:
    """How long the records of each level waited, from their sending to the return of poll."""
    table = Table("level", title="Wait from sending to consuming, in ms", title_justify="left")
    for name in ("records", "p50", "p99", "longest"):
        table.add_column(name, justify="right")
    for level in reversed(range(len(evidence.waits_ms))):
        waits = evidence.waits_ms[level]
        numbers = (len(waits), percentile(waits, 50), percentile(waits, 99), max(waits, default=0))
        table.add_row(f"{level}  {MEANINGS[level]}", *(f"{number:,}" for number in numbers))
    return table


def show_promises(console: Console, promises: Sequence[Promise]) -> bool:
    """Print each with a tick or a cross; whether none was broken."""
    width = max(len(promise.promised) for promise in promises)
    console.print(f"[bold]  {'promised':{width}}  seen[/]")
    for promise in promises:
        console.print(f"{_MARKS[promise.kept]} {promise.promised:{width}}  {promise.seen}", soft_wrap=True)
    return all(promise.kept is not False for promise in promises)

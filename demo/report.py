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


def show_promises(console: Console, promises: Sequence[Promise]) -> None:
    """Print each with a tick, a cross, or a dash where this run cannot tell; long ones wrap within their column."""
    table = Table("", "promised", "seen", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for promise in promises:
        table.add_row(_MARKS[promise.kept], promise.promised, promise.seen)
    console.print(table)


def verdict(promises: Sequence[Promise]) -> str:
    """How many promises were kept, and which were not, or could not be shown.

    >>> verdict([Promise("a", "1", True), Promise("b", "2", None)])
    '1 of 2 promises were kept, and 1 could not be shown by this run: b.'
    """
    kept = sum(promise.kept is True for promise in promises)
    counted = (
        f"all {kept} promises were kept" if kept == len(promises) else f"{kept} of {len(promises)} promises were kept"
    )
    untold = [promise.promised for promise in promises if promise.kept is None]
    broken = [promise.promised for promise in promises if promise.kept is False]
    if untold:
        counted += f", and {len(untold)} could not be shown by this run: {'; '.join(untold)}"
    if broken:
        counted += f", and {len(broken)} broken: {'; '.join(broken)}"
    return counted + "."

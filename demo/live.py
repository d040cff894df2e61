"""Shows the progress of a step: in place on a terminal, and as an occasional line without one."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

from demo.evidence import Evidence

MEANINGS = ("on time, at most 15 min late", "over 15 min late", "cancelled or over 60 min late")
"""The meanings of the levels, lowest first."""

_REDRAW_S = 0.25
_LINE_S = 5.0
_BAR_WIDTH = 78
# Without a terminal: the seconds until the first line, and then the wait for the next as a fraction of the time spent.
FIRST_LINE_S, _LINE_FRACTION = 10.0, 0.25


class Working:
    """Shows the current activity and its duration. `say` changes the activity, from any thread."""

    def __init__(self, console: Console, doing: str) -> None:
        self._console = console
        self._doing = doing
        self._began = time.monotonic()
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = self._bar.add_task(doing) if self._bar else None
        self._over = threading.Event()
        self._lines = threading.Thread(target=self._print_lines, name="working", daemon=True)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        else:
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._bar:
            self._bar.stop()
        else:
            self._lines.join()

    def say(self, doing: str) -> None:
        """Show another activity, or its progress."""
        self._doing = doing
        if self._bar and self._task is not None:
            self._bar.update(self._task, description=doing)

    def _print_lines(self) -> None:
        spent = 0.0
        while not self._over.wait(max(FIRST_LINE_S, _LINE_FRACTION * spent)):
            spent = time.monotonic() - self._began
            self._console.print(f"{spent:6.1f} s  {self._doing}", soft_wrap=True)


class Display:
    """Shows the progress of the consumer. Call `show` as often as you like."""

    def __init__(self, console: Console, records: int, shares: Sequence[int]) -> None:
        self._console = console
        self._records = records
        self._shares = shares
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._every = _REDRAW_S if self._live else _LINE_S
        self._shown_at = 0.0
        self._polls = 0
        self._counts = [0] * len(shares)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, at: float, delivered: Sequence[int], evidence: Evidence, *, last: bool = False) -> None:
        """Show the state `at` seconds after the start, if it is time to show it again."""
        if at - self._shown_at < self._every and not last:
            return
        if self._live:
            self._live.update(self._picture(at, delivered, evidence), refresh=True)
        else:
            self._console.print(line(at, delivered, evidence.per_level), soft_wrap=True)
        self._shown_at, self._polls, self._counts = at, evidence.polls, evidence.per_level

    def _picture(self, at: float, delivered: Sequence[int], evidence: Evidence) -> Group:
        title = f"{at:.1f} s   in Kafka {sum(delivered):,}   consumed {evidence.total:,} of {self._records:,}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("level", min_width=max(map(len, MEANINGS)) + 3)
        for name in ("backlog", "share", "burst", "records/s", "total"):
            # These widths fit into 80 columns.
            table.add_column(name, justify="right", min_width=5 if name in ("share", "burst") else 7)
        lately = Lately(at - self._shown_at, evidence.polls - self._polls, self._counts)
        for row in rows(self._shares, delivered, evidence.per_level, lately):
            table.add_row(*row)
        return Group(table, ProgressBar(total=self._records, completed=evidence.total, width=_BAR_WIDTH))


@dataclass(frozen=True, slots=True)
class Lately:
    """The seconds and polls since the state was last shown, and the records by level that were consumed then."""

    seconds: float
    polls: int
    consumed: Sequence[int]


def rows(
    shares: Sequence[int], delivered: Sequence[int], consumed: Sequence[int], lately: Lately
) -> list[tuple[str, ...]]:
    """Return a row per level, highest first. The burst is the number of records in a poll above the share.

    >>> rows([2, 4], [900, 80], [500, 80], Lately(0.5, 10, [400, 60]))[1]
    ('0  on time, at most 15 min late', '400', '2', '8', '200', '500')
    """
    shown = []
    for level in reversed(range(len(shares))):
        taken = consumed[level] - lately.consumed[level]
        burst = max(0.0, taken / max(1, lately.polls) - shares[level])
        rate = taken / max(lately.seconds, 0.001)
        numbers = (delivered[level] - consumed[level], shares[level], burst, rate, consumed[level])
        shown.append((f"{level}  {MEANINGS[level]}", *(f"{max(0, number):,.0f}" for number in numbers)))
    return shown


def line(at: float, delivered: Sequence[int], consumed: Sequence[int]) -> str:
    """Return the state in one line, with the waiting records by level, highest first.

    >>> line(5, [900, 80], [500, 80])
    '   5.0 s      980 in Kafka      580 consumed  waiting 0 + 400'
    """
    waiting = " + ".join(f"{max(0, delivered[level] - consumed[level]):,}" for level in reversed(range(len(consumed))))
    return f"{at:6.1f} s  {sum(delivered):7,} in Kafka  {sum(consumed):7,} consumed  waiting {waiting}"

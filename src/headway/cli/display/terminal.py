"""Shows the progress, the problems and the summary of a long-running command on stderr."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress

_SHOW_EVERY = 0.1  # seconds between two updates of the progress line
_MOST_COMPLAINTS = 10
_RATE_FROM = 0.1  # rates over a shorter time, in seconds, mean nothing


def stderr_is_terminal() -> bool:
    """Return whether a person can see progress on stderr."""
    return sys.stderr.isatty()


class ProgressLine:
    """A progress line on stderr.

    `show` can be called as often as necessary, because it limits how often the line is drawn.
    """

    def __init__(self, total: int | None, *, shown: bool) -> None:
        self._total = total
        self._shown = shown
        self._bar: Progress | None = None
        self._started = time.monotonic()
        self._next = 0.0

    def __enter__(self) -> Self:
        if self._shown:
            self._bar = _bar(self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, records: int) -> None:
        """Show the fraction that is done, and the number of records so far."""
        if self._bar is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + _SHOW_EVERY
        rate = records / max(now - self._started, _SHOW_EVERY)
        self._bar.update(self._bar.task_ids[0], completed=done, text=f"{records:,} records, {rate:,.0f}/s")


def _bar(total: int | None) -> "Progress":
    from rich.console import Console  # noqa: PLC0415 - not needed without a terminal
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = [TaskProgressColumn(), BarColumn(), TimeRemainingColumn()] if total else []
    bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True), transient=True)
    bar.add_task("", total=total, text="")
    return bar


class Complaints(logging.Handler):
    """Prints each message once, and at most ten messages. `finish` prints the number of messages that were left out."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Print the logged message."""
        self.say(record.getMessage())

    def say(self, sentence: str) -> None:
        """Print a sentence, unless it was printed before."""
        if sentence in self._printed:
            return
        if len(self._printed) < _MOST_COMPLAINTS:
            self._printed.add(sentence)
            click.echo(f"headway: {sentence}", err=True)
        else:
            self._left_out += 1

    def finish(self) -> None:
        """Print the number of messages that were left out."""
        if self._left_out:
            click.echo(f"headway: … and {self._left_out:,} more.", err=True)


@contextmanager
def complaints() -> Iterator[Complaints]:
    """Print Headway's warnings and errors while the command runs."""
    log, handler = logging.getLogger("headway"), Complaints()
    propagates, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.propagate = propagates
        handler.finish()


def count(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> count(1, "record"), count(2000, "record")
    ('1 record', '2,000 records')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def throughput_text(done: str, per_level: Sequence[int], size: int, seconds: float) -> str:
    """Format the number of records, their rate, and their number at each level.

    >>> print(throughput_text("delivered", [3000, 1000], 5_000_000, 2.0))
    4,000 records delivered in 2.0 s: 2,000 records/s, 2.5 MB/s
      level 1  1,000
      level 0  3,000
    """
    total = sum(per_level)
    text = f"{count(total, 'record')} {done}"
    if seconds >= _RATE_FROM and total:
        text += f" in {seconds:.1f} s: {total / seconds:,.0f} records/s, {size / seconds / 1e6:,.1f} MB/s"
    width = len(f"{max(per_level):,}")
    levels = (f"\n  level {level}  {per_level[level]:{width},}" for level in reversed(range(len(per_level))))
    return text + "".join(levels)


def confirm(question: str) -> None:
    """Ask a question on stderr.

    Unless the answer is yes, raise `click.Abort`, with a message that mentions --yes for scripts.
    """
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        click.echo("\nNothing was done. In a script, add --yes.", err=True)
        raise

"""The progress line of `headway worker`, with the sums of all members."""

import shutil
from collections import deque
from collections.abc import Iterable
from typing import TextIO

from headway.cli.display.terminal import count
from headway.cli.workers.logs import CLEAR_LINE
from headway.cli.workers.messages import MemberReport

_RATE_OVER = 10  # the rate is averaged over this many calls of `text`


class WorkersProgressLine:
    """A progress line on a terminal. The next progress line or log line overwrites it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER)

    def show(self, reports: Iterable[MemberReport], processes: int, now: float) -> None:
        """Show the sums of these reports."""
        text = self.text(list(reports), processes, now)
        self._write(text[: shutil.get_terminal_size().columns - 1])

    def text(self, reports: list[MemberReport], processes: int, now: float) -> str:
        """Format the line. Its rate is averaged over the last ten calls."""
        handled = sum(report.handled for report in reports)
        self._samples.append((now, handled))
        then, before = self._samples[0]
        rate = (handled - before) / (now - then) if now > then else 0
        text = f"{handled:,} done, {rate:,.0f}/s, {sum(report.running for report in reports):,} running, "
        text += f"{sum(report.waiting for report in reports):,} waiting"
        if failed := sum(report.failed for report in reports):
            text += f", {count(failed, 'failed attempt')}"
        return f"{text}; {processes} process{'' if processes == 1 else 'es'}"

    def clear(self) -> None:
        """Clear the line."""
        self._write("")

    def _write(self, text: str) -> None:
        self._stream.write(CLEAR_LINE + text)
        self._stream.flush()

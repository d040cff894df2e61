"""The log of a run: when each record came, started and ended."""

from array import array
from collections.abc import Callable, Iterable

OnProgress = Callable[[int], None]
"""Called from time to time during a run, with the number of records that are done."""


class RunLog:
    """Four columns with one row per record: its level, and the seconds at which it came, started and ended."""

    def __init__(self) -> None:
        self.levels = array("b")
        self.came = array("d")
        self.started = array("d")
        self.ended = array("d")

    def __len__(self) -> int:
        return len(self.ended)

    def note(self, level: int, came: float, started: float, ended: float) -> None:
        """Add a record that has been handled."""
        self.levels.append(level)
        self.came.append(came)
        self.started.append(started)
        self.ended.append(ended)

    @classmethod
    def joined(cls, logs: Iterable["RunLog"]) -> "RunLog":
        """Return one log with the rows of all logs."""
        joined = cls()
        for log in logs:
            for column in ("levels", "came", "started", "ended"):
                getattr(joined, column).extend(getattr(log, column))
        return joined

    @property
    def makespan(self) -> float:
        """The seconds from the start of the first record to the end of the last one."""
        return max(self.ended, default=0.0) - min(self.started, default=0.0)

    def latencies(self) -> list[float]:
        """Return how many seconds passed from the arrival of each record to its end."""
        return [ended - came for ended, came in zip(self.ended, self.came, strict=True)]

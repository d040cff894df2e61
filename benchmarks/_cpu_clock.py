"""Measures what a record costs in a benchmark."""

import time
from contextlib import suppress
from typing import NamedTuple

import psutil

WARM_UP = 0.1  # of the records: connections, imports and the first fetches are not what a record costs


class Cost(NamedTuple):
    """The CPU time of a record in microseconds, and how many records are done in a second."""

    microseconds: float
    per_second: float


class CpuClock:
    """The time of this process, librdkafka's threads included, between the warm-up and the last record."""

    def __init__(self, count: int, warm_up: float = WARM_UP) -> None:
        self._first = int(count * warm_up)
        self._last = count
        self._began: tuple[float, float, int] | None = None
        self._ended: tuple[float, float] | None = None

    def see(self, number: int) -> bool:
        """Note that this many records are done; return whether that is all."""
        if self._began is None and number >= self._first:
            self._began = time.process_time(), time.perf_counter(), number
        if number < self._last:
            return False
        self._ended = self._ended or (time.process_time(), time.perf_counter())
        return True

    @property
    def cost(self) -> Cost:
        """What a record cost."""
        assert self._began
        assert self._ended
        cpu, at, number = self._began
        count = self._last - number
        return Cost((self._ended[0] - cpu) / count * 1e6, count / (self._ended[1] - at))


def cpu_of_all() -> float:
    """The seconds of CPU that this process and its children have taken: with Spark, also the JVM and Python workers."""
    me = psutil.Process()
    total = 0.0
    for each in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a worker of Spark that has just ended
            total += sum(each.cpu_times()[:4])  # with the times of children that have ended
    return total

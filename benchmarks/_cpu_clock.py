"""Measures the CPU time of a record in a benchmark."""

import time

WARM_UP = 0.1  # of the records: connections, imports and the first fetches are not what a record costs


class CpuClock:
    """The CPU time of this process, librdkafka's threads included, between the warm-up and the last record."""

    def __init__(self, count: int, warm_up: float = WARM_UP) -> None:
        self._first = int(count * warm_up)
        self._last = count
        self._began: tuple[float, int] | None = None
        self._ended = 0.0

    def see(self, number: int) -> bool:
        """Note that this many records are done; return whether that is all."""
        if self._began is None and number >= self._first:
            self._began = time.process_time(), number
        if number < self._last:
            return False
        self._ended = self._ended or time.process_time()
        return True

    @property
    def microseconds(self) -> float:
        """µs a record."""
        assert self._began
        began, number = self._began
        return (self._ended - began) / (self._last - number) * 1e6

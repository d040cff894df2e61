"""An executor for tests of the dispatch."""

from collections.abc import Callable, Sequence
from typing import Any

from headway.execution.executor import Executor


class ExecutorStub(Executor):
    """Passes the jobs that the dispatch starts to a function, and runs none."""

    def __init__(self, start: Callable[[Sequence[Any]], None]) -> None:
        self._start = start

    def start(self, jobs: Sequence[Any]) -> None:
        self._start(jobs)

    def close(self, timeout: float) -> None:
        pass

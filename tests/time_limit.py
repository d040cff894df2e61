"""An end to a run that has no more time: tests that were not begun by then are skipped, and the summary counts them.

The files come in another order in each run, so that it is not always the same ones that are not reached.
"""

import random
import time
from collections import Counter
from itertools import groupby
from typing import Any

import pytest

_BEGAN = "headway_run_began"
_NOT_REACHED = "not reached: the run had no more time"


class TimeLimit:
    """The plugin of `--within SECONDS`, in pytest's own process and in those that run the tests."""

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        self._seconds = seconds
        self._began = getattr(config, "workerinput", {}).get(_BEGAN, time.time())
        self._not_reached: Counter[str] = Counter()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process of tests when the run began."""
        node.workerinput[_BEGAN] = self._began

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Shuffle the files, in all processes alike, as xdist requires."""
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.nodeid.partition("::")[0])]
        random.Random(self._began).shuffle(files)
        items[:] = [test for tests in files for test in tests]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Skip a test that would begin too late, before its fixtures start anything."""
        if time.time() - self._began > self._seconds:
            pytest.skip(_NOT_REACHED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the tests of each file that were not reached."""
        if report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(_NOT_REACHED):
            self._not_reached[report.nodeid.partition("::")[0]] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the files with tests that were not reached."""
        if not self._not_reached:
            return
        terminalreporter.section(f"{self._not_reached.total()} tests were not reached within {self._seconds:g} s")
        for file, count in sorted(self._not_reached.items()):
            terminalreporter.line(f"{count:5} of {file}")

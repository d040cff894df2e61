"""The processor time of each test, which shows what makes a run long on any machine, however busy it is.

`--processor-time FILE` writes a CSV file with a row for each test, the costliest first, and the summary has the sum.
The time is that of the test's process and of its child processes, so a broker that all processes share is not in it.
With `TESTERS=0` the broker is a child process too.
"""

import csv
import os
from collections.abc import Generator
from pathlib import Path
from typing import cast

import psutil
import pytest

_PROPERTY = "processor_time"
_BEFORE = pytest.StashKey[tuple[float, float]]()


class ProcessorTime:
    """The plugin of `--processor-time FILE`, in pytest's own process and in those that run the tests."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows: list[tuple[float, float, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin before the test's fixtures are set up."""
        item.stash[_BEFORE] = _used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send the time of the whole test along with the report on its end."""
        report = yield
        if call.when == "teardown":
            before, after = item.stash[_BEFORE], _used()
            report.user_properties.append((_PROPERTY, (after[0] - before[0], after[1] - before[1])))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a process of tests has sent, which is in the report on the end of a test."""
        if report.when == "teardown":
            own, children = cast(tuple[float, float], dict(report.user_properties)[_PROPERTY])
            self._rows.append((own, children, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the file, and show the sum."""
        self._rows.sort(key=lambda row: row[0] + row[1], reverse=True)
        with self._file.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["own_s", "children_s", "test"])
            writer.writerows((f"{own:.2f}", f"{children:.2f}", test) for own, children, test in self._rows)
        total = sum(own + children for own, children, _ in self._rows)
        terminalreporter.write_line(f"{total:.0f} s of processor time in {len(self._rows)} tests: see {self._file}")


def _used() -> tuple[float, float]:
    """Return the processor time of this process, and that of its child processes, ended or not."""
    times = os.times()
    running = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        # With the times of a child's own children that have ended; psutil has them on Linux only.
        running += used.user + used.system + getattr(used, "children_user", 0.0) + getattr(used, "children_system", 0.0)
    return times.user + times.system, times.children_user + times.children_system + running

"""One Apache Kafka for all processes of a test run, instead of one for each.

A broker costs the processor some five seconds to start, and as much again until Java has compiled what it uses. The
first process whose tests need the broker starts it; pytest's own process, which ends last, stops it. Tests have topics
and groups with names of their own, so they do not meet; those that share a name stay in one process
(`tests/conftest.py`).
"""

import fcntl
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.broker import LocalBroker
from headway.broker.data_dir import read_description
from headway.broker.guard import Guard
from headway.testing.fixtures import KEEPS_OLD_RECORDS

_DIRECTORY = "headway_broker_dir"

# A process of its own starts the broker: in one that runs tests it would be a child that is never waited for. The heap
# is for the thousands of partitions of a whole run; Java takes it only if it needs it.
_START = f"""
import sys
from headway.broker import LocalBroker
LocalBroker(
    data_dir=sys.argv[1], ephemeral=True, background=True, properties={KEEPS_OLD_RECORDS}, java_options=["-Xmx1g"]
).start()
"""


class BrokerOfTheRun:
    """The part of pytest's own process: it tells the processes of the tests where the broker is, and stops it."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.gettempdir(), f"headway-tests-{uuid.uuid4().hex[:12]}")
        self._guard = Guard(self._directory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Name the broker's directory to a process of tests that is about to start."""
        node.workerinput[_DIRECTORY] = str(self._directory)

    def pytest_unconfigure(self) -> None:
        """Stop the broker, if a test started it."""
        if read_description(self._directory):
            LocalBroker.attach(self._directory).stop()
        self._guard.release()
        _lock_file(self._directory).unlink(missing_ok=True)


@contextmanager
def broker_for(config: pytest.Config) -> Iterator[LocalBroker]:
    """Yield the broker of the run, started unless it runs; in a run of a single process it is that process's own."""
    shared = getattr(config, "workerinput", {}).get(_DIRECTORY)
    if shared is None:
        with LocalBroker(properties=KEEPS_OLD_RECORDS) as own:
            yield own
        return
    with _lock_file(Path(shared)).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if read_description(Path(shared)) is None:
            subprocess.run([sys.executable, "-c", _START, shared], check=True)
    yield LocalBroker.attach(shared)


def _lock_file(directory: Path) -> Path:
    return directory.with_suffix(".lock")

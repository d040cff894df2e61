"""A container may have no home directory, a user without a name, and a cache that cannot be written to."""

import subprocess
import sys

import pytest

# As `docker run --user 12345` finds it, where HOME is not even set.
NOBODY = """
import os, pwd, sys
def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
os.environ.clear()
"""
COMMAND = NOBODY + "from headway.cli import main; main()"


BROKER = """
import os
os.environ["HEADWAY_CACHE"] = "/proc/headway"
from headway.broker import LocalBroker
from headway.errors import LocalBrokerError
try:
    LocalBroker().start()
except LocalBrokerError as error:
    print(error)
"""


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_without_a_home_directory_kafka_is_at_the_default_address() -> None:
    ran = run(NOBODY + "import headway; print(headway.settings_from_environment())")
    assert (ran.stdout, ran.stderr) == ("{'bootstrap.servers': 'localhost:9092'}\n", "")


@pytest.mark.parametrize("words", [["broker", "status"], ["broker", "start"], ["broker", "start", "--ephemeral"]])
def test_without_a_home_directory_the_broker_commands_end_with_one_sentence(words: list[str]) -> None:
    ran = run(COMMAND, *words)
    assert ran.returncode == 1
    assert ran.stderr.startswith("headway: There is no default directory for ")
    assert ran.stderr.count("\n") == 1


def test_a_cache_that_cannot_be_written_to_is_one_sentence() -> None:
    ran = run(BROKER)
    assert ran.stdout.startswith("The download directory /proc/headway cannot be used: "), ran.stderr
    assert "HEADWAY_CACHE" in ran.stdout


# `gunicorn -k gevent` takes the selector away before an application is imported.
PATCHED = "import selectors\nif hasattr(selectors, 'EpollSelector'): del selectors.EpollSelector\n"


def test_workers_are_imported_after_gevent_has_patched_the_selectors() -> None:
    ran = run(PATCHED + "from headway import ParallelConsumer, worker; print(worker.__name__)")
    assert (ran.stdout, ran.stderr) == ("worker\n", "")


def test_an_attribute_that_a_module_lacks_while_it_is_imported_is_said() -> None:
    ran = run("import selectors; del selectors.SelectorKey\nfrom headway import worker")
    assert "cannot import name" not in ran.stderr
    assert "AttributeError: module 'selectors' has no attribute 'SelectorKey'" in ran.stderr

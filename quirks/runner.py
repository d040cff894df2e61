"""Runs the quirks that the page names, each in a process of its own, and prints which faults still exist.

python -m quirks                      # all
python -m quirks offset_fetch_fails   # some, by the functions' names
"""

import argparse
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck

from headway.broker import LocalBroker
from headway.errors import LocalBrokerError
from quirks.verdict import NotShownError, Verdict, report

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design" / "librdkafka.md"
THERE, GONE, NOT_SHOWN = "still there", "gone", "could not be shown here"
LONGEST = 120  # seconds for one quirk; those that need a broker of their own take half a minute
_AT_A_TIME = 2


class Fault(NamedTuple):
    """A row of the page's tables: the fault, the counter-measure's file, and the function that shows it."""

    text: str
    counter_measure: str
    quirk: str | None
    why_not: str


class Outcome(NamedTuple):
    """What came of a quirk: one of the three words, and what was seen."""

    state: str
    seen: str


def faults(page: str) -> list[Fault]:
    """Return the faults of the page's tables."""
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or len(cells) != _COLUMNS or cells[0] == "fault":
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cells[0])
        [counter_measure, *_] = re.findall(r"`([\w/]+\.py)", cells[3])
        shown = re.fullmatch(r"`quirks/(\w+)\.py:(\w+)`", cells[5])
        found.append(Fault(text, counter_measure, f"{shown[1]}.{shown[2]}" if shown else None, cells[5]))
    return found


_COLUMNS = 6


def run_here(quirk: str) -> None:
    """Run one quirk in this process, and report its verdict to the process that started this one."""
    module, function = quirk.split(".")
    signal.alarm(LONGEST)
    try:
        verdict = getattr(importlib.import_module(f"quirks.{module}"), function)()
    except NotShownError as reason:
        print(json.dumps({"not_shown": str(reason)}), flush=True)
        verdict = None
    signal.alarm(0)
    if verdict:
        report(verdict)
    os._exit(0)  # clients that hang are part of some faults


def run_apart(quirk: str) -> Outcome:
    """Run one quirk in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "quirks", "--one", quirk],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=LONGEST + 30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, errors = process.communicate()
    return outcome(process.returncode, printed, errors)


def outcome(exit_code: int, printed: str, errors: str) -> Outcome:
    """Return what an ended process shows: by its report, or by how it ended after it had announced the risk."""
    said: dict[str, Any] = {}
    for line in printed.splitlines():
        if line.startswith("{"):
            said |= json.loads(line)
    if "is_there" in said:
        verdict = Verdict(said["is_there"], said["seen"])
        return Outcome(THERE if verdict.is_there else GONE, verdict.seen)
    if "not_shown" in said:
        return Outcome(NOT_SHOWN, f"because {said['not_shown']}")
    if "at_risk" in said and exit_code < 0:
        ended = "it did not return" if -exit_code == signal.SIGALRM else signal.Signals(-exit_code).name
        return Outcome(THERE, f"{said['at_risk']}: {ended}")
    why = "it took too long" if -exit_code in (signal.SIGALRM, signal.SIGKILL) else f"it ended with {exit_code}"
    return Outcome(NOT_SHOWN, f"because {why}: {' '.join(errors.split())[-300:] or 'without a word'}")


@contextmanager
def _kafka() -> Iterator[None]:
    """Have a real Kafka for the quirks, unless none can be had."""
    try:
        broker = LocalBroker().start()
    except LocalBrokerError as error:
        print(f"Some quirks need a real Kafka, and none could be started. {error}", file=sys.stderr)
        yield
        return
    os.environ["QUIRKS_KAFKA"] = broker.bootstrap_servers
    try:
        yield
    finally:
        broker.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the quirks and print the table."""
    parser = argparse.ArgumentParser(prog="python -m quirks", description=__doc__)
    parser.add_argument("quirks", nargs="*", help="functions of the page's last column; all by default")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        run_here(given.one)
    wanted = [fault for fault in faults(PAGE.read_text()) if not given.quirks or _name(fault) in given.quirks]
    if unknown := set(given.quirks) - {_name(fault) for fault in wanted}:
        parser.error(f"The page names no quirk {', '.join(sorted(unknown))}.")
    print(f"confluent-kafka {ck.__version__} with librdkafka {ck.libversion()[0]}; {len(wanted)} faults\n", flush=True)
    with _kafka(), ThreadPoolExecutor(_AT_A_TIME) as threads:
        for fault, found in zip(wanted, threads.map(_find, wanted), strict=True):
            print(f"{found.state:<24}{_name(fault) or '-'}\n    {fault.text}")
            print(f"    seen: {found.seen}\n    counter-measure: {fault.counter_measure}\n", flush=True)


def _name(fault: Fault) -> str:
    return fault.quirk.split(".")[1] if fault.quirk else ""


def _find(fault: Fault) -> Outcome:
    return (
        run_apart(fault.quirk)
        if fault.quirk
        else Outcome(NOT_SHOWN, f"because {fault.why_not.removeprefix('not shown: ')}")
    )

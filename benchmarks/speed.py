"""What does a record cost on each hot path, beside a commit that does not move?

Each path runs on this tree and on the reference commit, in turns, with one broker, and prints its µs of CPU a record.
CPU time is steady on a shared machine where rates are not; so is the ratio of two that took turns. A change that costs
a path over 3 % that it does not concern is a defect.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import confluent_kafka as ck
from _speed_paths import PATHS
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from headway.broker import LocalBroker
from headway.runtime.compiled import is_compiled

ROOT = Path(__file__).parents[1]
REFERENCE = "88187b8"
KEYS = 10_000
PARTITIONS = 4
BOUND = 1.03
_PATIENCE = 600.0  # seconds for one run, beside other programs


@dataclass(frozen=True, slots=True)
class Figure:
    """µs of CPU a record on one path: the median of each tree's runs, and of the ratios of neighbouring runs."""

    path: str
    here: float
    reference: float
    ratio: float
    runs: int


@contextmanager
def sources_of(commit: str) -> Iterator[Path]:
    """The source folder of a commit, for as long as a `with` block lasts."""
    command = ["git", "archive", commit, "src"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        sys.exit(f"The commit {commit} is not in this clone. Fetch the whole history: git fetch --unshallow.")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder) / "src"


def filled_topics(address: str, name: str, count: int) -> None:
    """Fill a topic, and level 0 of the same name, each with `count` records of 100 B by 10,000 keys."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for done in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in (name, f"{name}-0")]).values():
        done.result()
    levels = [NewTopic(f"{name}-{level}", PARTITIONS, 1) for level in (1, 2)]
    for done in admin.create_topics(levels).values():
        done.result()
    producer = ck.Producer({"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for topic in (name, f"{name}-0"):
        for number in range(count):
            producer.produce(topic, b"x" * 100, str(number % KEYS))
        producer.flush()
    producer.close()


def empty_topics(address: str) -> str:
    """Create a topic to write to, with three levels, and return its name."""
    name = f"speed-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    topics = [NewTopic(name, 1, 1), *(NewTopic(f"{name}-{level}", 3, 1) for level in range(3))]
    for done in admin.create_topics(topics).values():
        done.result()
    return name


def run(path: str, sources: Path, address: str, topic: str, count: int, *, measures: bool = False) -> float:
    """Run one path with the sources of one tree, and return µs of CPU a record."""
    program = [sys.executable, str(Path(__file__).with_name("_speed_paths.py")), path, address, topic, str(count)]
    environment = {**os.environ, "PYTHONPATH": str(sources)} | ({"HEADWAY_SPEED_MEASURES": "1"} if measures else {})
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode:
        sys.exit(f"{path} failed with the sources of {sources}:\n{done.stderr}")
    return float(done.stdout.split()[-2])


def measure(
    path: str, reference: Path, address: str, rounds: int, part: float, filled: str, *, measured: bool = False
) -> Figure:
    """Run a path on both trees in turns. With `measured`, the clients of this tree are measured."""
    count = int(PATHS[path][0] * part)
    reads = path.startswith(("parallel", "consumer", "spark, source"))
    here: list[float] = []
    there: list[float] = []
    for number in range(rounds):
        both = [(ROOT / "src", here), (reference, there)]
        for sources, found in both if number % 2 else reversed(both):
            topic = filled if reads else empty_topics(address)
            found.append(run(path, sources, address, topic, count, measures=measured and found is here))
    ratio = statistics.median(one / other for one, other in zip(here, there, strict=True))
    return Figure(path, statistics.median(here), statistics.median(there), ratio, rounds)


def show(figures: list[Figure], reference: str) -> None:
    """Print the table."""
    title = f"µs of CPU a record, {'compiled' if is_compiled() else 'in plain Python'}"
    table = Table("path", "here", reference, "ratio", title=title, title_justify="left")
    for each in figures:
        colour = "red" if each.ratio > BOUND else "green"
        table.add_row(each.path, f"{each.here:.1f}", f"{each.reference:.1f}", f"[{colour}]{each.ratio:.2f}[/]")
    Console().print(table)


def main() -> None:
    """Measure, show, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--reference", default=REFERENCE, metavar="COMMIT", help=f"the other tree (default {REFERENCE})"
    )
    parser.add_argument("--paths", default="", metavar="WORD", help="measure only paths whose name contains this")
    parser.add_argument("--rounds", type=int, default=5, help="the runs on each tree (default 5)")
    parser.add_argument(
        "--quick", action="store_true", help="one round of a tenth of the records, to see that it works"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as JSON")
    parser.add_argument(
        "--measured",
        action="store_true",
        help="compare this tree with itself: here with clients that are measured, as reference without",
    )
    arguments = parser.parse_args()
    rounds, part = (1, 0.1) if arguments.quick else (arguments.rounds, 1.0)
    figures: list[Figure] = []
    trees = nullcontext(ROOT / "src") if arguments.measured else sources_of(arguments.reference)
    title = "not measured" if arguments.measured else arguments.reference
    with trees as reference, LocalBroker(ephemeral=True) as broker:
        address, filled = broker.bootstrap_servers, f"speed-{uuid.uuid4().hex[:8]}"
        filled_topics(address, filled, int(max(count for count, _ in PATHS.values()) * part))
        try:
            paths = [path for path in PATHS if arguments.paths in path]
            for path in paths:
                figure = measure(path, reference, address, rounds, part, filled, measured=arguments.measured)
                figures.append(figure)  # one by one, so that they are kept on an error
        finally:
            show(figures, title)
            if arguments.json:
                arguments.json.write_text(json.dumps([asdict(each) for each in figures], indent=2) + "\n")


if __name__ == "__main__":
    main()

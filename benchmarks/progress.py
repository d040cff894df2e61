"""What do a record's bookkeeping and a commit's offset map cost, beside a plain set and an encoder by offset?"""

import base64
import random
import time
from collections.abc import Callable

from _harness import Options, Report, main

from headway.core.offsets.offset_map import OffsetMap, commit_of, decode_map
from headway.core.offsets.progress import Progress

BATCH = 500
LAG = 2_000  # records received but not complete


def seconds(function: Callable[[], object], repeat: int) -> float:
    """The shortest of some runs, so that other processes on the machine do not count."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def progress_in_batches(order: list[int], lag: int, stuck: bool) -> Progress:
    """Receive in batches and complete `lag` records later, in the given order within each batch."""
    progress = Progress(OffsetMap(0))
    total = len(order)
    for start in range(0, total + lag, BATCH):
        if start < total:
            progress.receive(range(start, min(start + BATCH, total)))
        for offset in order[max(0, start - lag) : max(0, start + BATCH - lag)]:
            if offset or not stuck:
                progress.complete(offset)
        progress.committable  # noqa: B018 - asked once a batch, as for a commit
    return progress


def set_in_batches(order: list[int], lag: int) -> None:
    """The baseline: the least that any bookkeeping has to do."""
    incomplete: set[int] = set()
    total = len(order)
    for start in range(0, total + lag, BATCH):
        if start < total:
            incomplete.update(range(start, min(start + BATCH, total)))
        for offset in order[max(0, start - lag) : max(0, start + BATCH - lag)]:
            incomplete.discard(offset)


def shuffled_within_batches(total: int) -> list[int]:
    shuffle = random.Random(349).shuffle
    order: list[int] = []
    for start in range(0, total, BATCH):
        batch = list(range(start, min(start + BATCH, total)))
        shuffle(batch)
        order += batch
    return order


def with_incomplete(width: int, incomplete: list[int]) -> Progress:
    progress = Progress(OffsetMap(0))
    progress.receive(range(width))
    keep = set(incomplete)
    for offset in range(width):
        if offset not in keep:
            progress.complete(offset)
    return progress


def encoded_by_offset(progress: Progress, width: int) -> str:
    """The baseline: a bitset built by asking for each offset of the range."""
    bits = bytearray(width // 8 + 2)
    for offset in range(width):
        if progress.is_done(offset):
            bits[offset // 8] |= 1 << offset % 8
    return base64.b64encode(bits).decode()


def shapes() -> dict[str, Progress]:
    draw = random.Random(4)
    few = sorted(draw.sample(range(99_999), 20))
    return {
        "one stuck, 100,000 behind it": with_incomplete(100_000, [0]),
        "20 incomplete of 100,000": with_incomplete(100_000, few),
        "1,000 incomplete of 100,000": with_incomplete(100_000, sorted(draw.sample(range(99_999), 1_000))),
        "half of 1,000": with_incomplete(1_000, sorted(draw.sample(range(999), 500))),
        "half of 10,000": with_incomplete(10_000, sorted(draw.sample(range(9_999), 5_000))),
        "100,000 incomplete, one done above": with_incomplete(100_001, list(range(100_000))),
    }


def per_record(report: Report, total: int) -> None:
    order = shuffled_within_batches(total)
    systems: dict[str, Callable[[], object]] = {
        "progress": lambda: progress_in_batches(order, LAG, stuck=False),
        "progress, the first record stuck": lambda: progress_in_batches(order, LAG, stuck=True),
        "a plain set": lambda: set_in_batches(order, LAG),
    }
    for system, run in systems.items():
        report.add("receive and complete a record", system, seconds(run, 3) / total * 1e6, "µs")


def per_commit(report: Report, name: str, progress: Progress, repeat: int) -> None:
    offset_map = progress.snapshot()
    text = commit_of(offset_map).metadata
    steps: dict[str, Callable[[], object]] = {
        "snapshot": progress.snapshot,
        "encode": lambda: commit_of(offset_map),
        "decode": lambda: decode_map(text, 0),
    }
    for step, run in steps.items():
        report.add(name, step, seconds(run, repeat) * 1e6, "µs")
    report.add(name, "a bitset by offset", seconds(lambda: encoded_by_offset(progress, progress.end), 2) * 1e6, "µs")
    report.add(name, "text", len(text), "characters")


def measure(report: Report, options: Options) -> None:
    total, repeat = (100_000, 20) if options.quick else (1_000_000, 200)
    per_record(report, total)
    for name, progress in shapes().items():
        per_commit(report, name, progress, repeat)
    slowest = max(result.value for result in report.results if result.case.startswith("receive"))
    report.at_most("µs for receiving and completing a record", slowest, 1)


if __name__ == "__main__":
    main("What do a record's bookkeeping and a commit's offset map cost?", measure)

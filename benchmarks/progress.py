"""What do a record's bookkeeping and a commit's offset map cost, beside a plain set and an encoder by offset?

Usage: progress.py [--quick] [--json FILE]
"""

import argparse
import base64
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from headway.core.offset_map import OffsetMap, commit_of, decode
from headway.core.progress import Progress

BATCH = 500


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


def commit_costs(repeat: int) -> dict[str, dict[str, float | int]]:
    rows: dict[str, dict[str, float | int]] = {}
    for name, progress in shapes().items():
        offset_map = progress.snapshot()
        text = commit_of(offset_map).metadata
        rows[name] = {
            "snapshot_us": round(seconds(progress.snapshot, repeat) * 1e6, 2),
            "encode_us": round(seconds(lambda m=offset_map: commit_of(m), repeat) * 1e6, 2),  # type: ignore[misc]
            "decode_us": round(seconds(lambda t=text: decode(t, 0), repeat) * 1e6, 2),  # type: ignore[misc]
            "by_offset_us": round(seconds(lambda p=progress: encoded_by_offset(p, p.end), 1) * 1e6, 2),  # type: ignore[misc]
            "characters": len(text),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    total, repeat = (100_000, 20) if arguments.quick else (1_000_000, 200)
    order = shuffled_within_batches(total)
    per_record = {
        "records": total,
        "progress_ns": round(seconds(lambda: progress_in_batches(order, 2_000, False), 3) / total * 1e9, 1),
        "progress_behind_a_stuck_record_ns": round(
            seconds(lambda: progress_in_batches(order, 2_000, True), 3) / total * 1e9, 1
        ),
        "plain_set_ns": round(seconds(lambda: set_in_batches(order, 2_000), 3) / total * 1e9, 1),
    }
    result = {"per_record": per_record, "per_commit": commit_costs(repeat)}
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

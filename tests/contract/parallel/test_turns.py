"""A quiet partition's records start soon beside floods of their level, however the handlers run."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, Ordering, ParallelConsumer
from tests.contract.conftest import PARTITIONS, Cluster
from tests.contract.parallel.members import consumer, plain_topic, wait_for

QUIET = PARTITIONS - 1
FLOOD = 3000  # records of 1 KB in each other partition
HANDLER = 0.02
SLOTS = 4
SOON = 1.5  # seconds; behind the flood it would be 45
NOTES = "HEADWAY_TEST_STARTED"


def produce(cluster: Cluster, topic: str, partition: int, count: int) -> None:
    producer = cluster.plain_producer()
    for _ in range(count):
        producer.produce(topic, b"x" * 1000, partition=partition)
    assert producer.flush(30) == 0


def note(record: ConsumerRecord) -> None:
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write("quiet\n" if record.partition == QUIET else "flood\n")


def handle(record: ConsumerRecord) -> None:
    note(record)
    time.sleep(HANDLER)


async def handle_async(record: ConsumerRecord) -> None:
    note(record)
    await asyncio.sleep(HANDLER)


def handle_batch(records: Sequence[ConsumerRecord]) -> None:
    for record in records:
        note(record)
    time.sleep(HANDLER)


def has(notes: Path, kind: str, count: int) -> bool:
    return notes.read_text().count(kind) >= count


WAYS: dict[str, tuple[dict[str, Any], Callable[[ParallelConsumer], None]]] = {
    "threads": ({}, lambda parallel: parallel.run(handle)),
    "async": ({}, lambda parallel: parallel.run(handle_async)),
    "batches": ({}, lambda parallel: parallel.run(handle_batch, batches=Batches(5))),
    "processes": ({"executor": "process", "processes": 2}, lambda parallel: parallel.run(handle)),
}


@pytest.mark.quick("async")
@pytest.mark.kafka
@pytest.mark.parametrize("way", WAYS)
def test_a_record_of_a_quiet_partition_starts_soon_beside_floods(
    kafka_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    notes = tmp_path / "started"
    notes.touch()
    monkeypatch.setenv(NOTES, str(notes))
    topic = plain_topic(kafka_cluster)
    for partition in range(QUIET):
        produce(kafka_cluster, topic, partition, FLOOD)
    options, run = WAYS[way]
    parallel = consumer(kafka_cluster, topic, {"max_concurrency": SLOTS, "ordering": Ordering.UNORDERED} | options)
    running = threading.Thread(target=run, args=(parallel,))
    running.start()
    try:
        wait_for(partial(has, notes, "flood", 100))
        for number in range(1, 4):
            produce(kafka_cluster, topic, QUIET, 1)
            wait_for(partial(has, notes, "quiet", number), SOON)
        assert notes.read_text().count("flood") < QUIET * FLOOD
    finally:
        parallel.close(drain=False)
        running.join(30)

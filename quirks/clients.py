"""Plain clients, topics and waiting, as the quirks need them."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from quirks.verdict import NotShownError


def name() -> str:
    """Return a name that nobody has used."""
    return f"quirk-{uuid.uuid4().hex[:8]}"


def create(address: str, topic: str, partitions: int = 1) -> None:
    """Create a topic on a real Kafka, and wait until clients see it."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    wait_until(lambda: len(_partitions(admin, topic)) == partitions, f"{topic} was not there")


def _partitions(admin: AdminClient, topic: str) -> dict[int, Any]:
    about = admin.list_topics(topic, timeout=10).topics[topic]
    led = {number: each for number, each in about.partitions.items() if each.leader >= 0}
    return {} if about.error else led


def fill(address: str, topic: str, count: int, partition: int = 0, size: int = 1, batch: int = 1_000_000) -> None:
    """Send records to one partition, in batches of so many bytes; their values are numbers, filled up to `size`."""
    producer = ck.Producer({"bootstrap.servers": address, "linger.ms": 5, "batch.size": batch, "log_level": 0})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, str(number).encode().ljust(size), partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(60):
        raise NotShownError(f"{topic} could not be filled")


def consumer(address: str, group: str | None = None, **settings: Any) -> ck.Consumer:
    """Return a plain consumer; settings have underscores in place of dots."""
    return ck.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group or name(),
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **_dotted(settings),
        }
    )


def producer(address: str, **settings: Any) -> ck.Producer:
    """Return a plain producer; settings have underscores in place of dots."""
    return ck.Producer(
        {
            "bootstrap.servers": address,
            "log_level": 0,
            **_dotted(settings),
        }
    )


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {key if key.endswith("_cb") else key.replace("_", "."): value for key, value in settings.items()}


def take(reader: ck.Consumer, count: int, within: float = 20) -> list[ck.Message]:
    """Return records as soon as there are `count`, or those that came within the time."""
    records: list[ck.Message] = []
    deadline = time.monotonic() + within
    while len(records) < count and time.monotonic() < deadline:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            records.append(message)
    return records


def time_to_first(reader: ck.Consumer, within: float = 10) -> float:
    """Return the seconds until a record comes."""
    began = time.monotonic()
    if not take(reader, 1, within):
        raise NotShownError(f"no record came within {within:g} s")
    return time.monotonic() - began


def wait_until(condition: Callable[[], object], otherwise: str, within: float = 30) -> None:
    """Wait for a condition; `NotShownError(otherwise)` if it does not come about."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise NotShownError(otherwise)
        time.sleep(0.02)

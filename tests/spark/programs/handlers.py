"""Workers that tests run on Spark. Each notes its records as files: the value is the directory, the key the name."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway import FatalError, ProducerRecord, Retries, worker
from headway.core.retry import fixed_backoff


def note(record: Any) -> None:
    """Leave a sign that this record was handled."""
    Path(record.value.decode(), record.key.decode()).touch()


@worker("spark-workers-local", group="spark-workers-local")
def local(record: Any, context: Any) -> None:
    """Note it at once."""
    note(record)


@worker({"spark-plain-payments": 2, "spark-plain-clicks": 0}, group="spark-plain", levels=3)
def by_priority(record: Any, context: Any) -> None:
    """Note the level with it."""
    Path(record.value.decode(), f"{record.level}-{record.key.decode()}").touch()


@worker("spark-workers-cluster", group="spark-workers-cluster", max_concurrency=4)
def slow(record: Any, context: Any) -> None:
    """Take a while."""
    time.sleep(0.05)
    note(record)


@worker("spark-workers-refusing", group="spark-workers-refusing")
def refusing(record: Any, context: Any) -> None:
    """Fail for good, with nobody to keep the record."""

    raise FatalError("never")


@worker(
    "spark-workers-once",
    group="spark-workers-once",
    produces="spark-workers-once-out",
    max_concurrency=4,
    commit_mode="transactional",
    producer_config={"transactional.id": "spark-workers-once"},  # who takes a dead one's place ends what it has open
    config={"session.timeout.ms": 6000},  # and need not wait long until its group knows of the death
)
def once(record: Any, context: Any) -> ProducerRecord:
    """Answer it; one record kills its process, the first time."""
    time.sleep(0.02)
    killed = Path(record.value.decode(), "killed")
    if record.key == b"50" and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return ProducerRecord("spark-workers-once-out", record.key, key=record.key)


@worker(
    "spark-workers-poisoned",
    group="spark-workers-poisoned",
    max_concurrency=4,
    retries=Retries(fixed_backoff(0.01), max_attempts=2),
    dead_letter_topic="spark-workers-poisoned-dead",
    config={"group.instance.id": "poisoned"},
)
def poisoned(record: Any, context: Any) -> None:
    """Note it, but the one record that kills its process."""
    time.sleep(0.02)
    if record.key == b"50":
        os.kill(os.getpid(), signal.SIGKILL)
    note(record)


def plain() -> None:
    """No worker."""


@worker("spark-workers-docs", group="spark-workers-docs")
def shown(record: Any, context: Any) -> None:
    """Handle nothing: the topic is empty."""


@contextmanager
def life(settings: dict[str, Any]) -> Iterator[str]:
    yield settings["bootstrap.servers"]


@contextmanager
def no_life() -> Iterator[None]:
    if not os.environ.get("THERE_IS_A_DATABASE"):
        raise ConnectionError("there is no database")
    yield


@worker("spark-workers-living", group="spark-workers-living", lifespan=life)
def living(record: Any, context: Any) -> None:
    """Note it, if what handlers share is there."""
    if context.state:
        note(record)


@worker("spark-workers-unborn", group="spark-workers-unborn", lifespan=no_life)
def unborn(record: Any, context: Any) -> None:
    """Handle nothing: it never starts."""

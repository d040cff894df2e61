"""A member that carries out edits, and that ends as a power failure would at one step of the first of them."""

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway import ConsumerRecord, Context, ParallelConsumer, ProducerRecord
from headway.core.engine.engine import Engine
from headway.kafka.producer.transactional_writer import TransactionalWriter

STEPS = ("ended", "begun", "offsets", "written", "committing", "committed")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """Ends the process at a step, once an edit has ended a record."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._is_edited = False
        self._after(Engine, "end_waiting", self._edited)
        self._after(TransactionalWriter, "begin", lambda: self._at("begun"))
        self._after(TransactionalWriter, "send_offsets", lambda: self._at("offsets"))
        self._after(TransactionalWriter, "write", lambda: self._at("written"))
        self._before(TransactionalWriter, "commit", lambda: self._at("committing"))
        self._after(TransactionalWriter, "commit", lambda: self._at("committed"))

    def _edited(self) -> None:
        self._is_edited = True
        self._at("ended")

    def _at(self, step: str) -> None:
        if self._is_edited and step == self._step:
            die()

    def _after(self, kind: type, name: str, act: Callable[[], None]) -> None:
        method = getattr(kind, name)

        @functools.wraps(method)
        def wrapped(*args: Any, **options: Any) -> Any:
            returned = method(*args, **options)
            act()
            return returned

        setattr(kind, name, wrapped)

    def _before(self, kind: type, name: str, act: Callable[[], None]) -> None:
        method = getattr(kind, name)

        @functools.wraps(method)
        def wrapped(*args: Any, **options: Any) -> Any:
            act()
            return method(*args, **options)

        setattr(kind, name, wrapped)


def main() -> None:
    asked = json.loads(sys.argv[1])
    begun, go_on, output = Path(asked["begun"]), Path(asked["go_on"]), asked["output"]
    if asked["step"]:
        Deadly(asked["step"])

    def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
        begun.touch()
        while not go_on.exists():
            time.sleep(0.01)
        return ProducerRecord(output, record.value, record.key)

    consumer = ParallelConsumer(
        asked["config"],
        steered=True,
        max_concurrency=1,
        commit_mode="transactional",
        hand_over_timeout=0,
        producer_config={"transaction.timeout.ms": 10_000},  # how long the next owner waits for an open transaction
    )
    consumer.subscribe(asked["topic"])
    consumer.run_and_produce(handle)


if __name__ == "__main__":
    main()

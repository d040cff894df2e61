"""The members of a group that a real run consists of. Their handlers sleep for the time that each record asks for."""

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from headway.core.engine.lanes import OrderingName
from headway.core.levels.policies import PolicyName
from headway.experiments.run_log import RunLog
from headway.parallel.consumer import ParallelConsumer
from headway.priority.consumer import PriorityConsumer
from headway.records.record_types import ConsumerRecord
from headway.runtime.background import in_background

Topics = str | Mapping[str, int]

_POLL_FOR = 0.1  # seconds, as in the original experiments


def work_value(level: int, seconds: float) -> bytes:
    """Return the value of a record: its level, how long a handler takes for it, and 500 bytes as in the original.

    >>> work_value(2, 0.5)[:10]
    b'2 0.500000'
    """
    return b"%d %.6f " % (level, seconds) + b"a" * 500


def work_of_value(value: bytes) -> tuple[int, float]:
    """Return the level and the seconds that `work_value` has written."""
    level, seconds, _ = value.split(b" ", 2)
    return int(level), float(seconds)


class RunClock:
    """The time since the start of a run, in seconds of the experiment: at a speed of 10, ten of them pass in one."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._began = time.monotonic()
        self._epoch = time.time()

    def start(self) -> None:
        """Set the time to 0."""
        self._began = time.monotonic()
        self._epoch = time.time()

    def now(self) -> float:
        """Return the time."""
        return (time.monotonic() - self._began) * self.speed

    def of_timestamp(self, milliseconds: int) -> float:
        """Return the time of a record's timestamp, or 0 for a record that was sent before the start."""
        return max(0.0, (milliseconds / 1000 - self._epoch) * self.speed)


class RunMember(Protocol):
    """A running consumer, which handles no record before `release`. `ended` has the error of one that failed."""

    log: RunLog
    ended: "Future[None]"

    def assigned(self) -> int:
        """Return the number of assigned partitions."""
        ...

    def release(self) -> None:
        """Let the consumer handle records."""
        ...

    def stop(self) -> None:
        """Make the consumer stop, and return at once."""
        ...


class ParallelMember:
    """A `ParallelConsumer`, which fills each slot as soon as it is free."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Topics,
        clock: RunClock,
        slots: int,
        ordering: OrderingName,
        policy: PolicyName = "fair",
    ) -> None:
        self.log = RunLog()
        self._clock = clock
        self._consumer = ParallelConsumer(config, max_concurrency=slots, ordering=ordering, policy=policy)
        self._consumer.subscribe(topics)
        self._consumer.pause()
        self.ended = in_background(lambda: self._consumer.run(self._handle))

    async def _handle(self, record: ConsumerRecord) -> None:
        started = self._clock.now()
        level, seconds = work_of_value(record.raw_value or b"")
        await asyncio.sleep(seconds / self._clock.speed)
        self.log.note(level, self._clock.of_timestamp(record.timestamp), started, self._clock.now())

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def release(self) -> None:
        self._consumer.resume()

    def stop(self) -> None:
        self._consumer.stop(drain=False)


class PollingConsumer:
    """A `PriorityConsumer` in a loop that handles all records of a poll at the same time, and waits for all of them."""

    def __init__(self, config: Mapping[str, Any], topics: Topics, clock: RunClock, policy: PolicyName = "fair") -> None:
        self.log = RunLog()
        self._config = config
        self._topics = topics
        self._clock = clock
        self._policy: PolicyName = policy
        self._assigned = 0
        self._released = threading.Event()
        self._stopping = threading.Event()
        self.ended = in_background(self._run)

    def _run(self) -> None:
        with PriorityConsumer(self._config, policy=self._policy) as consumer:
            consumer.subscribe(self._topics)
            while not self._stopping.is_set():
                records = consumer.poll(_POLL_FOR)
                self._assigned = len(consumer.assignment())
                if records:
                    self._released.wait()
                    self._handle(records)

    def _handle(self, records: Sequence[ConsumerRecord]) -> None:
        """Sleep once for all records, as a pool with a thread for each of them would."""
        started = self._clock.now()
        work = [work_of_value(record.raw_value or b"") for record in records]
        self._stopping.wait(max(seconds for _, seconds in work) / self._clock.speed)
        ended = self._clock.now()
        for record, (level, _) in zip(records, work, strict=True):
            self.log.note(level, self._clock.of_timestamp(record.timestamp), started, ended)

    def assigned(self) -> int:
        return self._assigned

    def release(self) -> None:
        self._released.set()

    def stop(self) -> None:
        self._stopping.set()
        self._released.set()

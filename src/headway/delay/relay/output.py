"""The interface of a relay's output, and the code that exactly-once mode and low-latency mode share."""

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headway.core.delay.broker_clock import BrokerClock
from headway.core.delay.ladder import Ladder
from headway.core.delay.relay_tick import RelayTick
from headway.delay.records import RelayRecord, Writing
from headway.delay.relay.producers import RelayOffsets, why_not_writable
from headway.delay.topic_names import TopicNames
from headway.errors import KafkaError
from headway.kafka.binding.capi import Partition
from headway.kafka.consumer.relay_consumer import RelayConsumer
from headway.kafka.producer.client_transactions import HANGS_AFTER
from headway.runtime.background import in_background
from headway.runtime.gc_pause import GcPause

if TYPE_CHECKING:
    from headway.tracing.spans import Spans

Mode = Literal["exactly-once", "low-latency"]

NOTHING_PENDING_FOR = 10.0
"""How soon `serve` must be called again if the output has no pending work, in seconds."""
COMMIT_CHECKED_AGAIN_AFTER = 0.02
"""How soon `serve` must be called again if a commit is running, in seconds."""

Ticks = Mapping[int, RelayTick]
Moved = dict[int, dict[int, int]]
"""For each partition number and each delay topic, the offset after the last record that was moved to it."""


class Uncommitted(NamedTuple):
    """A round whose commit is running, and the time at which the commit counts as failed."""

    committed: Future[None]
    offsets: RelayOffsets
    deadline: float

    @property
    def is_over(self) -> bool:
        """True if `result` would return or raise without waiting."""
        return self.committed.done() or time.monotonic() > self.deadline

    def result(self) -> RelayOffsets:
        """Wait for the commit, and return the committed offsets.

        Raises `KafkaError` if the commit failed or took too long.
        """
        try:
            self.committed.result(max(0.0, self.deadline - time.monotonic()))
        # After the deadline, the transaction cannot be committed anymore, because the next relay that reads the state
        # fences it off.
        except TimeoutError as late:
            raise KafkaError(f"A transaction could not be committed within {HANGS_AFTER:g} s.") from late
        return self.offsets


class RelayParts(NamedTuple):
    """The parts of a relay that its output uses."""

    config: Mapping[str, Any]  # the settings of the relay's producers
    names: TopicNames
    ladder: Ladder  # the delay topics in use
    consumer: RelayConsumer  # a member of the group
    clock: BrokerClock  # estimates the brokers' time from the timestamps of acknowledged records
    counts: Counter[str]  # what the relay has done since its start
    spans: "Spans | None" = None  # makes spans of the waits of delivered records, if the relay is traced


class RelayOutput(ABC):
    """Carries out the decisions of a relay."""

    def __init__(self, parts: RelayParts) -> None:
        self._names = parts.names
        self._consumer = parts.consumer
        self._clock = parts.clock
        self._counts = parts.counts
        why_not = partial(why_not_writable, parts.config)
        make = _make_traced_writing(parts.spans) if parts.spans else Writing
        self._writing = make(parts.names, parts.ladder, self.partitions, why_not, parts.counts)
        self._uncommitted: Uncommitted | None = None
        self.done: dict[Partition, int] = {}
        """For each partition, the offset below which all records are handled, as far as this progress is stored."""
        self.written: deque[Moved] = deque()
        """For each written round, the offsets after its last moved records, by partition number and delay topic."""

    @abstractmethod
    def partitions(self, topic: str, within: float) -> int:
        """Return how many partitions a topic has, or 0 if it does not exist. `within` is a time limit in seconds."""

    @property
    @abstractmethod
    def wants_state(self) -> bool:
        """True if the next ticks should contain the state to store."""

    @property
    @abstractmethod
    def under_way(self) -> int:
        """How many bytes of records were sent but are not acknowledged yet."""

    @abstractmethod
    def carry_out(self, ticks: Ticks, offsets: RelayOffsets, now: int) -> None:
        """Carry out these decisions, or begin to carry them out.

        Raises `KafkaError`, now or in a later call, if the relay must restart.
        """

    @abstractmethod
    def serve(self) -> float:
        """Do pending work without waiting. Returns the number of seconds until `serve` must be called again."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all decisions are carried out and, if possible, their progress is stored."""

    @abstractmethod
    def observe_clock(self, commands: RelayOffsets) -> None:
        """Write a record that a broker stamps with its time, and commit these offsets of the topic of commands."""

    @abstractmethod
    def close(self) -> None:
        """Finish the work in progress if possible, and then close all clients."""

    def _records(self, ticks: Ticks, now: int) -> list[RelayRecord]:
        """Return the records that carry out these decisions."""
        with GcPause():
            return [out for partition, tick in ticks.items() for out in self._writing.records(partition, tick, now)]

    def _begin_commit(self, commit: Callable[[], None], offsets: RelayOffsets) -> None:
        """Begin to commit a round, in a separate thread."""
        self._uncommitted = Uncommitted(in_background(commit), offsets, time.monotonic() + HANGS_AFTER)

    def _await_commit(self) -> None:
        """If a commit is running, wait for it and note its offsets. Raises `KafkaError` if the commit failed."""
        if self._uncommitted is not None:
            uncommitted, self._uncommitted = self._uncommitted, None
            try:
                self.done.update(uncommitted.result())
            except KafkaError:
                self._counts["aborts"] += 1
                raise
            self._counts["transactions"] += 1


def _make_traced_writing(spans: "Spans") -> Callable[..., Writing]:
    from headway.delay.traced_writing import TracedWriting  # noqa: PLC0415 - only a relay that is traced needs this

    return partial(TracedWriting, spans)


def moves_of(ticks: Ticks) -> Moved:
    """Return, by partition number, the delay topics that records move to.

    The offset of each is 0 until a record is written.
    """
    return {number: dict.fromkeys(tick.moved, 0) for number, tick in ticks.items() if tick.moved}


def note_move(moved: Moved, out: RelayRecord, offset: int) -> None:
    """Note the offset at which a moved record was written, if the record's tick asked for it."""
    if out.delay_topic is not None and out.delay_topic in (delay_topics := moved.get(out.partition, {})):
        delay_topics[out.delay_topic] = max(
            delay_topics[out.delay_topic], offset + 1
        )  # a negative offset means that the offset is unknown

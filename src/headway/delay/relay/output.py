"""The output of ticks: the parts that both modes share."""

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from headway.core.delay.relay_tick import Tick
from headway.core.rights import right_for
from headway.delay.records import RelayRecord
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.errors import AuthorizationError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition
from headway.kafka.producer.client import ProducerClient

log = logging.getLogger(__name__)

Mode = Literal["exactly-once", "low-latency"]

WRITTEN_WITHIN = 30.0
"""Seconds after which a record without an acknowledgement counts as lost."""
_ANSWER_WITHIN = 10.0


DEFAULTS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 0,
    # With 5, the most that brokers allow a partition, librdkafka (2.16) uses a whole core until an answer comes.
    "max.in.flight": 4,
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "queue.buffering.max.messages": 1_000_000,
}

Ticks = Mapping[int, Tick]
Offsets = Mapping[Partition, int]
Moved = dict[int, dict[int, int]]
"""For each partition number and line: the offset behind the last record that was moved there."""


class RelayOutput(Protocol):
    """The protocol for classes that carry out what relays decide."""

    done: dict[Partition, int]
    """For each partition: the offset below which all is stored as done."""

    written: deque[Moved]
    """For each written round: where its moves end, for the partition numbers that asked to be told."""

    @property
    def wants_state(self) -> bool:
        """Return whether the next ticks are to contain the state to store."""

    @property
    def under_way(self) -> int:
        """The bytes of records that were sent and are not acknowledged yet."""

    def carry_out(self, ticks: Ticks, offsets: Offsets, now: int) -> None:
        """Carry ticks out, or begin to; this or a later call raises `KafkaError` if the relay has to begin anew."""

    def serve(self) -> float:
        """Do what is pending without waiting; return the seconds until there is more to do."""

    def finish(self) -> None:
        """Wait until all ticks are carried out, and stored as far as possible."""

    def look_at_clock(self, commands: Offsets) -> None:
        """Write a record that a broker stamps, with the offset below which each partition's commands are done."""

    def close(self) -> None:
        """Finish if possible, and release everything."""


def moves_of(ticks: Ticks) -> Moved:
    """Return the partition numbers that asked where their moves end, each with its lines, at offset 0."""
    return {number: dict.fromkeys(tick.moved, 0) for number, tick in ticks.items() if tick.moved}


def note_move(moved: Moved, out: RelayRecord, offset: int) -> None:
    """Note that a moving record was written at this offset."""
    if out.line is not None and out.line in (lines := moved.get(out.partition, {})):
        lines[out.line] = max(lines[out.line], offset + 1)  # an offset below 0 means unknown


def connected_client(config: Mapping[str, Any], topic: str) -> ProducerClient:
    """Return a client that knows the brokers; `topic` is any existing one. Raise `KafkaError` if no broker answers."""
    client = ProducerClient({**DEFAULTS, **config})
    try:
        connect(client, topic)
    except KafkaError:
        client.close(0)
        raise
    return client


def close_at_once(client: ProducerClient) -> None:
    """Close a client that has sent nothing."""
    client.close(0)


def connect(client: ProducerClient, topic: str) -> None:
    """Connect a client: an unconnected one looks for what it needs only every half second."""
    client.partitions(topic, _ANSWER_WITHIN)


def not_stored(topic: str, error: Any) -> KafkaError:
    """Return the error for a record without which the relay cannot go on."""
    if right := right_for(error.name(), "Write", topic=topic):
        return AuthorizationError(right.missing())
    return KafkaError(f"A record for {topic} was not stored: {error.str()}.")


def why_not_writable(config: Mapping[str, Any], topic: str) -> str | None:
    """Return a sentence about what keeps records out of a topic; None if the brokers report nothing.

    Raises `KafkaError` if no broker answers.
    """
    reach = {key: value for key, value in config.items() if not key.startswith("transaction")}
    return Admin(reach).why_not_writable(topic)

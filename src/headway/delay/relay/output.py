"""Carrying out ticks: what both modes share."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from headway.core.delay.relay_tick import Tick
from headway.core.rights import right_for
from headway.delay.records import OutgoingRecord
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.errors import AuthorizationError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition
from headway.kafka.producer.client import ProducerClient

log = logging.getLogger(__name__)

Mode = Literal["exactly-once", "low-latency"]

WRITTEN_WITHIN = 30.0
"""Seconds after which what is not acknowledged is thought never to be."""
_A_MOMENT = 0.1
_ANSWER_WITHIN = 10.0


DEFAULTS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 0,
    # With five, as many as brokers let a partition have, librdkafka (2.16) takes a whole core until one is answered.
    "max.in.flight": 4,
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "queue.buffering.max.messages": 1_000_000,
}

Ticks = Mapping[int, Tick]
Offsets = Mapping[Partition, int]
Moved = dict[int, dict[int, int]]
"""Of each partition number and line the offset behind the last record that was moved there."""


class RelayOutput(Protocol):
    """Carries out what relays decide."""

    done: dict[Partition, int]
    """Of each partition the offset below which all is stored as done."""

    written: deque[Moved]
    """Where the moves of rounds end that are written, for the partition numbers that are to be told of it."""

    @property
    def wants_state(self) -> bool:
        """Whether the next ticks are to say what is to be stored."""

    @property
    def under_way(self) -> int:
        """The bytes of what was sent and is not there yet."""

    def carry_out(self, ticks: Ticks, offsets: Offsets, now: int) -> None:
        """Do it, or begin to; this, or a later call, raises `KafkaError` where all has to be begun anew."""

    def serve(self) -> float:
        """Do what is pending, without waiting; after how many seconds there is more."""

    def finish(self) -> None:
        """Wait until all that was to be done is done, and stored as far as it can be."""

    def look_at_clock(self, commands: Offsets) -> None:
        """Have a broker stamp something, given how far the commands of each partition number are done."""

    def close(self) -> None:
        """Finish, if that can be, and let go."""


def moves_of(ticks: Ticks) -> Moved:
    """Return the partition numbers that are to be told where what they move ends, each with its lines, at offset 0."""
    return {number: dict.fromkeys(tick.moved, 0) for number, tick in ticks.items() if tick.moved}


def note_move(moved: Moved, out: OutgoingRecord, offset: int) -> None:
    """Take down that a record which moves was written at this offset."""
    if out.line is not None and out.line in (lines := moved.get(out.partition, {})):
        lines[out.line] = max(lines[out.line], offset + 1)  # an offset below 0 is not known


def connected_client(config: Mapping[str, Any], topic: str) -> ProducerClient:
    """A client that knows the brokers; `topic` is any that exists. Raises `KafkaError` where nobody answers."""
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
    """Have it know the brokers: an unconnected one looks for what it needs only every half second."""
    client.partitions(topic, _ANSWER_WITHIN)


def not_stored(topic: str, error: Any) -> KafkaError:
    """Return the error for a record without which the relay cannot go on."""
    if right := right_for(error.name(), "Write", topic=topic):
        return AuthorizationError(right.missing())
    return KafkaError(f"A record for {topic} was not stored: {error.str()}.")


def why_not_writable(config: Mapping[str, Any], topic: str) -> str | None:
    """Return a sentence about what keeps records out of a topic; None where the brokers know of nothing.

    Raises `KafkaError` where nobody answers.
    """
    reach = {key: value for key, value in config.items() if not key.startswith("transaction")}
    return Admin(reach).why_not_writable(topic)


def send(client: ProducerClient, out: OutgoingRecord, report: Callable[[Any, Any], None]) -> None:
    """Queue a record, and wait while there is no room."""
    while True:
        try:
            client.produce(out.topic, out.value, out.key, out.partition, report, out.timestamp, out.headers)
            return
        except BufferError:
            client.serve(_A_MOMENT)

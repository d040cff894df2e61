"""The outcome of a worker's run: calls, outputs, dead letters and schedules."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headway.dead_letters import PREFIX
from headway.delay.pending import Pending
from headway.records.record_types import ConsumerRecord, Header, Message, ProducerRecord, headers_of


class Call(NamedTuple):
    """A call of the handler, with one record or a batch.

    `attempt` counts from 1; for a batch it is the highest of its records. `wait` is how many seconds the declared
    retries would have waited before the next attempt. It is None if there is none here, and for a batch.
    """

    records: Sequence[ConsumerRecord]
    attempt: int
    returned: Any
    error: BaseException | None
    wait: float | None


class DeadLetter(NamedTuple):
    """A record in the dead letter topic. `exception` is the class of its error with the module: `builtins.OSError`."""

    value: bytes | None
    key: bytes | None
    exception: str
    message: str
    reason: str
    attempts: int
    headers: Sequence[Header]


class Scheduled(NamedTuple):
    """A record to be delivered later, from `RetryLater`, an output with `due`, or a scheduler."""

    topic: str
    value: bytes | None
    key: bytes | None
    due: datetime
    handle: str


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """Everything that a run did, in the order in which it happened."""

    calls: list[Call] = field(default_factory=list)
    """The calls of the handler."""
    outputs: list[ProducerRecord] = field(default_factory=list)
    """The outputs that were stored, for a worker with `produces`."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    """The records in its dead letter topic, by partition."""
    schedules: list[Scheduled] = field(default_factory=list)
    """The pending records of its scheduler, the next first."""

    @property
    def results(self) -> list[Any]:
        """The values that the handler returned, without calls that raised."""
        return [call.returned for call in self.calls if call.error is None]

    @property
    def failures(self) -> list[Call]:
        """The calls that raised."""
        return [call for call in self.calls if call.error is not None]


def dead_letter_of(message: Message) -> DeadLetter:
    """Read a dead letter from a record of its topic."""
    headers = headers_of(message)
    told = {
        name.removeprefix(PREFIX): value.decode(errors="replace") if isinstance(value, bytes) else value or ""
        for name, value in headers
        if name.startswith(PREFIX)
    }
    return DeadLetter(
        message.value(),
        message.key(),
        told.get("exception", ""),
        told.get("message", ""),
        told.get("reason", ""),
        int(told.get("attempts", "0")),
        headers,
    )


def scheduled_of(pending: Pending, due: int) -> Scheduled:
    """Describe a pending schedule that is due at this time in milliseconds since the epoch."""
    message = pending.message
    at = datetime.fromtimestamp(due / 1000, UTC)
    return Scheduled(pending.schedule.topic, message.value(), message.key(), at, pending.handle)

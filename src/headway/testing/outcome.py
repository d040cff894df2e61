"""The outcome of a worker's run: the handler's calls, and the outputs, dead letters and schedules."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headway.dead_letters import PREFIX
from headway.delay.pending import Pending
from headway.records.record_types import ConsumerRecord, Header, Message, ProducerRecord, headers_of


class HandlerCall(NamedTuple):
    """One call of the handler, with a record or a batch.

    `attempt` is the number of the attempt, counted from 1. For a batch, it is the highest number among the batch's
    records. `wait` is the number of seconds that the declared retry policy waits before the next attempt. `wait` is
    None if no attempt follows in this process, and None for a batch.
    """

    records: Sequence[ConsumerRecord]
    attempt: int
    returned: Any
    error: BaseException | None
    wait: float | None


class DeadLetter(NamedTuple):
    """A record in the dead-letter topic.

    `exception` is the full name of the error's class, such as `builtins.OSError`.
    """

    value: bytes | None
    key: bytes | None
    exception: str
    message: str
    reason: str
    attempts: int
    headers: Sequence[Header]


class Scheduled(NamedTuple):
    """A record that will be delivered later, because of `RetryLater`, an output with `due`, or a scheduler."""

    topic: str
    value: bytes | None
    key: bytes | None
    due: datetime
    handle: str


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """The outcome of a run of a worker. Calls and outputs are in the order in which they happened."""

    calls: list[HandlerCall] = field(default_factory=list)
    """The calls of the handler."""
    outputs: list[ProducerRecord] = field(default_factory=list)
    """The outputs that were stored, for a worker with `produces`."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    """The records that the run stored in the worker's dead-letter topic, grouped by partition."""
    schedules: list[Scheduled] = field(default_factory=list)
    """The pending records of the worker's scheduler, in the order of their due times."""

    @property
    def results(self) -> list[Any]:
        """The values that the handler returned. Calls that raised an error are left out."""
        return [call.returned for call in self.calls if call.error is None]

    @property
    def failures(self) -> list[HandlerCall]:
        """The calls that raised an error."""
        return [call for call in self.calls if call.error is not None]


def dead_letter_of(message: Message) -> DeadLetter:
    """Convert a record of a dead-letter topic to a `DeadLetter`."""
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
    """Convert a pending schedule to a `Scheduled`. `due` is its due time in milliseconds since the epoch."""
    message = pending.message
    at = datetime.fromtimestamp(due / 1000, UTC)
    return Scheduled(pending.schedule.topic, message.value(), message.key(), at, pending.handle)

"""The decisions of a relay: records to write, answers to send, state to store, and schedules to search for."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from headway.core.delay.changes import Command, Put, Settled
from headway.core.delay.schedule import Schedule
from headway.errors import ScheduleError


class Write(msgspec.Struct, gc=False):
    """A record to write to the delay topic `delay_topic`, or to its target if `delay_topic` is None."""

    record: Any
    schedule: Schedule
    delay_topic: int | None


class RefusedRecord(NamedTuple):
    """A record that becomes a dead letter, and the error that causes this."""

    record: Any
    error: ScheduleError


class Answer(NamedTuple):
    """The answer to a command."""

    command: Command | Put
    settled: Settled


class Search(NamedTuple):
    """A schedule to search for in the delay topics.

    The schedule was rescheduled to a time that may come before its record leaves its delay topic. Copies of generations
    below `live` do not count, because they must not be delivered. The driver passes the result to `found`.
    """

    id: str
    due: int
    at: int
    live: int
    tries: int = 1

    def is_for(self, schedule: Schedule) -> bool:
        """Return whether this is a search for the given schedule."""
        return (schedule.id, schedule.due) == (self.id, self.due) and schedule.generation >= self.live


@dataclass(slots=True)
class RelayTick:
    """The contents of one transaction: records to write, answers to send and state to store."""

    writes: list[Write] = field(default_factory=list)
    refusals: list[RefusedRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    state: dict[str, bytes | None] = field(default_factory=dict)
    # For each delay topic that records are moved to, a time before the due times of these records and of all records
    # written after them. If this has an entry, the driver calls the relay's `written` after it has written the records.
    moved: dict[int, int] = field(default_factory=dict)
    # For each delay topic whose progress has changed, the first offset that is not done. The key None stands for the
    # topic of commands.
    offsets: dict[int | None, int] = field(default_factory=dict)
    # The delays of rescheduled and recurring schedules until their new due times. These delays are counted like those
    # of new records.
    delays: list[int] = field(default_factory=list)
    # Messages about time zones for which this machine has no data. The recurring schedules in these zones wait for a
    # relay that has the data.
    unknown_zones: set[str] = field(default_factory=set)
    ended_early: int = 0  # how many pending schedules were cancelled or replaced

    def __len__(self) -> int:
        return len(self.writes) + len(self.refusals) + len(self.answers)

    def __bool__(self) -> bool:
        return bool(len(self) or self.state)

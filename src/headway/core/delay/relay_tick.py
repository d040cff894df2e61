"""The decisions of a relay: records to write, answers to give, state to store, and schedules to search for."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from headway.core.delay.changes import Command, Put, Settled
from headway.core.delay.schedule import Schedule
from headway.errors import ScheduleError


class Write(msgspec.Struct, gc=False):
    """A record to write: to the delay topic `line`, or to its target if that is None."""

    record: Any
    schedule: Schedule
    line: int | None


class RefusedRecord(NamedTuple):
    """A record that becomes a dead letter, and why."""

    record: Any
    error: ScheduleError


class Answer(NamedTuple):
    """The answer to a command."""

    command: Command | Put
    settled: Settled


class Search(NamedTuple):
    """A schedule to search for in the delay topics. It was rescheduled to a time before its record would come out.

    There may also be copies of generations below `live`, which must not be delivered. The result goes to `found`.
    """

    id: str
    due: int
    at: int
    live: int
    tries: int = 1

    def is_for(self, schedule: Schedule) -> bool:
        """Return whether this is the schedule that is being searched for."""
        return (schedule.id, schedule.due) == (self.id, self.due) and schedule.generation >= self.live


@dataclass(slots=True)
class RelayTick:
    """The work of one transaction: records to write, answers to give and state to store."""

    writes: list[Write] = field(default_factory=list)
    refusals: list[RefusedRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    state: dict[str, bytes | None] = field(default_factory=dict)
    # For each delay topic that records move to, a time by which neither they nor records written after them are due. If
    # there are any, the driver calls the relay's `written` after writing them.
    moved: dict[int, int] = field(default_factory=dict)
    # For each delay topic that has changed, and for the commands (None), the first offset that is not done.
    offsets: dict[int | None, int] = field(default_factory=dict)
    # The delays of schedules that were given another time. They count like those of new records.
    delays: list[int] = field(default_factory=list)
    # The time zone data missing on this machine. The recurring schedules that need it wait for a relay that has it.
    unknown_zones: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.writes) + len(self.refusals) + len(self.answers)

    def __bool__(self) -> bool:
        return bool(len(self) or self.state)

"""What a relay decides: what is to be written, answered, stored and looked for."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from headway.core.delay.changes import Command, Settled
from headway.core.delay.schedule import Schedule
from headway.errors import ScheduleError


class Write(msgspec.Struct, gc=False):
    """A record to be written: to the delay line `line`, or to its target if that is None."""

    record: Any
    schedule: Schedule
    line: int | None


class Refusal(NamedTuple):
    """A record for the dead letters, and why."""

    record: Any
    error: ScheduleError


class Answer(NamedTuple):
    """What became of a command."""

    command: Command
    settled: Settled


class Search(NamedTuple):
    """A schedule to be looked for in the lines, to be told to `found`: it was rescheduled to before it comes by.

    Copies of a generation below `live` may lie there, too, and are dead.
    """

    id: str
    due: int
    at: int
    live: int

    def is_for(self, schedule: Schedule) -> bool:
        """Whether this is what is looked for."""
        return (schedule.id, schedule.due) == (self.id, self.due) and schedule.generation >= self.live


@dataclass(slots=True)
class Tick:
    """What to do in one transaction: what to write, to answer and to store."""

    writes: list[Write] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    state: dict[str, bytes | None] = field(default_factory=dict)
    # Of each line to which records move, a time up to which none of them is due, nor what is written there after them.
    # Whoever carries it out tells the relay when they are written, if there are any.
    moved: dict[int, int] = field(default_factory=dict)
    # Of each line that has changed, and of the commands (None), the first offset that is not done.
    offsets: dict[int | None, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.writes) + len(self.refusals) + len(self.answers)

    def __bool__(self) -> bool:
        return bool(len(self) or self.state)

"""Pending schedules, read from the lines beside the relays, without disturbing them."""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from headway.core.delay.changes import Changes
from headway.core.delay.ladder import MEMORY
from headway.core.delay.relay_state import StoredState
from headway.core.delay.schedule import HandleParts, Schedule
from headway.delay.records import schedule_of
from headway.delay.topics import Layout, TopicNames, read_layout
from headway.errors import ConfigError, ScheduleError
from headway.kafka.binding.time_limits import OPEN_TRANSACTION_ENDS_WITHIN
from headway.kafka.reading.compacted import read_compacted
from headway.kafka.reading.group_inspector import GroupInspector
from headway.records import Message


class Pending(NamedTuple):
    """A schedule that is not delivered yet: its place, and its due time after all changes."""

    line: int
    partition: int
    schedule: Schedule
    due: int
    message: Message

    @property
    def handle(self) -> str:
        """The text with which a user cancels the schedule."""
        return str(HandleParts(self.partition, self.schedule.due, self.schedule.at, self.schedule.id))


def layout_of(config: Mapping[str, Any], name: str) -> Layout:
    """Return the layout of a scheduler's topics; raise `ConfigError` if it has no topics."""
    layout = read_layout(config, name)
    if layout is None:
        raise ConfigError(f"The scheduler {name} has no topics. Create them with `headway schedule init`.")
    return layout


def read_pending(config: Mapping[str, Any], name: str, partitions: Collection[int] | None = None) -> Iterator[Pending]:
    """Yield all pending schedules, or those of some partitions, in no order.

    Yields one at a time, since all of them may not fit in memory. Relays keep moving records to shorter lines
    meanwhile. Shorter lines are read after longer ones, so a record that moves is seen in one line or in both.
    """
    layout, names = layout_of(config, name), TopicNames(name)
    numbers = range(layout.partitions) if partitions is None else partitions
    stored = read_compacted(config, names.state, numbers, OPEN_TRANSACTION_ENDS_WITHIN)
    with GroupInspector(config, name) as onlooker:
        for number in numbers:
            state = StoredState(stored[number], {})
            for line in sorted(layout.lines, reverse=True):
                yield from _of_line(onlooker, names, number, line, state)


def _of_line(
    onlooker: GroupInspector, names: TopicNames, number: int, line: int, state: StoredState
) -> Iterator[Pending]:
    place = names.line(line), number
    end, start = onlooker.ends([place]).get(place), onlooker.starts([place]).get(place)
    if end is None or start is None:  # the line's topic was deleted meanwhile
        return
    start = max(start, state.mark.offset if line == MEMORY else state.line(line).offset)
    done = deque(state.line(line).complete if line != MEMORY else ())  # ascending, as the offsets of the records read
    for message in onlooker.read(place, start, end):
        offset = message.offset() or 0
        while done and done[0].stop <= offset:
            done.popleft()
        if done and offset in done[0]:
            continue
        try:
            schedule = schedule_of(message)
        except ScheduleError:
            continue  # a relay makes a dead letter of the record
        if line == MEMORY and state.mark.has_delivered(schedule, offset):
            continue
        if (due := _due(schedule, state.changes)) is not None:
            yield Pending(line, number, schedule, due, message)


def _due(schedule: Schedule, changes: Changes) -> int | None:
    change = changes.get(schedule.id)
    if change is None or schedule.generation > change.generation:
        return schedule.due
    return None if schedule.generation < change.live else change.due


def soonest_of(found: Iterable[Pending], limit: int) -> list[Pending]:
    """Return the next `limit` that are due, each once: one that moves meanwhile is found in two lines."""
    soonest: list[Pending] = []
    for each in found:
        place = bisect_left(soonest, _rank(each), key=_rank)
        if place < limit and _rank(each) not in map(_rank, soonest[place : place + 1]):
            soonest.insert(place, each)
            del soonest[limit:]
    return soonest


def _rank(pending: Pending) -> tuple[int, int, int, str]:
    return pending.due, pending.schedule.at, pending.schedule.order, pending.handle

"""Reads the pending schedules and commands from their topics, without disturbing the relays."""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from headway.core.delay.changes import Changes
from headway.core.delay.ladder import MEMORY
from headway.core.delay.relay_state import StoredState
from headway.core.delay.schedule import HandleParts, Schedule
from headway.core.offsets.progress import Progress
from headway.delay.records import schedule_of
from headway.delay.topic_names import TopicNames
from headway.delay.topics import Layout, layout_seen_by, read_layout
from headway.errors import ConfigError, ScheduleError
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.time_limits import OPEN_TRANSACTION_ENDS_WITHIN
from headway.kafka.reading.compacted import TopicReader
from headway.kafka.reading.group_inspector import GroupInspector
from headway.records.record_types import Message
from headway.runtime.lifecycle import Closable


class Pending(NamedTuple):
    """A schedule that has not been delivered yet: where it is stored, and its due time after all changes."""

    delay_topic: int
    partition: int
    schedule: Schedule
    due: int
    message: Message

    @property
    def handle(self) -> str:
        """The text of the handle, which the user can pass to `cancel`."""
        return str(HandleParts(self.partition, self.schedule.due, self.schedule.at, self.schedule.id))


def layout_of(config: Mapping[str, Any], name: str) -> Layout:
    """Return the layout of a scheduler's topics. Raises `ConfigError` if the scheduler has no topics."""
    return _required(read_layout(config, name), name)


def _required(layout: Layout | None, name: str) -> Layout:
    if layout is None:
        raise ConfigError(
            f"The scheduler {name} has no topics. Create them with `headway schedule init --name {name}`."
        )
    return layout


def read_pending(config: Mapping[str, Any], name: str, partitions: Collection[int] | None = None) -> Iterator[Pending]:
    """Yield all pending schedules, or the pending schedules of some partitions, as `PendingReader.schedules` does."""
    with PendingReader(config, name, partitions) as reader:
        yield from reader.schedules()


class PendingReader(Closable):
    """Reads the schedules and commands that a scheduler's relays have not handled, in all or some partitions."""

    def __init__(self, config: Mapping[str, Any], name: str, partitions: Collection[int] | None = None) -> None:
        self._config = config
        self._names = TopicNames(name)
        self._partitions = partitions
        self._reader = TopicReader(config)
        # Created only when it is needed, because its clients take a while to connect.
        self._inspector: GroupInspector | None = None

    def close(self) -> None:
        """Close the connections."""
        if self._inspector:
            self._inspector.close()
        self._reader.close()

    def schedules(self) -> Iterator[Pending]:
        """Yield all pending schedules, in no particular order.

        The schedules are yielded one at a time, because all of them might not fit in memory. While the delay topics are
        being read, relays move records to delay topics for shorter delays. So records that were written in the meantime
        are read in a second pass. A record that is moved is found in one of the two delay topics, or in both.
        """
        delay_topics, bounds = self._delay_topics(), self._reader.bounds()
        read_to: dict[Partition, int] = {}
        for _ in range(2):
            starts, ends = bounds.starts(delay_topics), bounds.ends(delay_topics)
            ranges = {
                place: (max(starts[place], delay_topic.start, read_to.get(place, 0)), ends[place])
                for place, delay_topic in delay_topics.items()
                if place in starts and place in ends  # a delay topic might have been deleted in the meantime
            }
            wanted = {place: (start, end) for place, (start, end) in ranges.items() if start < end}
            if not wanted:
                return
            for place, message in self._read(wanted):
                if (pending := delay_topics[place].pending(message)) is not None:
                    yield pending
            read_to = ends

    def commands(self) -> Iterator[Message]:
        """Yield the commands that no relay has carried out: schedules whose id the user chose, and change requests.

        Commands in open transactions, and commands that a relay has just carried out, are left out. Raises
        `AuthorizationError` if commands seem to be waiting but this client is not permitted to read them.
        """
        bounds = self._reader.bounds(isolation="read_committed")
        places = {(self._names.commands, number): number for number in self._numbers}
        starts, ends = bounds.starts(places), bounds.ends(places)

        def left(states: Mapping[int, StoredState]) -> dict[Partition, tuple[int, int]]:
            begin = {place: max(starts.get(place, 0), states[places[place]].commands.offset) for place in ends}
            return {place: (begin[place], end) for place, end in ends.items() if begin[place] < end}

        if not left(self._known):
            return
        states = self._read_states()  # a relay might have made progress in the meantime
        progress = {place: Progress(states[number].commands) for place, number in places.items()}
        for place, message in self._read(left(states)):
            if progress[place].receive((message.offset() or 0,)):
                yield message

    @cached_property
    def _layout(self) -> Layout:
        return _required(layout_seen_by(self._reader, self._names.name), self._names.name)

    @property
    def _numbers(self) -> Collection[int]:
        return range(self._layout.partitions) if self._partitions is None else self._partitions

    @cached_property
    def _known(self) -> dict[int, StoredState]:
        """The stored state of each partition. It is read when it is first needed."""
        return self._read_states()

    def _read_states(self) -> dict[int, StoredState]:
        stored = self._reader.compacted(self._names.state, self._numbers, OPEN_TRANSACTION_ENDS_WITHIN)
        return {number: StoredState(stored[number], {}) for number in self._numbers}

    def _delay_topics(self) -> "dict[Partition, DelayTopicProgress]":
        """Return each partition of the delay topics, with the state that the partition's relay has stored."""
        return {
            (self._names.delay_topic(delay_topic), number): DelayTopicProgress(delay_topic, number, self._known[number])
            for delay_topic in sorted(self._layout.delay_topics, reverse=True)
            for number in self._numbers
        }

    def _read(self, ranges: Mapping[Partition, tuple[int, int]]) -> Iterator[tuple[Partition, Message]]:
        if self._inspector is None:
            self._inspector = GroupInspector(self._config, self._names.name, self._reader.admin.client)
        return self._inspector.read_together(ranges)


class DelayTopicProgress:
    """How far a relay has come in one partition of a delay topic. Records are pending unless a relay has handled them.

    `start` is the first offset that can be pending. Offsets must be asked about in ascending order.
    """

    def __init__(self, delay_topic: int, number: int, state: StoredState) -> None:
        self._delay_topic = delay_topic
        self._number = number
        self._state = state
        # Both the ranges and the offsets ascend, so ranges below the current offset are dropped from the left.
        self._done = deque(state.delay_topic(delay_topic).complete if delay_topic != MEMORY else ())
        self.start = state.mark.offset if delay_topic == MEMORY else state.delay_topic(delay_topic).offset

    def pending(self, message: Message) -> Pending | None:
        """Return the schedule of a record, or None if a relay has handled the record or the schedule was cancelled."""
        if self._is_done(offset := message.offset() or 0):
            return None
        try:
            schedule = schedule_of(message)
        except ScheduleError:
            return None  # a relay will turn the record into a dead letter
        due = self._due_unless_delivered(schedule, offset)
        return None if due is None else Pending(self._delay_topic, self._number, schedule, due, message)

    def due_of(self, schedule: Schedule, offset: int) -> int | None:
        """Return when the schedule at an offset is due, or None if it is not pending."""
        return None if self._is_done(offset) else self._due_unless_delivered(schedule, offset)

    def _is_done(self, offset: int) -> bool:
        while self._done and self._done[0].stop <= offset:
            self._done.popleft()
        return bool(self._done) and offset in self._done[0]

    def _due_unless_delivered(self, schedule: Schedule, offset: int) -> int | None:
        if self._delay_topic == MEMORY and self._state.mark.has_delivered(schedule, offset):
            return None
        return _due(schedule, self._state.changes)


def _due(schedule: Schedule, changes: Changes) -> int | None:
    change = changes.get(schedule.id)
    if change is None or schedule.generation > change.generation:
        return schedule.due
    return None if schedule.generation < change.live else change.due


def soonest_of(found: Iterable[Pending], limit: int) -> list[Pending]:
    """Return the `limit` schedules that are due next.

    If a schedule is found in two delay topics, it is returned once.
    """
    soonest: list[Pending] = []
    for each in found:
        place = bisect_left(soonest, _rank(each), key=_rank)
        if place < limit and _rank(each) not in map(_rank, soonest[place : place + 1]):
            soonest.insert(place, each)
            del soonest[limit:]
    return soonest


def _rank(pending: Pending) -> tuple[int, int, int, str]:
    return pending.due, pending.schedule.at, pending.schedule.order, pending.handle

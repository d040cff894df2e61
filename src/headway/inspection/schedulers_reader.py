"""Reads how much waits in the delay topics of schedulers, when it is due, and how late the relays are."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from headway.core.delay.relay_state import StoredState
from headway.core.delay.schedule import Schedule
from headway.delay.pending import DelayTopicProgress
from headway.delay.records import schedule_of
from headway.delay.topic_names import TopicNames
from headway.errors import ConfigError, ScheduleError
from headway.inspection.snapshot import DelayTopicStatus, SchedulerStatus
from headway.kafka.binding.capi import Partition
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.groups_reader import GroupsReader
from headway.kafka.reading.log_bounds import LogBounds

MOST_SCHEDULES = 5_000
"""How many schedules of a scheduler are read at most in one reading: the next ones of each delay topic."""

_MOST_SCHEDULERS = 10
_MOST_COMMANDS = 500
_HOUR = 3_600_000  # milliseconds
_LADDER = ".ladder"

_DelayPlace = tuple[int, int]  # the delay of a delay topic, and the number of a partition


class _WaitingRecord(NamedTuple):
    """A record in a delay topic. `schedule` is None if it cannot be read."""

    offset: int
    schedule: Schedule | None


class _Beginning(NamedTuple):
    """The first records of a partition that can be pending. `rest` is the number of offsets after them."""

    records: list[_WaitingRecord]
    rest: int


class _PendingSchedules(NamedTuple):
    """What is pending in a partition of a delay topic. `dues` has the due times of those that were read."""

    pending: int
    dues: Sequence[int]


class SchedulerReader:
    """Reads one scheduler. The state that its relays have stored is kept, so that only new state has to be read.

    Args:
        name: The name of the scheduler.
        records: Reads the records.
        bounds: Finds the ends of partitions before open transactions.
    """

    def __init__(self, name: str, records: GroupInspector, bounds: LogBounds) -> None:
        self._names = TopicNames(name)
        self._records = records
        self._bounds = bounds
        self._stored: defaultdict[int, dict[str, bytes]] = defaultdict(dict)
        self._positions: dict[int, int] = {}
        self.requests = 0

    def read(self, now: float, existing: Mapping[str, int], relays: int) -> SchedulerStatus:
        """Read the scheduler once. `existing` has the number of partitions of all topics."""
        names = self._names
        partitions = range(existing[names.state])
        places: dict[Partition, _DelayPlace] = {
            (names.delay_topic(delay), number): (delay, number)
            for delay in names.delay_topics_of(existing)
            for number in partitions
        }
        commands = [(names.commands, number) for number in partitions]
        self._read_state(partitions)
        states = self._states(partitions)
        ends = self._bounds.ends([*places, *commands])
        starts = self._bounds.starts([*places, *commands])
        self.requests += 4
        progress = {place: DelayTopicProgress(*each, states[each[1]]) for place, each in places.items()}
        begin = {place: max(starts.get(place, 0), progress[place].start) for place in places}
        waiting = self._read_waiting({place: (begin[place], ends.get(place, 0)) for place in places})
        # The state is read again after the records. Otherwise a record that was delivered meanwhile would seem late.
        self._read_state(partitions)
        states = self._states(partitions)
        found = {each: self._found(each, waiting[place], states[each[1]]) for place, each in places.items()}
        return self._status(now, found, self._commands_waiting(commands, starts, ends, states), relays)

    def _read_state(self, partitions: Collection[int]) -> None:
        """Read the state that was stored since the last reading."""
        topic = self._names.state
        ends = self._bounds.ends([(topic, number) for number in partitions])
        self.requests += 2
        ranges = {}
        for (_, number), end in ends.items():
            position = self._positions.get(number, 0)
            if end < position:  # the topic was deleted and created again
                self._stored[number].clear()
                position = 0
            if position < end:
                ranges[topic, number] = (position, end)
            self._positions[number] = end
        for (_, number), message in self._records.read_together(ranges):
            key, value = message.key(), message.value()
            if key is None:
                continue
            name = key.decode(errors="replace")
            if value is None:
                self._stored[number].pop(name, None)
            else:
                self._stored[number][name] = value

    def _states(self, partitions: Collection[int]) -> dict[int, StoredState]:
        return {number: StoredState(self._stored[number], {}) for number in partitions}

    def _read_waiting(self, ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, _Beginning]:
        """Read the first records of each range, without their values."""
        filled = {place: (start, end) for place, (start, end) in ranges.items() if start < end}
        most = _equal_limit([end - start for start, end in filled.values()], MOST_SCHEDULES)
        wanted = {place: (start, min(end, start + most)) for place, (start, end) in filled.items()}
        beginnings = {place: _Beginning([], max(0, end - start - most)) for place, (start, end) in ranges.items()}
        for place, message in self._records.read_together(wanted):
            try:
                schedule = schedule_of(message)
            except ScheduleError:
                schedule = None
            beginnings[place].records.append(_WaitingRecord(message.offset() or 0, schedule))
        return beginnings

    def _found(self, place: _DelayPlace, beginning: _Beginning, state: StoredState) -> _PendingSchedules:
        progress = DelayTopicProgress(*place, state)
        dues = [
            due
            for offset, schedule in beginning.records
            if schedule is not None and (due := progress.due_of(schedule, offset)) is not None
        ]
        # Offsets without a record, which transactions leave behind, can be left out only where records were read.
        return _PendingSchedules(len(dues) + beginning.rest, dues)

    def _commands_waiting(
        self,
        places: Sequence[Partition],
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        states: Mapping[int, StoredState],
    ) -> int:
        ranges = {}
        for place in places:
            begin = max(starts.get(place, 0), states[place[1]].commands.offset)
            ranges[place] = (begin, min(ends.get(place, 0), begin + _MOST_COMMANDS))
        read = self._records.read_together({place: each for place, each in ranges.items() if each[0] < each[1]})
        return sum(
            not any(message.offset() in done for done in states[place[1]].commands.complete) for place, message in read
        )

    def _status(
        self, now: float, found: Mapping[_DelayPlace, _PendingSchedules], commands: int, relays: int
    ) -> SchedulerStatus:
        by_topic, hours = Counter[int](), Counter[int]()
        now_ms, overdue, oldest = round(now * 1000), 0, round(now * 1000)
        for (delay, _), each in found.items():
            by_topic[delay] += each.pending
            hours.update(due // _HOUR * _HOUR for due in each.dues)
            overdue += sum(due < now_ms for due in each.dues)
            oldest = min([oldest, *each.dues])
        return SchedulerStatus(
            name=self._names.name,
            pending=by_topic.total(),
            delay_topics=tuple(DelayTopicStatus(delay, count) for delay, count in sorted(by_topic.items()) if count),
            hours=tuple((hour / 1000, count) for hour, count in sorted(hours.items())),
            counted=hours.total(),
            overdue=overdue,
            late_seconds=(now_ms - oldest) / 1000,
            commands_waiting=commands,
            relays=relays,
            read_at=now,
        )


class SchedulersReader:
    """Reads schedulers with the clients of another reader. Not thread-safe.

    Args:
        records: Reads the records.
        groups: Reads the members of the groups of relays.
        bounds: Finds the ends of partitions before open transactions.
        named: The names of the schedulers to read. By default all that have topics.
    """

    def __init__(self, records: GroupInspector, groups: GroupsReader, bounds: LogBounds, named: Sequence[str]) -> None:
        self._records = records
        self._groups = groups
        self._bounds = bounds
        self._named = named
        self._readers: dict[str, SchedulerReader] = {}

    @property
    def requests(self) -> int:
        """The number of requests that were sent, except fetches and those about groups."""
        return sum(each.requests for each in self._readers.values())

    def names(self, existing: Collection[str]) -> list[str]:
        """Return the names of the schedulers that have topics, of those to read."""
        found = self._named or sorted(each.removesuffix(_LADDER) for each in existing if each.endswith(_LADDER))
        return [each for each in found if _has_topics(each, existing)]

    def read(self, now: float, existing: Mapping[str, int], failures: list[str]) -> Iterator[SchedulerStatus]:
        """Read all schedulers once."""
        names = self.names(existing)
        failures += [f"Kafka has no topics of a scheduler {each}." for each in self._named if each not in names]
        if len(names) > _MOST_SCHEDULERS:
            failures.append(f"Only {_MOST_SCHEDULERS} of {len(names)} schedulers are read. Name the ones to watch.")
        names = names[:_MOST_SCHEDULERS]
        relays = self._groups.read(names, failures) if names else {}
        self._readers = {each: self._readers.get(each) or self._reader(each) for each in names}
        for name, reader in self._readers.items():
            yield reader.read(now, existing, len(relays[name].members) if name in relays else 0)

    def _reader(self, name: str) -> SchedulerReader:
        return SchedulerReader(name, self._records, self._bounds)


def _equal_limit(sizes: Sequence[int], total: int) -> int:
    """Return the limit for each range with which all ranges together have at most `total` offsets.

    >>> _equal_limit([10, 500, 900], 1_010)
    500
    """
    left = max(total, len(sizes))
    for index, size in enumerate(sorted(sizes)):
        limit = left // (len(sizes) - index)
        if size > limit:
            return limit
        left -= size
    return max(sizes, default=1)


def _has_topics(name: str, existing: Collection[str]) -> bool:
    try:
        names = TopicNames(name)
    except ConfigError:
        return False
    return names.ladder in existing and names.state in existing and names.commands in existing

"""The relay of one partition number: it decides where records that come out of the delay topics go next.

Like the engine, it is a state machine without a clock. It is responsible for one partition number of all of a
scheduler's topics, because a schedule's records, commands and stored state share it. A driver fetches for each delay
topic that is not `full`, and passes the records to `receive`. It carries out what `take` returns, all in one
transaction. A successor needs only the stored state.

Invariants:
- Nothing is delivered before it is due, and of a schedule's copies only the live one is delivered.
- A record that left its delay topic is in exactly one state: waiting in memory, part of a tick, or done. A record that
  a tick moves is expected in its next delay topic until it is fetched there.
- Of records with the same due time, the one scheduled first is delivered first, unless the overdue records do not fit
  in memory. So while a record that a tick moved has not been fetched again, nothing is delivered that may be due after
  it.
- A schedule is reported as delivered only when every record due at that time or earlier has come out of its delay
  topic.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from headway.core.delay.changes import Command
from headway.core.delay.command_ledger import CommandLedger, PutRecord, RecentDeliveries
from headway.core.delay.due_queue import DueQueue, Held
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.line_window import LEAVES_WITHIN, Fetched, LineWindow, bound_behind
from headway.core.delay.recurrence import Recurrence, UnknownZoneError
from headway.core.delay.relay_state import (
    COMMANDS_KEY,
    MEMORY_KEY,
    TOPICS_KEY,
    StoredState,
    change_key,
    encode_map,
    line_key,
)
from headway.core.delay.relay_tick import RefusedRecord, RelayTick, Search, Write
from headway.core.delay.schedule import OWN, STORED_WITHIN, EmptyRecordError, Schedule
from headway.core.offsets.offset_map import OffsetMap
from headway.errors import ScheduleError

# Each record of a delay topic that waits in memory is a gap in the delay topic's offset map if due times differ from
# the order of arrival. At this bound the map has some kilobytes, and it is stored with each tick.
_MOST_HELD_OF_A_LINE = 20_000

# How many records may leave their delay topics while others are due: about a millisecond's worth of work.
LEAVE_BESIDE = 200
_LOOK_FOR_ZONE_AGAIN_AFTER = 60_000  # milliseconds; by then another relay, which knows the zone, may have the partition
_FORGET_AT_ONCE = 2_000  # changes; each is a record to write


class _MovedBounds(NamedTuple):
    """The bounds of the records that a tick moves, by delay topic, and how long they apply."""

    bounds: dict[int, int]
    until: int


class PartitionRelay:
    """Decides about all schedules of one partition number.

    Args:
        ladder: The delay topics that records are sent to.
        lines: All existing delay topics, including those that are only being emptied.
        stored: The state that earlier ticks have stored.
        memory: How many bytes of records may wait in memory. The windows of all delay topics may hold as much again.
        topics: Kafka's ids of the topics of delay topics and commands, by the key of the stored state of each.
        ends: The ends of their logs, by the same keys, as far as known.
        unread: Delay topics that are not read now, but whose stored progress is kept.

    `unreadable` has a sentence for each stored key whose value could not be read and was ignored.
    """

    def __init__(
        self,
        ladder: Ladder,
        lines: Collection[int],
        stored: Mapping[str, bytes],
        memory: int,
        topics: Mapping[str, str],
        ends: Mapping[str, int] | None = None,
        unread: Collection[int] = (),
    ) -> None:
        self._ladder = ladder
        self._memory = memory
        state = StoredState(stored, topics, ends)
        own = LineWindow(MEMORY, OffsetMap(state.mark.offset), memory // 4)
        self._shared = memory // 2
        each = memory // 4 // max(1, len(lines))
        others = {line: LineWindow(line, state.line(line), each) for line in lines if line != MEMORY}
        self.unreadable = state.unreadable
        self._lines = {MEMORY: own} | others
        self.waiting = DueQueue(state.mark, own)
        """The records that wait in memory."""
        self.changes = state.changes
        self.recent = RecentDeliveries()
        self.commands = CommandLedger(state.commands, self.changes, self.waiting, self.recent, self._move, self.passed)
        # Drop their progress: a delay topic that is recreated after it was deleted is read from the beginning.
        gone = state.other_lines({*lines, *ladder.lines, *unread})
        self._tick = RelayTick(
            state=dict.fromkeys([*map(line_key, gone), *state.of_topics_before, *state.unreadable_progress])
        )
        if state.topics:
            self._tick.state[TOPICS_KEY] = state.topics
        self._size = 0  # the bytes of the tick's records
        self._unwritten: deque[_MovedBounds] = deque()  # of ticks handed out but not yet `written`, in order
        self.searches = self.commands.searches

    # Fetched records and commands

    def start(self, line: int) -> int:
        """Return the offset from which to read a line."""
        return self._lines[line].progress.committable

    @property
    def commands_start(self) -> int:
        """The offset from which to read the commands."""
        return self.commands.committable

    def receive(self, line: int, records: Sequence[Fetched]) -> None:
        """Take in the fetched records of a delay topic, in the order of its log."""
        self._lines[line].receive(records)

    def reached_end(self, line: int, offset: int) -> None:
        """Record that everything in the log of a delay topic up to this offset was fetched."""
        self._lines[line].reached_end(offset)

    def written(self, ends: Mapping[int, int], now: int) -> None:
        """Record that Kafka has the records that a tick has moved; the ticks with `moved` are noted in order.

        `ends` gives, for each delay topic, the offset after the last of these records. If they were written in a
        transaction, they cannot be read before its commit.
        """
        for line, bound in self._unwritten.popleft().bounds.items():
            if line in self._lines:
                self._lines[line].expect(bound, ends[line], now + STORED_WITHIN)

    def full(self) -> set[int]:
        """Return the delay topics that should not be fetched from now."""
        spare = self._shared - sum(each.bytes for line, each in self._lines.items() if line != MEMORY)
        return {line for line, each in self._lines.items() if not each.wants(0 if line == MEMORY else spare)}

    def command(self, offset: int, command: Command | PutRecord | None, now: int) -> None:
        """Take in a command. None stands for one that cannot be read, and so cannot be answered."""
        self.commands.receive(offset, command, now)

    def found(self, search: Search, fetched: Fetched | None, now: int) -> None:
        """Take the result of a search: the schedule's record as it is in its delay topic, or None."""
        self.commands.found(search, fetched, now)

    # Ticks

    def take(self, now: int, limit: int, most_bytes: int, stores: bool = True) -> RelayTick:
        """Return the tick to carry out now, of at most about this many records and bytes. It can be empty.

        Without `stores`, progress is stored by a later tick, or by the one that `unstored` returns. But a tick with
        answers always stores the progress that they are based on.
        """
        self._size = 0
        self._expect_no_longer(now)
        is_time = any(self._at_the_latest(line, now) <= now for line in self._lines.values())
        self._deliver(now, limit, most_bytes)
        # Due records do not wait until all records that may leave their delay topics have left.
        may_leave = max(LEAVE_BESIDE, len(self._tick.writes)) if self._tick.writes else limit
        while is_time and may_leave > 0 and len(self._tick.writes) < limit and self._size < most_bytes:
            left = self._let_leave(now, min(may_leave, limit - len(self._tick.writes)), most_bytes)
            may_leave -= left
            is_time = left > 0
            self._deliver(now, limit, most_bytes)
        self.commands.answer_missed(now)
        self._forget_changes(now)
        if stores or self.commands.answers:
            self._store()
        return self._hand_out(now)

    def unstored(self, now: int) -> RelayTick:
        """Return a tick that only stores the state that earlier ticks have not stored."""
        self._store()
        return self._hand_out(now)

    def _hand_out(self, now: int) -> RelayTick:
        tick, self._tick = self._tick, RelayTick()
        tick.answers = self.commands.take_answers()
        if tick.moved:
            self._unwritten.append(_MovedBounds(tick.moved, now + STORED_WITHIN))
        return tick

    def next_wake(self, now: int) -> float:
        """Return the brokers' time at which there is something to do even if no record arrives; infinite for never."""
        due = self.waiting.first_due
        times = [self._at_the_latest(line, now) for line in self._lines.values()]
        if due is not None and self.waiting.is_restored and (due <= self._frontier or self._is_full):
            times.append(due)
        passing = (self.commands.first_due, self.changes.next_expiry())
        times += [time + STORED_WITHIN + 1 for time in passing if time is not None and time + STORED_WITHIN >= now]
        times += [each.expects_until + 1 for each in self._lines.values()] + [self.commands.search_at]
        return min(times, default=math.inf)

    @property
    def held(self) -> int:
        """The number of records that wait in memory."""
        return len(self.waiting)

    def committable(self) -> dict[int, int]:
        """Return, for each delay topic, the offset below which all records are handled, even if not stored yet."""
        return {line: each.progress.committable for line, each in self._lines.items()}

    # Records that leave their delay topics

    @property
    def _is_full(self) -> bool:
        return self.waiting.bytes >= self._memory and self.waiting.is_restored

    def _is_stuck(self, line: LineWindow) -> bool:
        return line.line == MEMORY and self._is_full

    def _at_the_latest(self, line: LineWindow, now: int) -> float:
        """Return the latest time at which the first record of a delay topic must leave."""
        if self._is_stuck(line):
            return math.inf
        return line.leaves_at(now) + (0 if line.line == MEMORY else LEAVES_WITHIN)

    def _let_leave(self, now: int, most: int, most_bytes: int) -> int:
        """Handle records of the delay topic whose first record must leave earliest, and return how many there were.

        It stops when another delay topic comes first. In this order, delay topics that are behind release overdue
        records in nearly the same order as a relay that is not behind.
        """
        leaving = sorted((each.leaves_at(now), line) for line, each in self._lines.items() if not self._is_stuck(each))
        if not leaving or leaving[0][0] > now:
            return 0
        line = self._lines[leaving[0][1]]
        until = min(leaving[1][0], now) if len(leaving) > 1 else now
        before = line.progress.end
        for fetched in line.leave(until, now, most, min(most_bytes - self._size, self._spare(line))):
            self._leave(line, fetched, now)
        return line.progress.end - before

    def _spare(self, line: LineWindow) -> float:
        """Return how many bytes of a delay topic's records may start to wait in memory."""
        return self._memory - self.waiting.bytes if line.line == MEMORY and self.waiting.is_restored else math.inf

    def _leave(self, line: LineWindow, fetched: Fetched, now: int) -> None:
        schedule = fetched.schedule
        if isinstance(schedule, ScheduleError):
            line.complete(fetched.offset)
            is_empty = isinstance(schedule, EmptyRecordError)
            if not is_empty and (line.line != MEMORY or not self.waiting.was_refused(fetched)):
                self._size += fetched.size
                self._tick.refusals.append(RefusedRecord(fetched.record, schedule))
            return
        if line.line == MEMORY and self.waiting.was_delivered(schedule, fetched):
            line.complete(fetched.offset)
            return
        wanted = self._changed(schedule)
        if wanted is schedule and self._holds(line, schedule, now):
            self.waiting.add(Held(schedule, fetched, line))
            return
        line.complete(fetched.offset)
        if wanted:
            self._move(fetched, wanted, now)

    def _changed(self, schedule: Schedule) -> Schedule | None:
        """Return the schedule after changes: the same object if unchanged, or None if it was cancelled."""
        change = self.changes.get(schedule.id)
        if change is None and schedule.id not in self.commands.undecided:
            return schedule
        if change and schedule.generation < change.live:
            return None
        self.commands.came_by(schedule)
        change = self.changes.get(schedule.id)
        if change is None or schedule.generation == change.generation:
            return schedule
        if change.due is None:
            return None
        self.changes.goes_live(schedule.id)
        return schedule.again(change.due, change.generation)

    def _holds(self, line: LineWindow, schedule: Schedule, now: int) -> bool:
        if line.line == MEMORY:
            return True
        return (
            self._ladder.line_for(schedule.due - now) == MEMORY
            and line.holds < _MOST_HELD_OF_A_LINE
            and not self._is_full
        )

    def _move(self, fetched: Fetched, schedule: Schedule, now: int) -> None:
        line = self._ladder.line_for(schedule.due - now)
        self._write(fetched, schedule, line)
        if schedule is not fetched.schedule:
            self._tick.delays.append(schedule.due - now)
        # A schedule changed to a time in the past, such as a late recurring one, must not hold up later ones.
        if schedule.due > now or schedule is fetched.schedule:
            bound = bound_behind(line, schedule.due, now)
            self._tick.moved[line] = min(bound, self._tick.moved.get(line, bound))

    def _expect_no_longer(self, now: int) -> None:
        """Stop waiting for moved records that were not fetched again in the longest time that moving can take."""
        for moved in self._unwritten:
            if moved.until < now:
                moved.bounds.clear()
        for line in self._lines.values():
            line.expect_no_longer(now)

    def _write(self, fetched: Fetched, schedule: Schedule, line: int | None) -> None:
        self._size += fetched.size
        self._tick.writes.append(Write(fetched.record, schedule, line))

    # Deliveries

    @property
    def _frontier(self) -> float:
        """A time by which nothing is due that is still in a delay topic, or that was moved and not fetched again."""
        moved = chain(self._tick.moved.values(), *(each.bounds.values() for each in self._unwritten))
        return min(chain((each.bound for each in self._lines.values()), moved), default=math.inf)

    def _deliver(self, now: int, limit: int, most_bytes: int) -> None:
        if not self.waiting.is_restored:
            return
        writes, frontier = self._tick.writes, min(self._frontier, now)
        while len(writes) < limit and self._size < most_bytes:
            held = self.waiting.take(now if self._is_full else frontier)
            if held is None:
                break
            schedule, fetched = held.schedule, held.fetched
            if schedule.recurrence is None:
                self.recent.add(schedule.id)
                if not schedule.id.startswith(OWN) or self.changes.ends(schedule.id, schedule.generation):
                    self._write(fetched, schedule, None)
            else:
                self._fire(fetched, schedule, schedule.recurrence, now)

    def _fire(self, fetched: Fetched, schedule: Schedule, recurrence: Recurrence, now: int) -> None:
        change = self.changes.get(schedule.id)
        if change and (change.generation, change.due) != (schedule.generation, schedule.due):
            return  # a second copy: with low latency, a relay may die after writing the first but before storing that
        fired = recurrence.fired
        if fired is None and recurrence.fires(schedule.due, now):
            self._write(fetched, schedule, None)
        try:
            # Times missed while no relay knew the zone are late, so the misfire policy decides about them now.
            following = recurrence.following(schedule.due, now) if fired is None else recurrence.following(fired, fired)
        except UnknownZoneError as unknown:
            self._tick.unknown_zones.add(str(unknown))
            again = schedule.looked_at_again(now + _LOOK_FOR_ZONE_AGAIN_AFTER, schedule.due if fired is None else fired)
            self._move(fetched, again, now)
            self.changes.recurs(schedule.id, schedule.generation, again.due)
            return
        if following is None:
            self.recent.add(schedule.id)
            self.changes.ends(schedule.id, schedule.generation)
        else:
            self._move(fetched, schedule.again(following, schedule.generation), now)
            self.changes.recurs(schedule.id, schedule.generation, following)

    # Records that have come out of their delay topics

    def passed(self, now: int) -> float:
        """Return a time such that all records due before it have left delay topics and memory, even the slowest."""
        own = self._lines[MEMORY]
        if not (self.waiting.is_restored and own.head is None and own.ended):
            return -math.inf
        first = self.waiting.first_due
        return min(self._frontier, now, math.inf if first is None else first) - STORED_WITHIN

    def _forget_changes(self, now: int) -> None:
        """Forget changes of schedules that no copy can turn up for, even after a crash.

        A forgotten cancellation is then reported as a delivery.
        """
        passed = self.passed(now)
        if self.changes.forget(passed, _FORGET_AT_ONCE):
            self.waiting.passed(int(passed))
            self._lines[MEMORY].changed = True

    # Stored state

    def _store(self) -> None:
        state = self._tick.state
        for line, each in self._lines.items():
            if each.changed:
                self._tick.offsets[line] = each.progress.committable
            if each.changed and line == MEMORY:
                state[MEMORY_KEY] = msgspec.json.encode(self.waiting.mark())
            elif each.changed:
                state[line_key(line)] = encode_map(each.progress.snapshot())
            each.changed = False
        if self.commands.is_changed:
            self.commands.is_changed = False
            self._tick.offsets[None] = self.commands.committable
            state[COMMANDS_KEY] = encode_map(self.commands.snapshot())
        for id_ in self.changes.changed:
            state[change_key(id_)] = self.changes.stored(id_)
        self.changes.changed.clear()

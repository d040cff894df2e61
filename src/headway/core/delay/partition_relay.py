"""The relay of one partition: what comes out of the delay lines, and where it goes next.

A state machine without a clock, as the engine is. It stands for one partition number of all of a scheduler's topics,
since the records, the commands and the stored state of a schedule share it. A driver fetches for each line that is not
`full`, gives what came to `receive`, and carries out what `take` returns, all in one transaction. What it stores is all
that a successor needs.

Invariants:
- Nothing is delivered before it is due, and of a schedule's copies only the live one.
- A record that left its line is exactly one of: waiting in memory, part of a tick, done. What a tick moves is expected
  in its next line until it was fetched there.
- Of records with the same due time the one that was scheduled first is delivered first, unless what is overdue does
  not fit in memory. So nothing is delivered that may be due after a record which a tick has moved and which did not
  come by again.
- Whether a schedule was delivered is said only when every record due so early has come by.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

import msgspec

from headway.core.delay.changes import Command, Settled
from headway.core.delay.due_queue import DueQueue, Held
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.line_window import LEAVES_WITHIN, Fetched, LineWindow, bound_behind
from headway.core.delay.recent_deliveries import RecentDeliveries
from headway.core.delay.recurrence import Recurrence
from headway.core.delay.relay_state import (
    COMMANDS_KEY,
    MEMORY_KEY,
    TOPICS_KEY,
    StoredState,
    change_key,
    encode_map,
    line_key,
)
from headway.core.delay.relay_tick import Answer, Refusal, Search, Tick, Write
from headway.core.delay.schedule import Schedule
from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.progress import Progress
from headway.errors import ScheduleError

STORED_WITHIN = 60_000
"""How many milliseconds after it was scheduled or moved a record may still be on its way into a line, at most."""

# Of a line's records that wait in memory each is a gap in its offset map, if they are due in quite another order than
# they came: which then has some kilobytes, and is stored with each tick.
_MOST_HELD_OF_A_LINE = 20_000

# How many records leave their lines, about a millisecond's worth, while others are due.
_LEAVE_BESIDE = 200
_FORGET_AT_ONCE = 2_000  # changes, each of which is a record that is written


class _Moved(NamedTuple):
    """A tick's bounds of what it moves, by line, and until when they count."""

    bounds: dict[int, int]
    until: int


class PartitionRelay:
    """Decides about all schedules of one partition.

    Args:
        ladder: The lines to which records go.
        lines: All lines that there are, those that are only read out among them.
        stored: What earlier ticks have stored.
        room: How many bytes of records may wait in memory, and as many again in the windows of all lines.
        topics: Kafka's ids of the lines' topics and of the commands', by the key of what is stored of each.
        ends: Where their logs end, by the same keys, as far as known.

    `unreadable` has a sentence for each key of what is stored that could not be read, and is taken not to be there.
    """

    def __init__(
        self,
        ladder: Ladder,
        lines: Collection[int],
        stored: Mapping[str, bytes],
        room: int,
        topics: Mapping[str, str],
        ends: Mapping[str, int] | None = None,
    ) -> None:
        self._ladder = ladder
        self._room = room
        state = StoredState(stored, topics, ends)
        own = LineWindow(MEMORY, OffsetMap(state.mark.offset), room // 4)
        self._shared = room // 2
        each = room // 4 // max(1, len(lines))
        others = {line: LineWindow(line, state.line(line), each) for line in lines if line != MEMORY}
        self.unreadable = state.unreadable
        self._lines = {MEMORY: own} | others
        self._waiting = DueQueue(state.mark, own)
        self._changes = state.changes
        self._commands = Progress(state.commands)
        self._commands_changed = False
        # Commands that cannot be settled yet, by the id of their schedule.
        self._undecided: dict[str, list[tuple[int, Command]]] = {}
        self._undecided_dues: list[tuple[int, str]] = []
        self._recent = RecentDeliveries()
        # A line that comes back after its topic was deleted begins anew.
        gone = state.other_lines({*lines, *ladder.lines})
        self._tick = Tick(
            state=dict.fromkeys([*map(line_key, gone), *state.of_topics_before, *state.unreadable_progress])
        )
        if state.topics:
            self._tick.state[TOPICS_KEY] = state.topics
        self._size = 0  # of its records in bytes
        self._unwritten: deque[_Moved] = deque()  # of ticks that are carried out, in their order
        self.searches: list[Search] = []

    # What is fetched

    def start(self, line: int) -> int:
        """The offset from which to read a line."""
        return self._lines[line].progress.committable

    @property
    def commands_start(self) -> int:
        """The offset from which to read the commands."""
        return self._commands.committable

    def receive(self, line: int, records: Sequence[Fetched]) -> None:
        """Take in what was fetched of a line, in the order of its log."""
        self._lines[line].receive(records)

    def reached_end(self, line: int, offset: int) -> None:
        """Note that all that the log of a line holds, up to this offset, was fetched."""
        self._lines[line].reached_end(offset)

    def written(self, ends: Mapping[int, int], now: int) -> None:
        """Note that Kafka has what the first tick with `moved` has moved, of those of which it was not said yet.

        `ends` says of each line the offset behind the last of it. In a transaction it is not seen before the commit.
        """
        for line, bound in self._unwritten.popleft().bounds.items():
            if line in self._lines:
                self._lines[line].expect(bound, ends[line], now + STORED_WITHIN)

    def full(self) -> set[int]:
        """The lines of which to fetch nothing more for now."""
        spare = self._shared - sum(each.bytes for line, each in self._lines.items() if line != MEMORY)
        return {line for line, each in self._lines.items() if not each.wants(0 if line == MEMORY else spare)}

    def command(self, offset: int, command: Command | None, now: int) -> None:
        """Take in a command; None stands for one that cannot be read, so that nobody knows whom to answer."""
        for fresh in self._commands.receive((offset,)):
            self._commands_changed = True
            if command is None:
                self._commands.complete(fresh)
            else:
                self._settle(fresh, command, now)

    def found(self, search: Search, fetched: Fetched | None, now: int) -> None:
        """What came of a search: the schedule's record as it lies in its line, or None."""
        if fetched and isinstance(fetched.schedule, Schedule):
            self._go_before(fetched, fetched.schedule, now)
        change = self._changes.get(search.id)
        if change is None or (change.due is not None and change.live < change.generation):
            self._answer(search.id, Settled.UNKNOWN)
        else:
            self._answer(search.id, Settled.CANCELLED if change.due is None else Settled.RESCHEDULED)

    def _go_before(self, fetched: Fetched, schedule: Schedule, now: int) -> None:
        """Write a copy that comes by in time; the one in the line is not live any more."""
        change = self._changes.get(schedule.id)
        if change and change.due is not None and change.live <= schedule.generation < change.generation:
            self._changes.goes_live(schedule.id)
            self._move(fetched, schedule.again(change.due, change.generation), now)

    # What there is to do

    def take(self, now: int, limit: int, most_bytes: int, stores: bool = True) -> Tick:
        """What can be done now: up to about so many records and bytes; empty if there is nothing.

        Without `stores` what is done is stored with a later tick, or with what `unstored` gives; but what is answered
        is stored with the answer.
        """
        self._size = 0
        self._expect_no_longer(now)
        is_time = any(self._at_the_latest(line, now) <= now for line in self._lines.values())
        self._deliver(now, limit, most_bytes)
        # What is due does not wait until all has left its line that may.
        may_leave = max(_LEAVE_BESIDE, len(self._tick.writes)) if self._tick.writes else limit
        while is_time and may_leave > 0 and len(self._tick.writes) < limit and self._size < most_bytes:
            left = self._let_leave(now, min(may_leave, limit - len(self._tick.writes)), most_bytes)
            may_leave -= left
            is_time = left > 0
            self._deliver(now, limit, most_bytes)
        self._settle_undecided(now)
        self._forget_changes(now)
        if stores or self._tick.answers:
            self._store()
        return self._hand_out(now)

    def unstored(self, now: int) -> Tick:
        """What earlier ticks have left to be stored, and nothing else."""
        self._store()
        return self._hand_out(now)

    def _hand_out(self, now: int) -> Tick:
        tick, self._tick = self._tick, Tick()
        if tick.moved:
            self._unwritten.append(_Moved(tick.moved, now + STORED_WITHIN))
        return tick

    def next_wake(self, now: int) -> float:
        """When there is something to do though nothing comes: in the brokers' time, infinite for never."""
        due = self._waiting.first_due
        times = [self._at_the_latest(line, now) for line in self._lines.values()]
        if due is not None and self._waiting.is_restored and (due <= self._frontier or self._is_full):
            times.append(due)
        passing = [self._undecided_dues[0][0]] if self._undecided_dues else []
        passing += [expiry] if (expiry := self._changes.next_expiry()) is not None else []
        times += [time + STORED_WITHIN + 1 for time in passing if time + STORED_WITHIN >= now]
        times += [each.expects_until + 1 for each in self._lines.values()]
        return min(times, default=math.inf)

    @property
    def held(self) -> int:
        """How many records wait in memory."""
        return len(self._waiting)

    def committable(self) -> dict[int, int]:
        """Of each line the offset below which all was dealt with, if not yet stored as that."""
        return {line: each.progress.committable for line, each in self._lines.items()}

    # Records that leave their lines

    @property
    def _is_full(self) -> bool:
        return self._waiting.bytes >= self._room and self._waiting.is_restored

    def _is_stuck(self, line: LineWindow) -> bool:
        return line.line == MEMORY and self._is_full

    def _at_the_latest(self, line: LineWindow, now: int) -> float:
        """When the first record of a line has to leave."""
        if self._is_stuck(line):
            return math.inf
        return line.leaves_at(now) + (0 if line.line == MEMORY else LEAVES_WITHIN)

    def _let_leave(self, now: int, most: int, most_bytes: int) -> int:
        """Deal with records of the line whose first was to leave before all others, while that is so; with how many.

        In this order, lines that are behind give what is overdue nearly as if they were not.
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
        """How many bytes of a line's records may come to wait in memory."""
        return self._room - self._waiting.bytes if line.line == MEMORY and self._waiting.is_restored else math.inf

    def _leave(self, line: LineWindow, fetched: Fetched, now: int) -> None:
        schedule = fetched.schedule
        if isinstance(schedule, ScheduleError):
            line.complete(fetched.offset)
            self._size += fetched.size
            self._tick.refusals.append(Refusal(fetched.record, schedule))
            return
        if line.line == MEMORY and self._waiting.was_delivered(schedule, fetched):
            line.complete(fetched.offset)
            return
        wanted = self._changed(schedule)
        if wanted is schedule and self._holds(line, schedule, now):
            self._waiting.add(Held(schedule, fetched, line))
            return
        line.complete(fetched.offset)
        if wanted:
            self._move(fetched, wanted, now)

    def _changed(self, schedule: Schedule) -> Schedule | None:
        """The schedule as it is to be by now, which is the same if nobody has changed it; None if it was cancelled."""
        change = self._changes.get(schedule.id)
        if change is None and schedule.id not in self._undecided:
            return schedule
        if change and schedule.generation < change.live:
            return None
        self._settle_before(schedule)
        change = self._changes.get(schedule.id)
        if change is None or schedule.generation == change.generation:
            return schedule
        if change.due is None:
            return None
        self._changes.goes_live(schedule.id)
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
        # Changed to a time that has passed, as what recurs late is, it would keep all that is due since waiting.
        if schedule.due > now or schedule is fetched.schedule:
            bound = bound_behind(line, schedule.due, now)
            self._tick.moved[line] = min(bound, self._tick.moved.get(line, bound))

    def _expect_no_longer(self, now: int) -> None:
        """Give up what was moved and did not come by again in all the time that its way may take."""
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
        """A time up to which nothing is due that has not left its line, or was moved and did not come by again."""
        moved = chain(self._tick.moved.values(), *(each.bounds.values() for each in self._unwritten))
        return min(chain((each.bound for each in self._lines.values()), moved), default=math.inf)

    def _deliver(self, now: int, limit: int, most_bytes: int) -> None:
        if not self._waiting.is_restored:
            return
        writes, frontier = self._tick.writes, min(self._frontier, now)
        while len(writes) < limit and self._size < most_bytes:
            held = self._waiting.take(now if self._is_full else frontier)
            if held is None:
                break
            schedule, fetched = held.schedule, held.fetched
            if schedule.recurrence is None:
                self._write(fetched, schedule, None)
                self._recent.add(schedule.id)
            else:
                self._fire(fetched, schedule, schedule.recurrence, now)

    def _fire(self, fetched: Fetched, schedule: Schedule, recurrence: Recurrence, now: int) -> None:
        change = self._changes.get(schedule.id)
        if change and (change.generation, change.due) != (schedule.generation, schedule.due):
            return  # a second copy: with low latency a relay may die between writing the first and storing that it did
        if recurrence.fires(schedule.due, now):
            self._write(fetched, schedule, None)
        following = recurrence.following(schedule.due, now)
        if following is None:
            self._recent.add(schedule.id)
        else:
            self._move(fetched, schedule.again(following, schedule.generation), now)
            self._changes.recurs(schedule.id, schedule.generation, following)

    # Commands

    def _settle(self, offset: int, command: Command, now: int) -> None:
        change = self._changes.get(command.id)
        if change and change.due is None:
            self._decide(offset, command, Settled.CANCELLED)
        elif held := self._waiting.get(command.id):
            self._waiting.remove(held)
            self._change_held(held, command, now)
            self._decide(offset, command, _outcome(command))
        elif command.id in self._recent:  # whatever a clock says that was put back
            self._decide(offset, command, Settled.DELIVERED)
        elif (due := change.placed if change else command.due) > now:
            self._change_unseen(offset, command, due)
        elif due < self._passed(now):
            self._decide(offset, command, Settled.DELIVERED)
        else:
            self._undecided.setdefault(command.id, []).append((offset, command))
            heappush(self._undecided_dues, (due, command.id))

    def _change_held(self, held: Held, command: Command, now: int) -> None:
        change = self._changes.change(command.id, held.schedule.due, command.to)
        if command.to is not None:
            self._move(held.fetched, held.schedule.again(command.to, change.generation), now)
            self._changes.goes_live(command.id)

    def _change_unseen(self, offset: int, command: Command, due: int) -> None:
        """The record is in a line: it comes by before it is due. But not before it is to be from now on, perhaps."""
        change = self._changes.change(command.id, due, command.to)
        # A time waits behind another that is undecided: that may be applied once more, and would win.
        if command.to is None or (command.to >= due and command.id not in self._undecided):
            self._decide(offset, command, _outcome(command))
            return
        self._undecided.setdefault(command.id, []).append((offset, command))
        if command.to < due:
            self.searches.append(Search(command.id, due, command.at, change.live))

    def _settle_before(self, schedule: Schedule) -> None:
        """A record comes by on which commands have waited: it was not delivered."""
        for offset, command in self._undecided.pop(schedule.id, ()):
            change = self._changes.get(schedule.id)
            if change and change.due is None:
                self._decide(offset, command, Settled.CANCELLED)
            else:
                self._changes.change(command.id, schedule.due, command.to)
                self._decide(offset, command, _outcome(command))

    def _settle_undecided(self, now: int) -> None:
        """Those whose schedule has not come by, and would have."""
        passed = self._passed(now)
        while self._undecided_dues and self._undecided_dues[0][0] < passed:
            _, id_ = heappop(self._undecided_dues)
            self._answer(id_, Settled.DELIVERED)

    def _answer(self, id_: str, settled: Settled) -> None:
        for offset, command in self._undecided.pop(id_, ()):
            self._decide(offset, command, settled)

    def _decide(self, offset: int, command: Command, settled: Settled) -> None:
        self._commands.complete(offset)
        self._commands_changed = True
        self._tick.answers.append(Answer(command, settled))

    def _passed(self, now: int) -> float:
        """All records due before this time have come by and wait no more, even if they were long on their way."""
        own = self._lines[MEMORY]
        if not (self._waiting.is_restored and own.head is None and own.ended):
            return -math.inf
        first = self._waiting.first_due
        return min(self._frontier, now, math.inf if first is None else first) - STORED_WITHIN

    def _forget_changes(self, now: int) -> None:
        """Those of which no copy can come any more, nor after a crash: what was cancelled is then as if delivered."""
        passed = self._passed(now)
        if self._changes.forget(passed, _FORGET_AT_ONCE):
            self._waiting.passed(int(passed))
            self._lines[MEMORY].changed = True

    # What is stored

    def _store(self) -> None:
        state = self._tick.state
        for line, each in self._lines.items():
            if each.changed:
                self._tick.offsets[line] = each.progress.committable
            if each.changed and line == MEMORY:
                state[MEMORY_KEY] = msgspec.json.encode(self._waiting.mark())
            elif each.changed:
                state[line_key(line)] = encode_map(each.progress.snapshot())
            each.changed = False
        if self._commands_changed:
            self._commands_changed = False
            self._tick.offsets[None] = self._commands.committable
            state[COMMANDS_KEY] = encode_map(self._commands.snapshot())
        for id_ in self._changes.changed:
            state[change_key(id_)] = self._changes.stored(id_)
        self._changes.changed.clear()


def _outcome(command: Command) -> Settled:
    return Settled.CANCELLED if command.to is None else Settled.RESCHEDULED

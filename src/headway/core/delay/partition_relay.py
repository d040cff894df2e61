"""The relay for one partition number: decides where the records that leave the delay topics go next.

Like the engine, the relay is a state machine without a clock. It is responsible for one partition number in all topics
of a scheduler, because the records, commands and stored state of a schedule are in partitions with the same number. A
driver fetches from each delay topic that is not `full`, and passes the records to `receive`. The driver carries out
each tick that `take` returns in one transaction. A relay that takes over the partition later needs only the stored
state.

Invariants:
- No record is delivered before it is due. Of a schedule's copies, only the live one is delivered.
- A record that has left its delay topic is in exactly one state: waiting in memory, part of a tick, or done. A record
  that a tick has moved is expected in its next delay topic until it is fetched there.
- Of records with the same due time, the one scheduled first is delivered first, unless the overdue records do not fit
  in memory. So while a moved record has not been fetched again, no record that may be due after it is delivered.
- A schedule is reported as delivered only when every record due at that time or earlier has left its delay topic.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from headway.core.delay.changes import Command
from headway.core.delay.command_ledger import CommandLedger, PutRecord, RecentDeliveries
from headway.core.delay.delay_topic_window import LEAVES_WITHIN, DelayTopicWindow, Fetched, bound_behind
from headway.core.delay.due_queue import DueQueue, Held
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.recurrence import Recurrence, UnknownZoneError
from headway.core.delay.relay_state import (
    COMMANDS_KEY,
    MEMORY_KEY,
    TOPICS_KEY,
    StoredState,
    change_key,
    delay_topic_key,
    encode_map,
)
from headway.core.delay.relay_tick import RefusedRecord, RelayTick, Search, Write
from headway.core.delay.schedule import CHOSEN, STORED_WITHIN, EmptyRecordError, Schedule
from headway.core.offsets.offset_map import OffsetMap
from headway.errors import ScheduleError

# The maximum number of records of one delay topic that wait in memory. If records are not due in the order of their
# arrival, each waiting record is a gap in the offset map of its delay topic. With this many records, the map takes some
# kilobytes, which are stored with each tick.
_MOST_HELD_OF_A_DELAY_TOPIC = 20_000

# How many records may leave their delay topics in a tick that also writes due records. If the tick already has more
# writes than this, as many records may leave as the tick has writes. Handling 200 records takes about a millisecond.
LEAVE_BESIDE = 200
# How long a schedule with an unknown time zone is postponed, in milliseconds. By then, a relay that has data about the
# zone may have taken over the partition.
_LOOK_FOR_ZONE_AGAIN_AFTER = 60_000
_FORGET_AT_ONCE = 2_000  # the maximum number of changes to forget in one tick; each change costs one written record


class _MovedBounds(NamedTuple):
    """For each delay topic, a time before the due time of every record that a tick has moved there.

    The bounds apply until the time `until`.
    """

    bounds: dict[int, int]
    until: int


class HeldRecords(NamedTuple):
    """How many records of a delay topic are held: fetched, and neither delivered nor moved.

    `position` is the next offset to fetch.
    """

    records: int
    position: int


class PartitionRelay:
    """Decides what happens to all schedules of one partition number.

    Args:
        ladder: The delays of the topics that records are moved to.
        delay_topics: All existing delay topics, including those that are only being emptied.
        stored: The state that earlier ticks have stored.
        memory: How many bytes of records may wait in memory. The windows of all delay topics together may hold the same
            amount in addition.
        topics: Kafka's ids of the delay topics and of the topic for commands, by the keys of their stored progress.
        ends: The end offsets of the partitions of these topics, by the same keys, as far as the offsets are known.
        unread: Delay topics that are not read now, but whose stored progress is kept.

    `unreadable` has a sentence for each stored key whose value could not be read and was ignored.
    """

    def __init__(
        self,
        ladder: Ladder,
        delay_topics: Collection[int],
        stored: Mapping[str, bytes],
        memory: int,
        topics: Mapping[str, str],
        ends: Mapping[str, int] | None = None,
        unread: Collection[int] = (),
    ) -> None:
        self._ladder = ladder
        self._memory = memory
        state = StoredState(stored, topics, ends)
        own = DelayTopicWindow(MEMORY, OffsetMap(state.mark.offset), memory // 4)
        self._shared = memory // 2
        each = memory // 4 // max(1, len(delay_topics))
        others = {
            delay_topic: DelayTopicWindow(delay_topic, state.delay_topic(delay_topic), each)
            for delay_topic in delay_topics
            if delay_topic != MEMORY
        }
        self.unreadable = state.unreadable
        self._windows = {MEMORY: own} | others
        self.waiting = DueQueue(state.mark, own)
        """The records that wait in memory."""
        self.changes = state.changes
        self.recent = RecentDeliveries()
        self.commands = CommandLedger(state.commands, self.changes, self.waiting, self.recent, self._move, self.passed)
        # Drop the progress in delay topics that were deleted. If such a topic is created again, it is read from the
        # beginning.
        gone = state.other_delay_topics({*delay_topics, *ladder.delays, *unread})
        self._tick = RelayTick(
            state=dict.fromkeys([*map(delay_topic_key, gone), *state.of_topics_before, *state.unreadable_progress])
        )
        if state.topics:
            self._tick.state[TOPICS_KEY] = state.topics
        self._size = 0  # the total size in bytes of the tick's records
        # The bounds of the ticks that were handed out but not yet reported with `written`, in the order of the ticks.
        self._unwritten: deque[_MovedBounds] = deque()
        self.searches = self.commands.searches

    # Fetched records and commands

    def start(self, delay_topic: int) -> int:
        """Return the offset from which to read a delay topic."""
        return self._windows[delay_topic].progress.committable

    @property
    def commands_start(self) -> int:
        """The offset from which to read the commands."""
        return self.commands.committable

    def receive(self, delay_topic: int, records: Sequence[Fetched]) -> None:
        """Add records that were fetched from a delay topic, in the order of its log."""
        self._windows[delay_topic].receive(records)

    def reached_end(self, delay_topic: int, offset: int) -> None:
        """Record that all records of a delay topic below this offset, the end of its log, have been fetched."""
        self._windows[delay_topic].reached_end(offset)

    def written(self, ends: Mapping[int, int], now: int) -> None:
        """Record that the moved records of a tick were written, perhaps in an open transaction.

        The driver calls this once for each tick with `moved`, in the order of the ticks. `ends` has, for each delay
        topic, the offset after the last of these records.
        """
        for delay_topic, bound in self._unwritten.popleft().bounds.items():
            if delay_topic in self._windows:
                self._windows[delay_topic].expect(bound, ends[delay_topic], now + STORED_WITHIN)

    def full(self) -> set[int]:
        """Return the delay topics from which no records should be fetched now."""
        spare = self._shared - sum(each.bytes for delay_topic, each in self._windows.items() if delay_topic != MEMORY)
        return {
            delay_topic
            for delay_topic, each in self._windows.items()
            if not each.wants(0 if delay_topic == MEMORY else spare)
        }

    def command(self, offset: int, command: Command | PutRecord | None, now: int) -> None:
        """Handle the command at an offset. A command that cannot be read is None and gets no answer."""
        self.commands.receive(offset, command, now)

    def found(self, search: Search, fetched: Fetched | None, now: int) -> None:
        """Handle the result of a search: the schedule's record as it is stored in its delay topic, or None."""
        self.commands.found(search, fetched, now)

    # Ticks

    def take(self, now: int, limit: int, most_bytes: int, stores: bool = True) -> RelayTick:
        """Return the tick to carry out now, with at most about `limit` records and `most_bytes` bytes.

        The tick can be empty. With `stores=False`, the tick does not store the progress, which is then stored by a
        later tick or by the tick that `unstored` returns. But a tick with answers always stores the progress that the
        answers are based on.
        """
        self._size = 0
        self._expect_no_longer(now)
        is_time = any(self._at_the_latest(window, now) <= now for window in self._windows.values())
        self._deliver(now, limit, most_bytes)
        # Due records must not wait until all records that may leave their delay topics have left.
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
        """Return a tick that does nothing except store the state that earlier ticks have not stored."""
        self._store()
        return self._hand_out(now)

    def _hand_out(self, now: int) -> RelayTick:
        tick, self._tick = self._tick, RelayTick()
        tick.answers = self.commands.take_answers()
        tick.ended_early, self.changes.ended_early = self.changes.ended_early, 0
        if tick.moved:
            self._unwritten.append(_MovedBounds(tick.moved, now + STORED_WITHIN))
        return tick

    def next_wake(self, now: int) -> float:
        """Return the brokers' time at which to call `take` again if no record arrives; infinite if it is not needed."""
        due = self.waiting.first_due
        times = [self._at_the_latest(window, now) for window in self._windows.values()]
        if due is not None and self.waiting.is_restored and (due <= self._frontier or self._is_full):
            times.append(due)
        passing = (self.commands.first_due, self.changes.next_expiry())
        times += [time + STORED_WITHIN + 1 for time in passing if time is not None and time + STORED_WITHIN >= now]
        times += [each.expects_until + 1 for each in self._windows.values()] + [self.commands.search_at]
        return min(times, default=math.inf)

    @property
    def held(self) -> int:
        """The number of records that wait in memory."""
        return len(self.waiting)

    @property
    def held_bytes(self) -> int:
        """The size of all fetched records that have not been delivered or moved, in bytes."""
        return self.waiting.bytes + sum(each.bytes for each in self._windows.values())

    def held_records(self) -> dict[int, HeldRecords]:
        """Return how many records of each delay topic are held."""
        return {delay_topic: HeldRecords(each.held, each.position) for delay_topic, each in self._windows.items()}

    def earliest_due(self) -> int | None:
        """Return the earliest due time of the records that are delivered or leave next, or None if there is none."""
        heads = [each.head.schedule for each in self._windows.values() if each.head]
        dues = [each.due for each in heads if isinstance(each, Schedule)]
        first = self.waiting.first_due
        return min(dues if first is None else [first, *dues], default=None)

    def committable(self) -> dict[int, int]:
        """Return, for each delay topic, the offset below which all records are done.

        This progress might not be stored yet.
        """
        return {delay_topic: each.progress.committable for delay_topic, each in self._windows.items()}

    # Records that leave their delay topics

    @property
    def _is_full(self) -> bool:
        return self.waiting.bytes >= self._memory and self.waiting.is_restored

    def _is_stuck(self, window: DelayTopicWindow) -> bool:
        return window.delay_topic == MEMORY and self._is_full

    def _at_the_latest(self, window: DelayTopicWindow, now: int) -> float:
        """Return the time by which the first record of a delay topic must have left.

        Returns infinity if the record does not have to leave.
        """
        if self._is_stuck(window):
            return math.inf
        return window.leaves_at(now) + (0 if window.delay_topic == MEMORY else LEAVES_WITHIN)

    def _let_leave(self, now: int, most: int, most_bytes: int) -> int:
        """Let records leave the delay topic whose first record may leave earliest, and return their number.

        Stop when the first record of another topic may leave earlier. This way, overdue records leave in nearly the
        same order whether the relay is behind or not.
        """
        leaving = sorted(
            (each.leaves_at(now), delay_topic)
            for delay_topic, each in self._windows.items()
            if not self._is_stuck(each)
        )
        if not leaving or leaving[0][0] > now:
            return 0
        window = self._windows[leaving[0][1]]
        until = min(leaving[1][0], now) if len(leaving) > 1 else now
        before = window.progress.end
        for fetched in window.leave(until, now, most, min(most_bytes - self._size, self._spare(window))):
            self._leave(window, fetched, now)
        return window.progress.end - before

    def _spare(self, window: DelayTopicWindow) -> float:
        """Return how many bytes of a delay topic's records still fit in memory; infinite if there is no limit."""
        return (
            self._memory - self.waiting.bytes if window.delay_topic == MEMORY and self.waiting.is_restored else math.inf
        )

    def _leave(self, window: DelayTopicWindow, fetched: Fetched, now: int) -> None:
        schedule = fetched.schedule
        if isinstance(schedule, ScheduleError):
            window.complete(fetched.offset)
            is_empty = isinstance(schedule, EmptyRecordError)
            if not is_empty and (window.delay_topic != MEMORY or not self.waiting.was_refused(fetched)):
                self._size += fetched.size
                self._tick.refusals.append(RefusedRecord(fetched.record, schedule))
            return
        if window.delay_topic == MEMORY and self.waiting.was_delivered(schedule, fetched):
            window.complete(fetched.offset)
            return
        wanted = self._changed(schedule)
        if wanted is schedule and self._holds(window, schedule, now):
            self.waiting.add(Held(schedule, fetched, window))
            return
        window.complete(fetched.offset)
        if wanted:
            self._move(fetched, wanted, now)

    def _changed(self, schedule: Schedule) -> Schedule | None:
        """Apply the remembered changes to the schedule of a record that leaves its delay topic.

        Returns the same object if nothing has changed, and None if this copy must not be delivered.
        """
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

    def _holds(self, window: DelayTopicWindow, schedule: Schedule, now: int) -> bool:
        if window.delay_topic == MEMORY:
            return True
        return (
            self._ladder.delay_for(schedule.due - now) == MEMORY
            and window.holds < _MOST_HELD_OF_A_DELAY_TOPIC
            and not self._is_full
        )

    def _move(self, fetched: Fetched, schedule: Schedule, now: int) -> None:
        delay_topic = self._ladder.delay_for(schedule.due - now)
        self._write(fetched, schedule, delay_topic)
        if schedule is not fetched.schedule:
            self._tick.delays.append(schedule.due - now)
        # A schedule whose new due time is in the past, such as a late recurring schedule, must not delay other
        # schedules.
        if schedule.due > now or schedule is fetched.schedule:
            bound = bound_behind(delay_topic, schedule.due, now)
            self._tick.moved[delay_topic] = min(bound, self._tick.moved.get(delay_topic, bound))

    def _expect_no_longer(self, now: int) -> None:
        """Stop waiting for moved records that were not fetched again within the longest time that a move can take."""
        for moved in self._unwritten:
            if moved.until < now:
                moved.bounds.clear()
        for window in self._windows.values():
            window.expect_no_longer(now)

    def _write(self, fetched: Fetched, schedule: Schedule, delay_topic: int | None) -> None:
        self._size += fetched.size
        self._tick.writes.append(Write(fetched.record, schedule, delay_topic))

    # Deliveries

    @property
    def _frontier(self) -> float:
        """A time before the due time of every record that is still in a delay topic.

        Records that were moved, and have not been fetched again, are included.
        """
        moved = chain(self._tick.moved.values(), *(each.bounds.values() for each in self._unwritten))
        return min(chain((each.bound for each in self._windows.values()), moved), default=math.inf)

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
                if not schedule.id.startswith(CHOSEN) or self.changes.ends(schedule.id, schedule.generation):
                    self._write(fetched, schedule, None)
            else:
                self._fire(fetched, schedule, schedule.recurrence, now)

    def _fire(self, fetched: Fetched, schedule: Schedule, recurrence: Recurrence, now: int) -> None:
        change = self.changes.get(schedule.id)
        if change and (change.generation, change.due) != (schedule.generation, schedule.due):
            # This is a second copy of the record. In the low-latency mode, a relay can die after it has written a copy
            # and before it has stored its progress.
            return
        fired = recurrence.fired
        if fired is None and recurrence.fires(schedule.due, now):
            self._write(fetched, schedule, None)
        try:
            # The misfire policy now handles times that were missed because no relay had data about the zone.
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

    # Records that have left their delay topics

    def passed(self, now: int) -> float:
        """Return a time before which all due records have left their delay topics and memory.

        Records that are stored late have left, too: the time allows for the longest time that storing can take.
        """
        own = self._windows[MEMORY]
        if not (self.waiting.is_restored and own.head is None and own.ended):
            return -math.inf
        first = self.waiting.first_due
        return min(self._frontier, now, math.inf if first is None else first) - STORED_WITHIN

    def _forget_changes(self, now: int) -> None:
        """Forget changes of schedules that have no copy left, not even after a crash.

        Once the cancellation of a schedule is forgotten, a command for this schedule gets the answer that the schedule
        was delivered.
        """
        passed = self.passed(now)
        if self.changes.forget(passed, _FORGET_AT_ONCE):
            self.waiting.passed(int(passed))
            self._windows[MEMORY].changed = True

    # Stored state

    def _store(self) -> None:
        state = self._tick.state
        for delay_topic, each in self._windows.items():
            if each.changed:
                self._tick.offsets[delay_topic] = each.progress.committable
            if each.changed and delay_topic == MEMORY:
                state[MEMORY_KEY] = msgspec.json.encode(self.waiting.mark())
            elif each.changed:
                state[delay_topic_key(delay_topic)] = encode_map(each.progress.snapshot())
            each.changed = False
        if self.commands.is_changed:
            self.commands.is_changed = False
            self._tick.offsets[None] = self.commands.committable
            state[COMMANDS_KEY] = encode_map(self.commands.snapshot())
        for id_ in self.changes.changed:
            state[change_key(id_)] = self.changes.stored(id_)
        self.changes.changed.clear()

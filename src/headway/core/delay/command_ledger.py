"""Carries out and answers the commands of one partition, and keeps the commands that cannot be answered yet.

Invariants:
- A command is done when it is answered. After a restart, commands that are not done are read again.
- Commands for an id that the user chose take effect at once and in order, because every schedule with such an id is
  remembered.
- A command for any other schedule whose record the relay has not seen waits until this record leaves its delay topic,
  a search for the record has ended, or the record is overdue.
"""

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from headway.core.delay.changes import Change, Changes, Command, Put, Settled
from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.due_queue import DueQueue, Held
from headway.core.delay.relay_tick import Answer, Search
from headway.core.delay.schedule import CHOSEN, Schedule
from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.progress import Progress

# How long to wait before a search that found nothing is repeated, in milliseconds. The first search can run before the
# record is in its delay topic: a relay may be moving the record, its transaction may still be open, or the topic may be
# so new that some brokers do not have it yet.
_SEARCH_AGAIN_AFTER = 500
_MOST_SEARCHES = 10

_REMEMBERED_DELIVERIES = 20_000


class PutRecord(NamedTuple):
    """A command to schedule a record under an id that the caller chose, with the record itself."""

    put: Put
    fetched: Fetched
    schedule: Schedule


class RecentDeliveries:
    """The ids of the schedules that were delivered last, so that commands for these schedules are answered at once.

    At least the latest `_REMEMBERED_DELIVERIES` ids are kept, and at most twice as many.
    """

    def __init__(self) -> None:
        self._latest: set[str] = set()
        self._before: set[str] = set()

    def add(self, id_: str) -> None:
        """Record that a schedule was delivered and will not fire again."""
        self._latest.add(id_)
        if len(self._latest) > _REMEMBERED_DELIVERIES:
            self._before, self._latest = self._latest, set()

    def __contains__(self, id_: str) -> bool:
        return id_ in self._latest or id_ in self._before


class CommandLedger:
    """The received commands of one partition, the progress in answering them, and the answers.

    Args:
        stored: The progress that earlier ticks have stored.
        changes: The changes of the partition's schedules.
        waiting: The records that wait in memory.
        recent: The schedules that were delivered recently.
        move: A function that writes a record to the delay topic for its new due time.
        passed: A function that returns a time before which all due records have left their delay topics and memory.
    """

    def __init__(
        self,
        stored: OffsetMap,
        changes: Changes,
        waiting: DueQueue,
        recent: RecentDeliveries,
        move: Callable[[Fetched, Schedule, int], None],
        passed: Callable[[int], float],
    ) -> None:
        self._progress = Progress(stored)
        self._changes = changes
        self._waiting = waiting
        self._recent = recent
        self._move = move
        self._passed = passed
        self._dues: list[tuple[int, str]] = []  # a heap of the due times and ids of schedules with undecided commands
        self.undecided: dict[str, list[tuple[int, Command]]] = {}
        """The commands that cannot be answered yet, with their offsets, by the id of their schedule."""
        self.searches: list[Search] = []
        """The schedules to search for in the delay topics. The driver clears the list."""
        self._searches_again: deque[tuple[int, Search]] = deque()
        self.answers: list[Answer] = []
        """The answers since the last call of `take_answers`."""
        self.is_changed = False  # whether the progress has changed since it was last stored

    @property
    def committable(self) -> int:
        """The offset below which every command has been answered."""
        return self._progress.committable

    @property
    def first_due(self) -> int | None:
        """The earliest due time among the schedules that commands wait for, or None if no command waits."""
        return self._dues[0][0] if self._dues else None

    @property
    def search_at(self) -> float:
        """When to repeat the next search that found nothing; infinite if there is no search to repeat."""
        return self._searches_again[0][0] if self._searches_again else math.inf

    def snapshot(self) -> OffsetMap:
        """Return the progress to store."""
        return self._progress.snapshot()

    def take_answers(self) -> list[Answer]:
        """Remove and return the answers that have been given since the last call."""
        answers, self.answers = self.answers, []
        return answers

    def receive(self, offset: int, command: Command | PutRecord | None, now: int) -> None:
        """Carry out the command at an offset, or keep the command for later.

        A command that cannot be read is None and gets no answer.
        """
        for fresh in self._progress.receive((offset,)):
            self.is_changed = True
            if command is None:
                self._progress.complete(fresh)
            elif isinstance(command, PutRecord):
                self._put(fresh, command, now)
            elif command.id.startswith(CHOSEN):
                self._take_own(fresh, command, now)
            else:
                self._take(fresh, command, now)

    def _put(self, offset: int, command: PutRecord, now: int) -> None:
        """Schedule a record under an id that the caller chose, unless a pending schedule must not be replaced."""
        put, fetched, schedule = command
        change = self._changes.get(schedule.id)
        if change and change.due is not None and put.if_pending != "replace":
            self._answer(offset, put, Settled.REFUSED)
            return
        # Undecided reschedules of the earlier schedule have succeeded, because they arrived before this schedule
        # replaced it.
        self._answer_all(schedule.id, Settled.RESCHEDULED)
        if held := self._waiting.get(schedule.id):
            self._waiting.remove(held)
        change = self._changes.put(schedule.id, schedule.due, schedule.at, now)
        self._move(fetched, schedule.again(schedule.due, change.generation), now)
        self._answer(offset, put, Settled.SCHEDULED)

    def _take_own(self, offset: int, command: Command, now: int) -> None:
        change = self._changes.get(command.id)
        if change is None:
            self._answer(offset, command, Settled.UNKNOWN)
        elif change.due is None:
            self._answer(offset, command, _end_of(change))
        elif held := self._waiting.get(command.id):
            self._waiting.remove(held)
            self._change_held(held, command, now)
            self._answer(offset, command, _outcome(command))
        elif change.placed > now:
            self._change_unseen(offset, command, change.placed, change.at)
        else:  # the record is about to leave its delay topic
            self._changes.change(command.id, change.placed, command.to)
            self._answer(offset, command, _outcome(command))

    def _take(self, offset: int, command: Command, now: int) -> None:
        change = self._changes.get(command.id)
        if change and change.due is None:
            self._answer(offset, command, _end_of(change))
        elif held := self._waiting.get(command.id):
            self._waiting.remove(held)
            self._change_held(held, command, now)
            self._answer(offset, command, _outcome(command))
        elif command.id in self._recent:  # checked before the due time, which is misleading after a clock was set back
            self._answer(offset, command, Settled.DELIVERED)
        elif (due := change.placed if change else command.due) > now:
            self._change_unseen(offset, command, due, command.at)
        elif due < self._passed(now):
            self._answer(offset, command, Settled.DELIVERED)
        else:
            self.undecided.setdefault(command.id, []).append((offset, command))
            heappush(self._dues, (due, command.id))

    def _change_held(self, held: Held, command: Command, now: int) -> None:
        change = self._changes.change(command.id, held.schedule.due, command.to)
        if command.to is not None:
            self._move(held.fetched, held.schedule.again(command.to, change.generation), now)
            self._changes.goes_live(command.id)

    def _change_unseen(self, offset: int, command: Command, due: int, at: int) -> None:
        """Change a schedule whose record is still in a delay topic.

        The record leaves this topic before its present due time `due`, but possibly after the new one.
        """
        change = self._changes.change(command.id, due, command.to)
        # If an earlier command for this schedule is undecided, a new time must wait behind that command: `came_by`
        # applies all undecided commands again, so the earlier command would overwrite the new time.
        if command.to is None or (command.to >= due and command.id not in self.undecided):
            self._answer(offset, command, _outcome(command))
            return
        self.undecided.setdefault(command.id, []).append((offset, command))
        if command.to < due:
            self.searches.append(Search(command.id, due, at, change.live))

    def found(self, search: Search, fetched: Fetched | None, now: int) -> None:
        """Handle the result of a search: the schedule's record as it is stored in its delay topic, or None."""
        change = self._changes.get(search.id)
        # If `live` has changed, the record was found in another way in the meantime, or another schedule has taken over
        # the id.
        if change and change.live != search.live:
            return
        if fetched and isinstance(fetched.schedule, Schedule):
            self._go_before(fetched, fetched.schedule, now)
        change = self._changes.get(search.id)
        if change is None or (change.due is not None and change.live < change.generation):
            if search.tries < _MOST_SEARCHES:
                self._searches_again.append((now + _SEARCH_AGAIN_AFTER, search._replace(tries=search.tries + 1)))
                return
            self._answer_all(search.id, Settled.UNKNOWN)
        else:
            self._answer_all(search.id, Settled.CANCELLED if change.due is None else Settled.RESCHEDULED)

    def _go_before(self, fetched: Fetched, schedule: Schedule, now: int) -> None:
        """Write a copy that leaves its delay topic in time for the new due time.

        After that, the old copy is no longer live.
        """
        change = self._changes.get(schedule.id)
        if change and change.due is not None and change.live <= schedule.generation < change.generation:
            self._changes.goes_live(schedule.id)
            self._move(fetched, schedule.again(change.due, change.generation), now)

    def came_by(self, schedule: Schedule) -> None:
        """Carry out and answer the commands that waited for this record. The record has not been delivered yet."""
        for offset, command in self.undecided.pop(schedule.id, ()):
            change = self._changes.get(schedule.id)
            if change and change.due is None:
                self._answer(offset, command, Settled.CANCELLED)
            else:
                self._changes.change(command.id, schedule.due, command.to)
                self._answer(offset, command, _outcome(command))

    def _search_again(self, now: int) -> None:
        """Search again for records that were not found, if commands still wait for them."""
        while self._searches_again and self._searches_again[0][0] <= now:
            _, search = self._searches_again.popleft()
            change = self._changes.get(search.id)
            if search.id in self.undecided and change and change.live == search.live:
                self.searches.append(search)

    def answer_missed(self, now: int) -> None:
        """Report to the senders of commands whose records are overdue that these records were delivered.

        If a record had left its delay topic only after its command was received, `came_by` would have answered the
        command.
        """
        self._search_again(now)
        passed = self._passed(now)
        while self._dues and self._dues[0][0] < passed:
            _, id_ = heappop(self._dues)
            self._answer_all(id_, Settled.DELIVERED)

    def _answer_all(self, id_: str, settled: Settled) -> None:
        for offset, command in self.undecided.pop(id_, ()):
            self._answer(offset, command, settled)

    def _answer(self, offset: int, command: Command | Put, settled: Settled) -> None:
        self._progress.complete(offset)
        self.is_changed = True
        if command.token:
            self.answers.append(Answer(command, settled))


def _end_of(change: Change) -> Settled:
    return Settled.DELIVERED if change.is_delivered else Settled.CANCELLED


def _outcome(command: Command) -> Settled:
    return Settled.CANCELLED if command.to is None else Settled.RESCHEDULED

"""Cancellations, reschedules and users' own ids: the commands, their answers, and the changes that are remembered.

Invariants: a schedule's generation only grows. Of its copies, only the one of the generation `live` is ever delivered.
A change is remembered until every copy of its schedule has come out of its delay topic. A schedule with a user's own id
is remembered as well, so that no other one with the same id can be pending.
"""

from enum import StrEnum
from heapq import heappop, heappush
from typing import Literal

import msgspec

from headway.core.untrusted import Count, Number, Text, Time, read_json
from headway.errors import ScheduleError
from headway.records.record_types import Header

PUT_HEADER = "headway.put"

IfPending = Literal["replace", "keep", "refuse"]
"""What to do with a schedule whose id already belongs to a pending one.

`replace` drops the pending one; `keep` and `refuse` drop the new one. `refuse` also tells the sender.
"""


class Settled(StrEnum):
    """The answer to a cancellation or a reschedule."""

    CANCELLED = "cancelled"
    """The record will not be delivered. Also the answer to a reschedule after a cancellation."""
    RESCHEDULED = "rescheduled"
    """The record will be delivered at the new time."""
    DELIVERED = "already delivered"
    """The command was too late. For a recurring schedule: it has ended."""
    UNKNOWN = "unknown"
    """The record was searched for and not found. If it turns up after all, it is delivered at the new time.

    Or no schedule with this user's own id has been pending for a minute.
    """
    SCHEDULED = "scheduled"
    """A schedule with a user's own id is stored."""
    REFUSED = "refused"
    """A schedule was not stored, because another one with the same id is pending."""


class Command(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A command to cancel a schedule, or with `to` to reschedule it. `due` and `at` are as in the schedule's handle.

    The answer goes to the partition `reply` of the topic for answers, under the key `token`.
    """

    id: Text
    due: Time
    at: Time
    token: Text
    reply: Number
    to: Time | None = None

    def encode(self) -> bytes:
        """Encode the command for sending."""
        return msgspec.json.encode(self)


class Put(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A command to schedule under a user's own id, in a header of the record to schedule.

    It is answered in the same place as a `Command`. Without a token there is no answer.
    """

    if_pending: IfPending
    token: Text = ""
    reply: Number = 0

    def header(self) -> Header:
        """Return the header that travels with the record."""
        return PUT_HEADER, msgspec.json.encode(self)


_put_decoder = msgspec.json.Decoder(Put)


def read_put(value: str | bytes) -> Put:
    """Read a command from its header's value. Raises `ScheduleError` if it is damaged or forged."""
    return read_json(value, _put_decoder, f"The header {PUT_HEADER}", ScheduleError)


_command_decoder = msgspec.json.Decoder(Command)


def read_command(value: bytes | None) -> Command:
    """Read a command from the value of its record. Raises `ScheduleError` if it is damaged or forged."""
    return read_json(value, _command_decoder, "A command", ScheduleError)


def read_settled(value: bytes) -> Settled:
    """Read an answer from the value of its record. Raises `ScheduleError` if no relay can have written it."""
    try:
        return Settled(value.decode())
    except ValueError as error:
        raise ScheduleError(f"An answer cannot be read: {value[:50]!r}.") from error


class Change(msgspec.Struct, omit_defaults=True):
    """The change of a schedule, or a schedule with a user's own id, changed or not.

    `generation` counts the changes. `due` is the schedule's present due time, or None if it was cancelled or delivered.
    Copies of generations below `live` are not delivered; the live copy has the due time `placed`. No copy has a due
    time later than `expires`. For a user's own id, `at` is when it was scheduled.
    """

    generation: Count
    live: Count
    due: Time | None
    placed: Time
    expires: Time
    at: Time = 0
    is_delivered: bool = False


_change_decoder = msgspec.json.Decoder(Change)


class Changes:
    """The changes of one partition's schedules, by id."""

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}
        self._expiries: list[tuple[int, str]] = []
        self.changed: set[str] = set()  # ids whose changes must be stored

    def __len__(self) -> int:
        return len(self._changes)

    def get(self, id_: str) -> Change | None:
        """Return the change of a schedule."""
        return self._changes.get(id_)

    def restore(self, id_: str, value: bytes) -> None:
        """Restore a stored change. Raises `UnreadableError` for a value that cannot have been stored."""
        self._set(id_, read_json(value, _change_decoder, f"The change of the schedule {id_[:100]}"))

    def stored(self, id_: str) -> bytes | None:
        """Return the value to store, or None to delete it."""
        change = self._changes.get(id_)
        return None if change is None else msgspec.json.encode(change)

    def change(self, id_: str, was_due: int, due: int | None) -> Change:
        """Record a new due time, or None for a cancellation."""
        before = self._changes.get(id_) or Change(0, 0, was_due, was_due, was_due)
        expires = max(was_due, due or 0, before.expires)
        change = Change(before.generation + 1, before.live, due, before.placed, expires, before.at)
        self._set(id_, change)
        self.changed.add(id_)
        return change

    def put(self, id_: str, due: int, at: int, now: int) -> Change:
        """Record a schedule with a user's own id. No copy of an earlier one with the same id is delivered."""
        before = self._changes.get(id_)
        generation = 0 if before is None else before.generation + 1
        # A schedule that is already due has not come out of its delay topic yet, so it must be remembered until then.
        change = Change(generation, generation, due, due, max(due, now, before.expires if before else 0), at)
        self._set(id_, change)
        self.changed.add(id_)
        return change

    def ends(self, id_: str, generation: int) -> bool:
        """Record that a schedule with a user's own id is delivered. Returns False for a copy that must not be."""
        change = self._changes.get(id_)
        if change is None:
            return True
        if change.due is None or change.generation != generation:
            return False
        ended = generation + 1
        self._set(id_, Change(ended, ended, None, change.placed, change.expires, change.at, is_delivered=True))
        self.changed.add(id_)
        return True

    def recurs(self, id_: str, generation: int, due: int) -> None:
        """Record the next firing of a recurring schedule, because it differs from the time in its handle."""
        before = self._changes.get(id_)
        expires, at = (max(due, before.expires), before.at) if before else (due, 0)
        self._set(id_, Change(generation, generation, due, due, expires, at))
        self.changed.add(id_)

    def goes_live(self, id_: str) -> None:
        """Record that a copy of the latest generation was written, so earlier copies are not delivered."""
        change = self._changes[id_]
        change.live = change.generation
        if change.due is not None:
            change.placed = change.due
        self.changed.add(id_)

    def forget(self, passed: float, most: int) -> int:
        """Forget changes that no copy can turn up for, because all records due before `passed` have. Returns how many.

        It forgets at most `most`, because each is one more change to store.
        """
        forgotten = 0
        while forgotten < most and self._expiries and self._expiries[0][0] < passed:
            expires, id_ = heappop(self._expiries)
            if id_ in self._changes and self._changes[id_].expires == expires:
                del self._changes[id_]
                self.changed.add(id_)
                forgotten += 1
        return forgotten

    @property
    def expiring(self) -> int:
        """The number of entries for changes that can be forgotten later."""
        return len(self._expiries)

    def next_expiry(self) -> int | None:
        """Return the earliest time at which a change can be forgotten, if there is one."""
        return self._expiries[0][0] if self._expiries else None

    def _set(self, id_: str, change: Change) -> None:
        before = self._changes.get(id_)
        self._changes[id_] = change
        if before is None or before.expires != change.expires:
            heappush(self._expiries, (change.expires, id_))

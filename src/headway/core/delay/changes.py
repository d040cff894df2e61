"""Cancellations, reschedules and ids of users' own: the commands, their answers, and the changes that are remembered.

Invariants: a schedule's generation only grows. Of its copies only the one of the generation `live` is ever delivered. A
change is remembered until every copy of its schedule has come by. So is a schedule with an id of the user's own: no
other one with the same id is pending.
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
"""The choice for a schedule whose id another one has that is pending.

`replace` drops the pending one, `keep` and `refuse` drop the new one; and `refuse` says so to who has sent it.
"""


class Settled(StrEnum):
    """The answer to a cancellation or a reschedule."""

    CANCELLED = "cancelled"
    """The record is not delivered any more; also the answer to a reschedule after a cancellation."""
    RESCHEDULED = "rescheduled"
    """The record is delivered at the new time."""
    DELIVERED = "already delivered"
    """The command was too late. For a recurring schedule: it has ended."""
    UNKNOWN = "unknown"
    """The record was looked for and not found; if it comes by after all, it is delivered at the new time.

    Or no schedule with this id of the user's own has been pending for a minute.
    """
    SCHEDULED = "scheduled"
    """A schedule with an id of the user's own is stored."""
    REFUSED = "refused"
    """A schedule is not stored, since another one with the same id is pending."""


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
        """Return the command as it is sent."""
        return msgspec.json.encode(self)


class Put(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A command to schedule under an id of the user's own, in a header of the record that is to be scheduled.

    The answer goes where that to a `Command` goes. Without a token there is none.
    """

    if_pending: IfPending
    token: Text = ""
    reply: Number = 0

    def header(self) -> Header:
        """Return the header as it rides with the record."""
        return PUT_HEADER, msgspec.json.encode(self)


_put_decoder = msgspec.json.Decoder(Put)


def read_put(value: str | bytes) -> Put:
    """Return a command from its header's value; raise `ScheduleError` for one that is damaged or forged."""
    return read_json(value, _put_decoder, f"The header {PUT_HEADER}", ScheduleError)


_command_decoder = msgspec.json.Decoder(Command)


def read_command(value: bytes | None) -> Command:
    """Return a command from the value of its record; raise `ScheduleError` for one that is damaged or forged."""
    return read_json(value, _command_decoder, "A command", ScheduleError)


def read_settled(value: bytes) -> Settled:
    """Return an answer from the value of its record; raise `ScheduleError` for one that no relay of ours has given."""
    try:
        return Settled(value.decode())
    except ValueError as error:
        raise ScheduleError(f"An answer cannot be read: {value[:50]!r}.") from error


class Change(msgspec.Struct, omit_defaults=True):
    """The change of a schedule; or one with an id of the user's own, changed or not.

    `generation` counts the changes. `due` is the schedule's time now, None if it was cancelled or is delivered. Copies
    of a generation below `live` are not delivered; the live copy has the due time `placed`. No copy has a due time
    later than `expires`. Of an id of the user's own `at` is when it was scheduled.
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
        self.changed: set[str] = set()  # ids, to be stored

    def __len__(self) -> int:
        return len(self._changes)

    def get(self, id_: str) -> Change | None:
        """Return the change of a schedule."""
        return self._changes.get(id_)

    def restore(self, id_: str, value: bytes) -> None:
        """Take in a stored change; raise `UnreadableError` for a value that cannot have been stored."""
        self._set(id_, read_json(value, _change_decoder, f"The change of the schedule {id_[:100]}"))

    def stored(self, id_: str) -> bytes | None:
        """Return the value to store; None to forget it."""
        change = self._changes.get(id_)
        return None if change is None else msgspec.json.encode(change)

    def change(self, id_: str, was_due: int, due: int | None) -> Change:
        """Note a new due time, or None for a cancellation."""
        before = self._changes.get(id_) or Change(0, 0, was_due, was_due, was_due)
        expires = max(was_due, due or 0, before.expires)
        change = Change(before.generation + 1, before.live, due, before.placed, expires, before.at)
        self._set(id_, change)
        self.changed.add(id_)
        return change

    def put(self, id_: str, due: int, at: int, now: int) -> Change:
        """Note a schedule with an id of the user's own; of earlier ones with the same id no copy is delivered."""
        before = self._changes.get(id_)
        generation = 0 if before is None else before.generation + 1
        # One that is due already has yet to come by.
        change = Change(generation, generation, due, due, max(due, now, before.expires if before else 0), at)
        self._set(id_, change)
        self.changed.add(id_)
        return change

    def ends(self, id_: str, generation: int) -> bool:
        """Note that a schedule with an id of the user's own is delivered; return False for a copy that is not to be."""
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
        """Note the time of a recurring schedule's next firing, which differs from the one in its handle."""
        before = self._changes.get(id_)
        expires, at = (max(due, before.expires), before.at) if before else (due, 0)
        self._set(id_, Change(generation, generation, due, due, expires, at))
        self.changed.add(id_)

    def goes_live(self, id_: str) -> None:
        """Note that a copy of the latest generation was written: earlier copies are not delivered any more."""
        change = self._changes[id_]
        change.live = change.generation
        if change.due is not None:
            change.placed = change.due
        self.changed.add(id_)

    def forget(self, passed: float, most: int) -> int:
        """Forget changes of which no copy can come, as all records due before `passed` came by; return how many.

        Forget at most `most`, since each is one more thing to store.
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
        """Return the earliest time at which a change can be forgotten."""
        return self._expiries[0][0] if self._expiries else None

    def _set(self, id_: str, change: Change) -> None:
        before = self._changes.get(id_)
        self._changes[id_] = change
        if before is None or before.expires != change.expires:
            heappush(self._expiries, (change.expires, id_))

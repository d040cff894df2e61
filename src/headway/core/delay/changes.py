"""Cancellations, reschedules and ids that users choose: commands, answers, and the changes that a relay remembers.

Invariants: the generation of a schedule only grows. Of a schedule's copies, only the one whose generation is `live` is
ever delivered. A relay remembers a change until every copy of the schedule has left its delay topic. A relay also
remembers each schedule whose id the user chose, so that at most one schedule with this id is pending.
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
"""What to do with a new schedule if a schedule with the same id is pending.

`replace` drops the pending schedule. `keep` and `refuse` drop the new one, and with `refuse` the sender gets an error.
"""


class Settled(StrEnum):
    """The answer to a command."""

    CANCELLED = "cancelled"
    """The record will not be delivered. A command to reschedule a cancelled record also gets this answer."""
    RESCHEDULED = "rescheduled"
    """The record will be delivered at the new time."""
    DELIVERED = "already delivered"
    """The command was too late, because the record was delivered or the recurring schedule has ended."""
    UNKNOWN = "unknown"
    """The relay searched for the record and did not find it. If it turns up later, it is delivered at the new time.

    If the user chose the id, this answer means that no schedule with this id has been pending within the last minute.
    """
    SCHEDULED = "scheduled"
    """The schedule, whose id the user chose, is stored."""
    REFUSED = "refused"
    """The schedule was not stored, because another schedule with the same id is pending."""


class Command(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A command to cancel a schedule, or to reschedule it to the time `to`.

    `due` and `at` are the due time and the time of scheduling in the schedule's handle. The answer is a record with the
    key `token` in the partition `reply` of the topic for answers.
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
    """A command to schedule a record under an id that the caller chose. The command is sent in a header of the record.

    The answer is sent like the answer to a `Command`. If `token` is empty, there is no answer.
    """

    if_pending: IfPending
    token: Text = ""
    reply: Number = 0

    def header(self) -> Header:
        """Return the header to add to the record."""
        return PUT_HEADER, msgspec.json.encode(self)


_put_decoder = msgspec.json.Decoder(Put)


def read_put(value: str | bytes) -> Put:
    """Decode a `Put` from the value of its header. Raises `ScheduleError` if the value is damaged or forged."""
    return read_json(value, _put_decoder, f"The header {PUT_HEADER}", ScheduleError)


_command_decoder = msgspec.json.Decoder(Command)


def read_command(value: bytes | None) -> Command:
    """Decode a `Command` from the value of its record. Raises `ScheduleError` if the value is damaged or forged."""
    return read_json(value, _command_decoder, "A command", ScheduleError)


def read_settled(value: bytes) -> Settled:
    """Decode an answer from the value of its record. Raises `ScheduleError` if no relay can have written the value."""
    try:
        return Settled(value.decode())
    except ValueError as error:
        raise ScheduleError(f"The answer to a command cannot be read: {value[:50]!r}.") from error


class Change(msgspec.Struct, omit_defaults=True):
    """The entry that a relay keeps for a schedule that was changed, or whose id the user chose.

    `generation` counts the changes. `due` is the present due time of the schedule, or None if the schedule was
    cancelled or delivered. Copies of generations below `live` are not delivered; the live copy has the due time
    `placed`. No copy has a due time later than `expires`. If the user chose the id, `at` is the time of scheduling.
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
    """The remembered changes of the schedules in one partition, by schedule id."""

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}
        self._expiries: list[tuple[int, str]] = []
        self.changed: set[str] = set()  # the ids of schedules whose entries must be stored
        self.ended_early = 0
        """The number of pending schedules that were cancelled, or replaced by another schedule with the same id."""

    def __len__(self) -> int:
        return len(self._changes)

    def get(self, id_: str) -> Change | None:
        """Return the remembered change of a schedule, or None."""
        return self._changes.get(id_)

    def restore(self, id_: str, value: bytes) -> None:
        """Restore a change from its stored value. Raises `UnreadableError` if no relay can have stored the value."""
        self._set(id_, read_json(value, _change_decoder, f"The change of the schedule {id_[:100]}"))

    def stored(self, id_: str) -> bytes | None:
        """Return the value to store for a schedule, or None if the stored value must be deleted."""
        change = self._changes.get(id_)
        return None if change is None else msgspec.json.encode(change)

    def change(self, id_: str, was_due: int, due: int | None) -> Change:
        """Record that a schedule is moved from the due time `was_due` to `due`, or is cancelled if `due` is None."""
        before = self._changes.get(id_) or Change(0, 0, was_due, was_due, was_due)
        expires = max(was_due, due or 0, before.expires)
        change = Change(before.generation + 1, before.live, due, before.placed, expires, before.at)
        self.ended_early += due is None and before.due is not None
        self._set(id_, change)
        self.changed.add(id_)
        return change

    def put(self, id_: str, due: int, at: int, now: int) -> Change:
        """Record a new schedule whose id the user chose. Copies of earlier schedules with this id are not delivered."""
        before = self._changes.get(id_)
        generation = 0 if before is None else before.generation + 1
        self.ended_early += before is not None and before.due is not None
        # Even a schedule that is already due must be remembered until its record has left its delay topic.
        change = Change(generation, generation, due, due, max(due, now, before.expires if before else 0), at)
        self._set(id_, change)
        self.changed.add(id_)
        return change

    def ends(self, id_: str, generation: int) -> bool:
        """Record that a copy of a schedule is delivered and the schedule ends.

        Returns False if this copy must not be delivered, because the schedule was cancelled or has a newer generation.
        """
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
        """Record when a recurring schedule fires next, because its handle has an earlier due time."""
        before = self._changes.get(id_)
        expires, at = (max(due, before.expires), before.at) if before else (due, 0)
        self._set(id_, Change(generation, generation, due, due, expires, at))
        self.changed.add(id_)

    def goes_live(self, id_: str) -> None:
        """Record that a copy of the latest generation was written, so that earlier copies are not delivered."""
        change = self._changes[id_]
        change.live = change.generation
        if change.due is not None:
            change.placed = change.due
        self.changed.add(id_)

    def forget(self, passed: float, most: int) -> int:
        """Forget changes of schedules that have no copy left, and return the number of forgotten changes.

        All records that were due before the time `passed` have left their delay topics, so no copy can turn up for a
        change that expires before this time. At most `most` changes are forgotten, because for each of them the stored
        value must be deleted.
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
        """The number of expiry times in the queue. A change whose expiry time was moved has several."""
        return len(self._expiries)

    def next_expiry(self) -> int | None:
        """Return the earliest expiry time of a change, or None if there is no change."""
        return self._expiries[0][0] if self._expiries else None

    def _set(self, id_: str, change: Change) -> None:
        before = self._changes.get(id_)
        self._changes[id_] = change
        if before is None or before.expires != change.expires:
            heappush(self._expiries, (change.expires, id_))

"""A schedule: the header of a delayed record, and the handle by which it is cancelled.

Invariants: whatever a header holds, only `ScheduleError` is raised. A schedule that can be read can be delivered or
refused, so that no record goes round for ever.
"""

import re
from typing import NamedTuple
from zlib import crc32

import msgspec

from headway.core.delay.recurrence import Recurrence, UnknownZoneError
from headway.core.untrusted import LATEST, LONGEST_TEXT, Count, Number, Text, Time, read_json
from headway.declarations import shown
from headway.errors import ConfigError, ScheduleError
from headway.records.record_types import Header

HEADER = "headway.delay"

OWN = "id:"
"""The beginning of a schedule's id, and of its handle, where the rest is an id of the user's own."""
LONGEST_OWN = 250

STORED_WITHIN = 60_000
"""The most milliseconds for which a record may be on its way into a line after it was scheduled or moved."""

_is_topic = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}").fullmatch
_HANDLE = re.compile(r"(\d{1,5})\.(\d{1,15})\.(\d{1,15})\.(.+)", re.DOTALL | re.ASCII)


class EmptyRecordError(ScheduleError):
    """A record of a line has neither header, key nor value: a scheduler wrote it to learn the brokers' time."""


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The target and due time of a record; times are in milliseconds since the epoch.

    No other schedule has the same `id`. `at` is when it was scheduled, and `order` distinguishes records that one
    scheduler scheduled at the same time. The `generation` grows with each change of the due time: of two copies of a
    record the older is not delivered.
    """

    id: Text
    due: Time
    at: Time
    order: Count
    topic: str
    partition: Number | None = None
    generation: Number = 0
    recurrence: Recurrence | None = None

    def check(self) -> None:
        """Raise `ConfigError` for a schedule that could not be read again, or not be delivered."""
        if not isinstance(self.topic, str) or not _is_topic(self.topic):
            raise ConfigError(
                f"{self.topic!r} is no name of a topic. It takes 1 to 249 letters, digits, dots, underscores, hyphens."
            )
        if self.partition is not None and not (isinstance(self.partition, int) and 0 <= self.partition < 2**31):
            raise ConfigError(
                f"The partition is {self.partition!r}; it must be a number from 0. Leave it out to have the key decide."
            )
        if len(self.id) > LONGEST_TEXT:
            raise ConfigError(
                f"The id of a schedule would have {len(self.id)} characters; it has at most {LONGEST_TEXT} characters. "
                "Give it a shorter beginning."
            )
        if self.due > LATEST:
            raise ConfigError(
                f"The schedule is due {self.due} ms after 1970, beyond the year 9999. Give a time before."
            )

    def header(self) -> Header:
        """Return the header as it rides with the record."""
        return HEADER, _encode(self)

    def again(self, due: int, generation: int) -> "Schedule":
        """Return the same schedule for another time, at which it fires."""
        recurrence = self.recurrence
        if recurrence is not None and recurrence.fired is not None:
            recurrence = msgspec.structs.replace(recurrence, fired=None)
        return msgspec.structs.replace(self, due=due, generation=generation, recurrence=recurrence)

    def looked_at_again(self, due: int, fired: int) -> "Schedule":
        """Return the same recurring schedule, which fired at a time and whose next time is looked for at `due`."""
        return msgspec.structs.replace(
            self,
            due=due,
            recurrence=msgspec.structs.replace(self.recurrence, fired=fired),  # type: ignore[type-var]
        )


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Schedule)
_WHOSE = f"The header {HEADER}"


def read_schedule(value: str | bytes | None) -> Schedule:
    """Return a schedule from its header's value; raise `ScheduleError` for one that is damaged or forged."""
    if value is None:
        raise ScheduleError(f"The record has no header {HEADER}.")
    schedule = read_json(value, _decoder, _WHOSE, ScheduleError)
    if not _is_topic(schedule.topic):  # msgspec's own patterns take twice as long
        raise ScheduleError(f"The header {HEADER} names no topic: {schedule.topic!r}.")
    if schedule.recurrence is not None:
        try:
            schedule.recurrence.check()
        except UnknownZoneError:  # another relay may know it
            pass
        except ConfigError as error:
            raise ScheduleError(f"The header {HEADER} has a recurrence that is none: {error}") from error
    return schedule


def partition_of(key: str | bytes | None, order: int, partitions: int) -> int:
    """Return the partition of a line: the same for all records of a key, so that one relay keeps their order."""
    if key is None:
        return order % partitions
    return crc32(key.encode() if isinstance(key, str) else key) % partitions


def own_id(id_: object) -> str:
    """Return the schedule's id for an id of the user's own; raise `ConfigError` for one that is out of bounds.

    >>> own_id("reminder-42")
    'id:reminder-42'
    """
    if not isinstance(id_, str) or not 0 < len(id_) <= LONGEST_OWN or not id_.isprintable():
        raise ConfigError(
            f"The id of a schedule is {shown(id_)}; it must be text of 1 to {LONGEST_OWN} characters, without line "
            "breaks and other control characters."
        )
    return f"{OWN}{id_}"


class HandleParts(NamedTuple):
    """The parts of a handle's text: the partition of its schedule, its due time, when it was scheduled, and its id.

    The handle of an id of the user's own is made of that alone: its partition and times are 0, and follow from the id.

    >>> str(HandleParts(3, 1763745120000, 1763745060000, "17"))
    '3.1763745120000.1763745060000.17'
    >>> str(HandleParts(3, 1763745120000, 1763745060000, own_id("order-17")))
    'id:order-17'
    """

    partition: int
    due: int
    at: int
    id: str

    @property
    def is_own(self) -> bool:
        """Return whether the id is the user's own."""
        return self.id.startswith(OWN)

    def __str__(self) -> str:
        return self.id if self.is_own else f"{self.partition}.{self.due}.{self.at}.{self.id}"

    @classmethod
    def read(cls, text: str) -> "HandleParts":
        """Return the parts of a handle's text; raise `ConfigError` for another text."""
        if text.startswith(OWN):
            return cls(0, 0, 0, own_id(text.removeprefix(OWN)))
        found, said = _HANDLE.fullmatch(text), repr(text[:200])
        if not found:
            raise ConfigError(
                f"{said} is no handle of a schedule; one looks like 3.1763745120000.1763745060000.17, or is "
                f"{OWN} and an id of your own."
            )
        partition, due, at, id_ = found.groups()
        parts = cls(int(partition), int(due), int(at), id_)
        if max(parts.due, parts.at) > LATEST or len(id_) > LONGEST_TEXT:
            raise ConfigError(
                f"{said} is no handle of a schedule: its times are beyond the year 9999, or it is too long."
            )
        return parts

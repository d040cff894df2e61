"""A schedule: the header of a delayed record, and the handle by which users cancel or reschedule it.

Invariants: reading a header raises no error except `ScheduleError`, whatever bytes the header has. Every schedule that
can be read can also be delivered or refused, so that no record circulates forever.
"""

import re
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

import msgspec

from headway.core.delay.recurrence import Recurrence, UnknownZoneError
from headway.core.untrusted import LATEST, LONGEST_TEXT, Count, Number, Text, Time, read_json
from headway.declarations import shown
from headway.errors import ConfigError, ScheduleError
from headway.records.record_types import Header

HEADER = "headway.delay"

CHOSEN = "id:"
"""The prefix of a schedule's id and handle if the user chose the id. The user's id follows the prefix."""
LONGEST_OWN = 250

STORED_WITHIN = 60_000
"""How long a record may take to reach a delay topic after it was scheduled or moved, in milliseconds."""

# Nearly all records of a round have the same few targets. The cache is small because forged names can be long.
_is_topic = lru_cache(maxsize=32)(re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}").fullmatch)
_HANDLE = re.compile(r"(\d{1,5})\.(\d{1,15})\.(\d{1,15})\.(.+)", re.DOTALL | re.ASCII)


class EmptyRecordError(ScheduleError):
    """A record in a delay topic has no header, key or value: it was written only to get a broker's timestamp."""


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The target and due time of a record. Times are in milliseconds since the epoch.

    The `id` is unique. `at` is when the record was scheduled, and `order` is the order of records that one scheduler
    scheduled at the same time. The `generation` grows with each change of the due time; if there are copies with
    different generations, only the copy with the latest generation is delivered.
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
        """Raise `ConfigError` if a relay could not read or deliver this schedule."""
        if not isinstance(self.topic, str) or not _is_topic(self.topic):
            raise ConfigError(
                f"The topic is {self.topic!r}, which is not a topic name. Use 1 to 249 letters, digits, dots, "
                "underscores or hyphens."
            )
        if self.partition is not None and not (isinstance(self.partition, int) and 0 <= self.partition < 2**31):
            raise ConfigError(
                f"The partition is {self.partition!r}; it must be a whole number, at least 0. Leave it out to let the "
                "key choose the partition."
            )
        if len(self.id) > LONGEST_TEXT:
            raise ConfigError(
                f"The id of a schedule would have {len(self.id)} characters; it can have at most {LONGEST_TEXT}. "
                "Use a shorter prefix."
            )
        if self.due > LATEST:
            raise ConfigError(
                f"The schedule is due {self.due} ms after the start of 1970, which is beyond the year 9999. Give an "
                "earlier time."
            )

    def header(self) -> Header:
        """Return the header to add to the record."""
        return HEADER, _encode(self)

    def again(self, due: int, generation: int) -> "Schedule":
        """Return this schedule with another due time and generation."""
        recurrence = self.recurrence
        if recurrence is not None and recurrence.fired is not None:
            recurrence = msgspec.structs.replace(recurrence, fired=None)
        return msgspec.structs.replace(self, due=due, generation=generation, recurrence=recurrence)

    def looked_at_again(self, due: int, fired: int) -> "Schedule":
        """Return this recurring schedule with a note that a relay must compute its next time when `due` is reached.

        `fired` is the time for which the schedule last fired.
        """
        return msgspec.structs.replace(
            self,
            due=due,
            recurrence=msgspec.structs.replace(self.recurrence, fired=fired),  # type: ignore[type-var]
        )


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Schedule)
_WHOSE = f"The header {HEADER}"


def read_schedule(value: str | bytes | None) -> Schedule:
    """Decode a schedule from the value of its header. Raises `ScheduleError` if the value is damaged or forged."""
    if value is None:
        raise ScheduleError(f"The record has no header {HEADER}.")
    schedule = read_json(value, _decoder, _WHOSE, ScheduleError)
    if not _is_topic(schedule.topic):  # checked here and not by a pattern of msgspec, which takes twice as long
        raise ScheduleError(f"The header {HEADER} names {schedule.topic!r}, which is not a topic name.")
    if schedule.recurrence is not None:
        try:
            schedule.recurrence.check()
        except UnknownZoneError:  # another relay may have data about the zone
            pass
        except ConfigError as error:
            raise ScheduleError(f"The header {HEADER} has an invalid recurrence: {error}") from error
    return schedule


def partition_of(key: str | bytes | None, order: int, partitions: int) -> int:
    """Return the partition of a delay topic for a record.

    All records with the same key go to the same partition, so that one relay keeps their order.
    """
    if key is None:
        return order % partitions
    return crc32(key.encode() if isinstance(key, str) else key) % partitions


def chosen_id(id_: object) -> str:
    """Return the schedule's id for an id that the user chose. Raises `ConfigError` if the user's id is not valid.

    >>> chosen_id("reminder-42")
    'id:reminder-42'
    """
    if not isinstance(id_, str) or not 0 < len(id_) <= LONGEST_OWN or not id_.isprintable():
        raise ConfigError(
            f"The id of a schedule is {shown(id_)}; it must be text of 1 to {LONGEST_OWN} characters, without line "
            "breaks or other control characters."
        )
    return f"{CHOSEN}{id_}"


class HandleParts(NamedTuple):
    """The parts of a handle: the partition, due time, time of scheduling and id of its schedule.

    If the user chose the id, the handle contains only the id, and the partition and the times are 0.

    >>> str(HandleParts(3, 1763745120000, 1763745060000, "17"))
    '3.1763745120000.1763745060000.17'
    >>> str(HandleParts(3, 1763745120000, 1763745060000, chosen_id("order-17")))
    'id:order-17'
    """

    partition: int
    due: int
    at: int
    id: str

    @property
    def is_chosen(self) -> bool:
        """True if the user chose the id of the schedule."""
        return self.id.startswith(CHOSEN)

    def __str__(self) -> str:
        return self.id if self.is_chosen else f"{self.partition}.{self.due}.{self.at}.{self.id}"

    @classmethod
    def read(cls, text: str) -> "HandleParts":
        """Split the text of a handle into its parts. Raises `ConfigError` if the text is not a handle."""
        if text.startswith(CHOSEN):
            return cls(0, 0, 0, chosen_id(text.removeprefix(CHOSEN)))
        found, said = _HANDLE.fullmatch(text), repr(text[:200])
        if not found:
            raise ConfigError(
                f"{said} is not a handle of a schedule. A handle looks like 3.1763745120000.1763745060000.17, or "
                f"like {CHOSEN}order-17 for a schedule with your own id order-17."
            )
        partition, due, at, id_ = found.groups()
        parts = cls(int(partition), int(due), int(at), id_)
        if max(parts.due, parts.at) > LATEST or len(id_) > LONGEST_TEXT:
            raise ConfigError(
                f"{said} is not a handle of a schedule: a time in it is beyond the year 9999, or its id has more than "
                f"{LONGEST_TEXT} characters."
            )
        return parts

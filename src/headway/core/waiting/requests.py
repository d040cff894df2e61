"""The requests of operators about records that wait, and the answers of the members that own their partitions.

Both are records of one topic, with the id of the request as the key. The answer to an edit that was carried out is in
the transaction of the edit. So an asker that reads only committed records sees the answer exactly if the edit happened.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from typing import Annotated, NamedTuple

import msgspec

from headway.core.untrusted import Count, Number, Text, Time, read_json

REQUESTS_TOPIC = "headway-requests"
"""The topic of requests and answers, with one partition. Its records are kept for a day."""

MOST_OFFSETS = 500
"""The highest number of records in one request."""


class Edit(StrEnum):
    """What an operator asks for."""

    LOOK = "look"
    """Only report why the records wait."""
    DROP = "drop"
    """Mark the records as done without a call of the handler."""
    MOVE = "move"
    """Store a copy of each record in another topic, and mark the record as done."""
    NEXT = "next"
    """Let the records start before all other records of their partition."""


class Fate(StrEnum):
    """What became of one record of a request."""

    DONE = "done"
    """The edit was carried out."""
    TURN = "waits"
    """The edit will be carried out when earlier records of the same lane are done."""
    RUNNING = "running"
    """Too late: the handler is running."""
    STORED = "stored elsewhere"
    """Too late: the record becomes a dead letter or a schedule, or another edit moves it."""
    GONE = "gone"
    """The record is done, or does not exist."""
    ORDER = "breaks order"
    """Refused, because another record of the same lane would be handled out of order."""
    REFUSED = "refused"
    """Refused for another reason."""
    READY = "ready"
    """The answer to a look: the record waits for a slot."""
    BEHIND = "behind"
    """The answer to a look: the record waits for an earlier record of the same lane."""
    HELD = "held"
    """The answer to a look: the record waits for a time, a permit, a rule or its next attempt."""
    UNREAD = "not fetched"
    """The member has not fetched the record yet, so it cannot be the next one."""


FINAL = frozenset(Fate) - {Fate.TURN}
"""The fates after which nothing else happens to the record because of the request."""


class ChosenOffsets(msgspec.Struct, frozen=True, omit_defaults=True):
    """Records of one partition. `topic` is the name in Kafka.

    `earlier` has, for some offsets, the lowest offset of another record with the same key that waits before it and is
    not in the request. The asker knows it even if the member has not fetched these records.
    """

    topic: Text
    partition: Number
    offsets: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_OFFSETS)]
    earlier: Annotated[dict[Count, Count], msgspec.Meta(max_length=MOST_OFFSETS)] = {}


class EditRequest(msgspec.Struct, frozen=True, tag="request", tag_field="is", omit_defaults=True):
    """What an operator asks the members of a group to do.

    Attributes:
        id: The id of the request.
        group: The group, without the level.
        edit: What to do.
        records: The records.
        to: The Kafka topic to which records are moved.
        by: Who asks.
        why: The reason.
        until: When the asker stops waiting, in milliseconds since the epoch. Members ignore the request afterwards.
        break_order: True to carry out the edit even if records of one key are then handled out of order.
    """

    id: Text
    group: Text
    edit: Edit
    records: Annotated[tuple[ChosenOffsets, ...], msgspec.Meta(max_length=MOST_OFFSETS)]
    until: Time
    to: Text = ""
    by: Text = ""
    why: Text = ""
    break_order: bool = False

    def encode(self) -> bytes:
        """Encode the request for its topic."""
        return msgspec.json.encode(self)


class RecordFate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one record. `note` explains it, as a part of a sentence."""

    topic: Text
    partition: Number
    offset: Count
    fate: Fate
    note: Text = ""


class EditAnswer(msgspec.Struct, frozen=True, tag="answer", tag_field="is"):
    """The answer of one member to a request, about some of its records."""

    id: Text
    member: Text
    fates: Annotated[tuple[RecordFate, ...], msgspec.Meta(max_length=MOST_OFFSETS)]

    def encode(self) -> bytes:
        """Encode the answer for its topic."""
        return msgspec.json.encode(self)


_decoder: msgspec.json.Decoder[EditRequest | EditAnswer] = msgspec.json.Decoder(EditRequest | EditAnswer)


def read_message(key: str, value: bytes) -> EditRequest | EditAnswer:
    """Decode a record of the topic. Raises `UnreadableError`."""
    return read_json(value, _decoder, f"The request {key[:200]!r}")


class Place(NamedTuple):
    """A record that waits: its Kafka topic, partition and offset.

    `earlier` is the offset of another record with the same key that waits before it and is not chosen, or None.
    """

    topic: str
    partition: int
    offset: int
    earlier: int | None = None


def in_requests(records: Iterable[Place]) -> list[tuple[ChosenOffsets, ...]]:
    """Divide records into requests that are not too large.

    >>> in_requests([Place("orders", 0, 7, 6), Place("orders", 0, 5)])
    [(ChosenOffsets(topic='orders', partition=0, offsets=(5, 7), earlier={7: 6}),)]
    """
    ordered = sorted(records, key=lambda place: place[:3])
    parts = [ordered[start : start + MOST_OFFSETS] for start in range(0, len(ordered), MOST_OFFSETS)]
    return [tuple(_by_partition(part)) for part in parts]


def _by_partition(records: Iterable[Place]) -> Iterator[ChosenOffsets]:
    for (topic, partition), places in groupby(records, key=lambda place: place[:2]):
        found = list(places)
        earlier = {each.offset: each.earlier for each in found if each.earlier is not None}
        yield ChosenOffsets(topic, partition, tuple(each.offset for each in found), earlier)

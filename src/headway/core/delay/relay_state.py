"""The state of a partition, which a relay stores in a compacted topic, and the decoding of this state."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from headway.core.delay.changes import Changes
from headway.core.delay.due_queue import Mark
from headway.core.offsets.offset_map import OffsetMap, decode_map, encode
from headway.core.untrusted import Text, read_json
from headway.errors import UnreadableError

T = TypeVar("T")

MEMORY_KEY, COMMANDS_KEY, PRODUCERS_KEY, TOPICS_KEY = "memory", "commands", "producers", "topics"
_DELAY_TOPIC, _CHANGE = "line:", "change:"

_MOST_BYTES = 2**21  # the maximum size of a stored value in bytes; no topic of a scheduler accepts a larger record
_MOST_PRODUCERS = 16
_mark_decoder = msgspec.json.Decoder(Mark)
_producers_decoder = msgspec.json.Decoder(list[Text])
_topics_decoder = msgspec.json.Decoder(dict[str, str])
_is_delay_topic_key = re.compile(r"line:\d{1,18}", re.ASCII).fullmatch
_is_offset = re.compile(rb"\d{1,18}").fullmatch


def delay_topic_key(delay_topic: int) -> str:
    """Return the key under which the progress in a delay topic is stored."""
    return f"{_DELAY_TOPIC}{delay_topic}"


def change_key(id_: str) -> str:
    """Return the key under which the change of a schedule is stored."""
    return f"{_CHANGE}{id_}"


def encode_producers(ids: Sequence[str]) -> bytes:
    """Encode a relay's transactional ids. If the relay dies, the next relay fences off the producers with these ids."""
    return msgspec.json.encode(ids)


def stored_producers(stored: Mapping[str, bytes], prefix: str) -> list[str]:
    """Return the transactional ids that the previous relay used, or an empty list if they cannot be read.

    The caller fences off every producer with one of these ids. To limit the harm that a forged value can do, this
    returns only a few ids, and only ids with the prefix of relays.
    """
    try:
        value = stored.get(PRODUCERS_KEY, b"[]")
        ids = read_json(value, _producers_decoder, "The stored transactional ids of the previous relay")
    except UnreadableError:
        return []
    return [each for each in ids if each.startswith(prefix)][:_MOST_PRODUCERS]


class StoredState:
    """The decoded state of a partition, which earlier ticks have stored.

    If a topic was deleted and created again, the progress that was stored for it is ignored, because its offsets do not
    belong to the new topic. Progress is also ignored if the ids of the topics are not stored. Every relay stores the
    ids first, so if they are missing, the topic with the state is new, and the progress was stored by a relay that was
    still reading the old topics. A value that cannot be read is also ignored; `unreadable` then has a sentence about
    the value under the value's key.

    Args:
        stored: The latest value of each key.
        topics: Kafka's ids of the topics, as far as they are known. The key for each topic is the one under which its
            progress is stored.
        ends: The end offsets of the partitions of these topics, as far as they are known, by the same keys. Stored
            progress beyond an end offset is ignored, because it belongs to another log.
    """

    def __init__(
        self, stored: Mapping[str, bytes], topics: Mapping[str, str], ends: Mapping[str, int] | None = None
    ) -> None:
        self.unreadable: dict[str, str] = {}
        self._ends = ends or {}
        self._stored = stored
        before = self._read(TOPICS_KEY, _read_topics, dict[str, str]())
        if TOPICS_KEY in stored:
            self.of_topics_before = [key for key in topics if before.get(key, topics[key]) != topics[key]]
        else:
            self.of_topics_before = [key for key in topics if key in stored]
        self.topics = msgspec.json.encode(topics) if topics and topics != before else None
        stored = {key: value for key, value in stored.items() if key not in self.of_topics_before}
        self._stored = stored
        self.mark = self._read(MEMORY_KEY, self._mark, Mark())
        self.commands = self._map(COMMANDS_KEY)
        self.changes = Changes()
        for key in stored:
            if key.startswith(_CHANGE):
                id_ = key.removeprefix(_CHANGE)
                self._read(key, lambda value, id_=id_: self.changes.restore(id_, value), None)  # type: ignore[misc]

    @property
    def unreadable_progress(self) -> list[str]:
        """The keys of stored progress that cannot be read.

        The topics of this progress are read from the beginning, so the stored values can be deleted.
        """
        return [key for key in self.unreadable if not key.startswith(_CHANGE)]

    def delay_topic(self, delay_topic: int) -> OffsetMap:
        """Return the stored progress in a delay topic."""
        return self._map(delay_topic_key(delay_topic))

    def other_delay_topics(self, delay_topics: Collection[int]) -> list[int]:
        """Return the delay topics that have stored progress and are not among `delay_topics`."""
        stored = (int(key.removeprefix(_DELAY_TOPIC)) for key in self._stored if _is_delay_topic_key(key))
        return [delay_topic for delay_topic in stored if delay_topic not in delay_topics]

    def _read(self, key: str, read: Callable[[bytes], T], default: T) -> T:
        if key not in self._stored:
            return default
        try:
            return read(self._stored[key])
        except UnreadableError as error:
            self.unreadable[key] = str(error)
            return default

    def _map(self, key: str) -> OffsetMap:
        return self._read(key, lambda value: self._within_log(key, _read_map(value)), OffsetMap(0))

    def _within_log(self, key: str, progress: OffsetMap) -> OffsetMap:
        self._check_end(key, progress.end)
        return progress

    def _mark(self, value: bytes) -> Mark:
        mark = read_json(value, _mark_decoder, "The stored progress in the memory topic", most=_MOST_BYTES)
        self._check_end(MEMORY_KEY, max(mark.offset, mark.end))
        return mark

    def _check_end(self, key: str, reached: int) -> None:
        if reached > (end := self._ends.get(key, reached)):
            raise UnreadableError(f"The stored progress reaches offset {reached}, but the log ends at offset {end}.")


def encode_map(offsets: OffsetMap) -> bytes:
    """Encode the progress in a topic for storage."""
    return f"{offsets.offset} {encode(offsets)}".encode()


def _read_topics(value: bytes) -> dict[str, str]:
    return read_json(value, _topics_decoder, "The stored ids of the topics")


def _read_map(value: bytes) -> OffsetMap:
    offset, _, text = value.partition(b" ")
    if not _is_offset(offset) or len(text) > _MOST_BYTES:
        raise UnreadableError(
            f"The stored progress cannot be read: {value[:50]!r} does not begin with an offset, or has more than "
            f"{_MOST_BYTES:,} bytes."
        )
    return decode_map(text, int(offset))

"""What a relay stores of a partition in a compacted topic, key by key, and how it is read again."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from headway.core.changes import Changes
from headway.core.offset_map import OffsetMap, decode, encode
from headway.core.waiting import Mark

MEMORY_KEY, COMMANDS_KEY, PRODUCERS_KEY, TOPICS_KEY = "memory", "commands", "producers", "topics"
_LINE, _CHANGE = "line:", "change:"


def line_key(line: int) -> str:
    """The key for what has left a line."""
    return f"{_LINE}{line}"


def change_key(id_: str) -> str:
    """The key for what was changed of a schedule."""
    return f"{_CHANGE}{id_}"


def encode_producers(ids: Sequence[str]) -> bytes:
    """The transactional ids with which a partition's relay writes, for who takes over from one that has died."""
    return msgspec.json.encode(ids)


def stored_producers(stored: Mapping[str, bytes]) -> list[str]:
    """The transactional ids of who wrote last."""
    return msgspec.json.decode(stored.get(PRODUCERS_KEY, b"[]"), type=list[str])


class StoredState:
    """What earlier ticks have stored of a partition, taken apart.

    Offsets count in one topic only: what was stored of a topic that was deleted and made anew does not.

    Args:
        stored: The latest value of each key.
        topics: Kafka's ids of the topics, by the key under which the progress in each is stored, as far as known.
    """

    def __init__(self, stored: Mapping[str, bytes], topics: Mapping[str, str]) -> None:
        before = msgspec.json.decode(stored.get(TOPICS_KEY, b"{}"), type=dict[str, str])
        self.of_topics_before = [key for key in topics if before.get(key, topics[key]) != topics[key]]
        self.topics = msgspec.json.encode(topics) if topics and topics != before else None
        stored = {key: value for key, value in stored.items() if key not in self.of_topics_before}
        self._stored = stored
        self.mark = msgspec.json.decode(stored[MEMORY_KEY], type=Mark) if MEMORY_KEY in stored else Mark()
        self.commands = _stored_map(stored.get(COMMANDS_KEY))
        self.changes = Changes()
        for key in stored:
            if key.startswith(_CHANGE):
                self.changes.restore(key.removeprefix(_CHANGE), stored[key])

    def line(self, line: int) -> OffsetMap:
        """What has left a line."""
        return _stored_map(self._stored.get(line_key(line)))

    def other_lines(self, lines: Collection[int]) -> list[int]:
        """The lines of which something is stored beside these."""
        stored = (int(key.removeprefix(_LINE)) for key in self._stored if key.startswith(_LINE))
        return [line for line in stored if line not in lines]


def encode_map(offsets: OffsetMap) -> bytes:
    """Progress as it is stored."""
    return f"{offsets.offset} {encode(offsets)}".encode()


def _stored_map(stored: bytes | None) -> OffsetMap:
    if stored is None:
        return OffsetMap(0)
    offset, _, text = stored.decode().partition(" ")
    return decode(text.encode(), int(offset)) if text else OffsetMap(int(offset))

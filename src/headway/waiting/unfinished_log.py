"""Reads what a group has not finished of a topic: the records that its offset maps leave open, and those after them."""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headway.core.levels.naming import is_topic_or_level, level_group, level_topic
from headway.core.offsets.commit_metadata import read_metadata
from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.trailer import Tried, log_mark
from headway.core.selectors.conditions import FieldValue
from headway.core.selectors.parser import HEADER
from headway.core.selectors.selector import Selector
from headway.errors import ConfigError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition
from headway.kafka.reading.group_inspector import GroupInspector
from headway.records.record_types import Message, headers_of
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config
from headway.waiting.unfinished_record import RecordAddress, UnfinishedRecord


class LevelOfGroup(NamedTuple):
    """A level of the topic, and the group that reads it."""

    group: str
    topic: str
    level: int
    partitions: int


class _PartitionLog(NamedTuple):
    """What a group has not finished of one partition: the ranges of offsets, and the failed attempts."""

    source: LevelOfGroup
    partition: int
    ranges: Sequence[range]
    tried: Mapping[int, Tried]


class UnfinishedLog(Closable):
    """Finds and reads the records of a topic that a group has not finished.

    Args:
        config: The connection's settings.
        admin: A client for requests about topics.
        group: The group, without a level.
        topic: The topic, without a level.

    Attributes:
        sources: The levels of the topic, the highest first, each with the group that reads it.

    Raises `ConfigError` if the topic does not exist. Not thread-safe.
    """

    def __init__(self, config: Config, admin: Admin, group: str, topic: str) -> None:
        self._config = config
        self._admin = admin
        self._group, self._topic = group, topic
        self._inspectors: dict[str, GroupInspector] = {}
        self.sources = self._find_sources()

    def close(self) -> None:
        """Close the connections."""
        for inspector in self._inspectors.values():
            inspector.close()

    def has_members(self) -> bool:
        """Return whether any group of the topic has a member."""
        return any(self._inspector(group).member_count() for group in {source.group for source in self.sources})

    def topic_of(self, level: int) -> str:
        """Return the Kafka topic of a level. Raises `ConfigError` if the topic has no such level."""
        for source in self.sources:
            if source.level == level and source.topic == level_topic(self._topic, level):
                return source.topic
        levels = ", ".join(str(source.level) for source in self.sources)
        raise ConfigError(f"The topic {self._topic} has no level {level}. Its levels are {levels}.")

    def records(
        self,
        level: int | None,
        partition: int | None,
        offsets: Collection[int] | None,
        chooses: Callable[[UnfinishedRecord], bool],
    ) -> Iterator[UnfinishedRecord]:
        """Yield the records that are chosen, by level, partition and offset, the highest level first."""
        for log in self._logs(level, partition):
            yield from filter(chooses, self._read(log, log.ranges if offsets is None else _only(log.ranges, offsets)))

    def _find_sources(self) -> list[LevelOfGroup]:
        listed = self._admin.topics().seen
        names = sorted(name for name in listed if is_topic_or_level(name, self._topic))
        if level_topic(self._topic, 0) in names:
            names = [name for name in names if name != self._topic]
        if not names:
            raise ConfigError(f"Kafka has no topic {self._topic}. `headway topics list` shows the topics.")
        found = [self._source(name, listed[name]) for name in names]
        return sorted(found, key=lambda source: -source.level)

    def _source(self, topic: str, partitions: int) -> LevelOfGroup:
        number = topic.removeprefix(f"{self._topic}-")
        is_level = topic != self._topic
        groups = self._groups_of_level(int(number)) if is_level else self._groups_of_topic()
        places = [(topic, partition) for partition in range(partitions)]
        group = next((each for each in groups if self._inspector(each).committed(places)), None)
        if group is None:
            group = level_group(self._group, int(number)) if is_level else self._group
        return LevelOfGroup(group, topic, int(number) if is_level else _level_of(group, self._group), partitions)

    def _groups_of_level(self, level: int) -> Iterator[str]:
        yield level_group(self._group, level)
        yield self._group

    def _groups_of_topic(self) -> Iterator[str]:
        yield self._group
        of_levels = re.compile(re.escape(self._group) + r"-\d{1,3}").fullmatch
        yield from filter(of_levels, self._inspector(self._group).groups())

    def _inspector(self, group: str) -> GroupInspector:
        if group not in self._inspectors:
            self._inspectors[group] = GroupInspector(self._config, group)
        return self._inspectors[group]

    def _logs(self, level: int | None, partition: int | None) -> Iterator[_PartitionLog]:
        for source in self.sources:
            if level is not None and source.level != level:
                continue
            numbers = range(source.partitions) if partition is None else [partition]
            yield from self._logs_of(source, [(source.topic, number) for number in numbers])

    def _logs_of(self, source: LevelOfGroup, places: Sequence[Partition]) -> Iterator[_PartitionLog]:
        inspector = self._inspector(source.group)
        committed = inspector.committed(places)
        starts, ends = inspector.starts(places), inspector.ends(places)
        log = log_mark(self._admin.topic_ids({source.topic}).get(source.topic, ""))
        for place in places:
            if place not in ends:
                continue
            offset, text = committed.get(place, (starts[place], b""))
            metadata = read_metadata(text, offset, ends[place], log)
            offset_map = metadata.offset_map or OffsetMap(offset)
            ranges = [*offset_map.incomplete, range(offset_map.end, ends[place])]
            left = [range(max(each.start, starts[place]), each.stop) for each in ranges]
            yield _PartitionLog(
                source, place[1], [each for each in left if each], metadata.trailer.tried if metadata.trailer else {}
            )

    def _read(self, log: _PartitionLog, ranges: Sequence[range]) -> Iterator[UnfinishedRecord]:
        inspector, place = self._inspector(log.source.group), (log.source.topic, log.partition)
        for offsets in ranges:
            for message in inspector.read(place, offsets.start, offsets.stop):
                yield _record(message, log)

    def earlier(self, records: Sequence[UnfinishedRecord]) -> dict[RecordAddress, int]:
        """Return the offset of the first other record of the same key that waits before a record, if there is one.

        This reads all records before them that are not done.
        """
        found: dict[RecordAddress, int] = {}
        for level, partition in {(record.level, record.partition) for record in records}:
            chosen = {each.offset: each for each in records if (each.level, each.partition) == (level, partition)}
            for log in self._logs(level, partition):
                first_of_key: dict[bytes | None, int] = {}
                for record in self._read(log, _only(log.ranges, range(max(chosen) + 1))):
                    if record.offset not in chosen:
                        first_of_key.setdefault(record.key, record.offset)
                    elif (first := first_of_key.get(record.key)) is not None:
                        found[record.place] = first
        return found


def _only(ranges: Iterable[range], offsets: Collection[int]) -> list[range]:
    """Return the parts of the ranges that have these offsets.

    >>> _only([range(0, 5), range(7, 20)], [3, 4, 6, 8, 9])
    [range(3, 5), range(8, 10)]
    """
    if isinstance(offsets, range) and offsets.step == 1:
        parts = [range(max(each.start, offsets.start), min(each.stop, offsets.stop)) for each in ranges]
        return [each for each in parts if each]
    found: list[range] = []
    for each in ranges:
        for offset in sorted(offset for offset in set(offsets) if offset in each):
            if found and found[-1].stop == offset and offset != each.start:
                found[-1] = range(found[-1].start, offset + 1)
            else:
                found.append(range(offset, offset + 1))
    return found


def _level_of(group: str, base: str) -> int:
    return 0 if group == base else int(group.removeprefix(f"{base}-"))


def _record(message: Message, log: _PartitionLog) -> UnfinishedRecord:
    offset = message.offset() or 0
    tried = log.tried.get(offset)
    return UnfinishedRecord(
        log.source.topic,
        log.source.level,
        log.partition,
        offset,
        message.key(),
        message.value(),
        headers_of(message),
        message.timestamp()[1],
        tried.attempts if tried else 0,
    )


def chooser(
    offsets: Collection[int] | None, key: bytes | str | None, selector: Selector | None, older_than: float | None
) -> Callable[[UnfinishedRecord], bool]:
    """Return a function that returns whether a record has one of these offsets, this key and age, and is selected."""
    wanted = key.encode() if isinstance(key, str) else key
    now = time.time()

    def chooses(record: UnfinishedRecord) -> bool:
        age = now - record.timestamp / 1000
        return (
            (offsets is None or record.offset in offsets)
            and (wanted is None or record.key == wanted)
            and (older_than is None or (record.timestamp > 0 and age >= older_than))
            and (selector is None or selector.matches(lambda name: _value_of(record, name, age)))
        )

    return chooses


def _value_of(record: UnfinishedRecord, name: str, age: float) -> FieldValue:
    if name.startswith(HEADER):
        value = next((value for header, value in record.headers if header == name[len(HEADER) :]), None)
        return value.encode() if isinstance(value, str) else value
    if name == "age":
        return max(0.0, age) if record.timestamp > 0 else None
    if name in ("key", "topic", "level", "partition", "offset", "attempts"):
        return getattr(record, name)  # type: ignore[no-any-return]
    return None  # only the member knows it

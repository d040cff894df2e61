"""A dead-letter topic, and the record of which letters are settled: sent again, or handled in another way."""

import difflib
import logging
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from headway.core.offsets.commit_metadata import Done, read_metadata, with_done
from headway.core.offsets.offset_map import MAX_CHARACTERS, OffsetMap, commit_of
from headway.core.offsets.trailer import Trailer, log_mark
from headway.errors import ConfigError, KafkaError
from headway.inspection.letters import Letter, LetterPosition
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition
from headway.kafka.reading.group_inspector import GroupInspector
from headway.settings.config import Config

log = logging.getLogger(__name__)

Existing = Mapping[int, Sequence[int]]
"""For each partition, the offsets of all records read so far, ascending."""

SettledOffsets = Mapping[int, Collection[int]]
"""For each partition, the offsets of settled letters."""


class DeadTopic:
    """Reads a dead-letter topic up to the end that it had at the start, and records which letters are settled.

    The settled letters are stored in the committed offsets and offset maps of a group without members,
    `headway-dead-TOPIC`. Reading commits nothing. The maps carry `log`, a mark of the topic's id, so that the map of a
    deleted topic of the same name is not applied to this topic.
    """

    def __init__(self, name: str, partitions: int, inspector: GroupInspector, log: bytes = b"") -> None:
        self.name = name
        self._log = log
        self._partitions = partitions
        self._inspector = inspector
        addresses = [(name, partition) for partition in range(partitions)]
        self._starts = inspector.starts(addresses)
        self._ends = inspector.ends(addresses)

    @property
    def size(self) -> int:
        """The number of offsets to read. There might not be a record at each offset."""
        return sum(self._ends.values()) - sum(self._starts.values())

    def letters(self, partitions: Collection[int] | None = None) -> Iterator[Letter]:
        """Yield the letters of these partitions, or of all partitions, one partition after the other."""
        settled = {partition: Done(offset_map) for partition, offset_map in self.settled().items()}
        for partition in range(self._partitions) if partitions is None else sorted(partitions):
            address = (self.name, self._existing(partition))
            yield from self._read(partition, self._starts[address], self._ends[address], settled[partition])

    def newest(self, most: int) -> Iterator[Letter]:
        """Yield about `most` letters, the newest ones of each partition, in the order of their offsets."""
        settled = {partition: Done(offset_map) for partition, offset_map in self.settled().items()}
        left, partitions = most, self._partitions
        for partition in range(partitions):
            start, end = self._starts[self.name, partition], self._ends[self.name, partition]
            first = max(start, end - left // (partitions - partition))  # what a short partition leaves goes to the next
            left -= end - first
            yield from self._read(partition, first, end, settled[partition])

    def chosen(self, partition: int, offsets: Collection[int]) -> Iterator[Letter]:
        """Yield the letters that exist at these offsets of a partition."""
        if offsets:
            read = self._read(partition, min(offsets), max(offsets) + 1, ())
            yield from (letter for letter in read if letter.place.offset in offsets)

    def letter(self, place: LetterPosition) -> Letter:
        """Return the letter at a position. Raises `KafkaError` if the position holds no record."""
        end = self._ends[self.name, self._existing(place.partition)]
        done = Done(self.settled()[place.partition])
        for letter in self._read(place.partition, place.offset, min(place.offset + 1, end), done):
            return letter
        raise self.no_letter(place)

    def no_letter(self, place: LetterPosition) -> KafkaError:
        """Return the error for a position without a record, which names the offsets that exist."""
        address = (self.name, place.partition)
        start, end = self._starts[address], self._ends[address]
        there = f"has the offsets {start} to {end - 1}" if start < end else "is empty"
        return KafkaError(
            f"{self.name} holds no record at {place}: its partition {place.partition} {there}. "
            f"`headway dead list {self.name}` shows what it holds."
        )

    def settled(self) -> dict[int, OffsetMap]:
        """Return the offsets that are settled now, by partition."""
        committed = self._inspector.committed(list(self._starts))
        # Read the end offsets after the commits. Otherwise an offset map could seem to reach beyond the end of the log.
        ends = self._inspector.ends(committed)
        found = {partition: OffsetMap(0) for partition in range(self._partitions)}
        for address, (offset, text) in committed.items():
            found[address[1]] = self._memory(address[1], offset, text, ends[address])
        return found

    def memory_of(self, existing: Existing, settled: SettledOffsets) -> dict[Partition, tuple[int, bytes]]:
        """Return the commits that mark these letters as settled, in addition to those that are settled already.

        Raises `KafkaError` if the letters are too scattered for an offset map.
        """
        before, memory = self.settled(), {}
        for partition, offsets in settled.items():
            offset_map = with_done(before[partition], existing[partition], offsets)
            commit = commit_of(offset_map, trailer=Trailer(offset_map.offset, self._log))
            if commit.kept is not None:
                raise self._too_scattered(partition)
            memory[self.name, partition] = (commit.offset, commit.metadata.encode())
        return memory

    def remember(self, existing: Existing, settled: SettledOffsets) -> None:
        """Commit that these letters are settled. `existing` has the offsets of all letters in the same partitions."""
        self._inspector.commit(self.memory_of(existing, settled))

    def _read(self, partition: int, start: int, end: int, settled: Container[int]) -> Iterator[Letter]:
        for message in self._inspector.read((self.name, partition), start, end):
            yield Letter.of(message, settled=message.offset() in settled)

    def _existing(self, partition: int) -> int:
        if (self.name, partition) not in self._ends:
            raise ConfigError(
                f"{self.name} has no partition {partition}; it has {self._partitions}, counted from 0. "
                f"`headway dead list {self.name}` shows where its letters are."
            )
        return partition

    def _memory(self, partition: int, offset: int, text: bytes, end: int) -> OffsetMap:
        if offset > end:
            log.warning(
                "The commit of settled letters for %s, partition %d, belongs to an earlier topic of that name. All "
                "letters of this partition count as open.",
                self.name,
                partition,
            )
            return OffsetMap(0)
        metadata = read_metadata(text, offset, end, self._log)
        if metadata.offset_map is None:
            log.warning(
                "The letters of %s, partition %d, from offset %d on count as open, because their commit cannot be "
                "read: %s",
                self.name,
                partition,
                offset,
                metadata.reason or f"the commit metadata is that of {metadata.encoding}.",
            )
        return metadata.offset_map or OffsetMap(offset)

    def _too_scattered(self, partition: int) -> KafkaError:
        return KafkaError(
            f"The settled letters of {self.name}, partition {partition}, would be too scattered to commit: an offset "
            f"map has at most {MAX_CHARACTERS:,} characters. Select fewer letters with --until or --max, or select "
            "all."
        )


@contextmanager
def opened(name: str, config: Config) -> Iterator[tuple[DeadTopic, Mapping[str, int]]]:
    """Open a dead-letter topic. Yields the opened topic, and all existing topics with their partition counts.

    Raises `ConfigError` if the topic does not exist.
    """
    admin = Admin(config)
    kafka_topics = admin.topics("Read")
    if name not in kafka_topics:
        near = difflib.get_close_matches(name, kafka_topics, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`headway topics list` lists the topics."
        raise ConfigError(f"Kafka has no topic {name}. {hint}")
    log_of_topic = log_mark(admin.topic_ids([name]).get(name, ""))
    with GroupInspector(config, f"headway-dead-{name}", admin.client) as inspector:
        yield DeadTopic(name, kafka_topics[name], inspector, log_of_topic), kafka_topics

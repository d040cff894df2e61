"""Reads the state of queues from Kafka: one reading after the other, each with few requests."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from headway.core.levels.naming import is_topic_or_level
from headway.errors import HeadwayError
from headway.inspection.arrangement import LevelSource, QueueSource, arrange
from headway.inspection.discovery import Discovery
from headway.inspection.level_watch import LevelWatch
from headway.inspection.partition_watch import PartitionWatch, RecordFacts, SameKey
from headway.inspection.snapshot import MemberStatus, QueueStatus
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import CommittedOffset, Partition
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.groups_reader import GroupReading, GroupsReader
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config

LISTED_EVERY = 15.0
"""The seconds between two requests for the lists of groups and topics, and for the starts of the logs."""

_LISTED_AGAIN_AFTER = 4.0  # for a topic that a group reads and that is not in the list yet, or for lost groups

_RECORDS_A_READING = 40  # the single records that are read at most in one reading
_COUNTED = 20_000  # how many records after a stuck one are read at most to count those with the same key
_COUNTED_BYTES = 4_000_000  # … and how many bytes of values
_MOST_PARTITIONS = 20_000  # more would take too long to read

# A single record is wanted from each partition, so a broker should not send a megabyte after it.
SMALL_FETCHES: Config = {"fetch.message.max.bytes": 65_536, "queued.max.messages.kbytes": 4_096}

_LevelKey = tuple[str, str]  # the group and the Kafka topic


class QueuesReader(Closable):
    """Reads queues. Not thread-safe.

    Args:
        config: The settings of librdkafka.
        groups: The groups to watch. See `Discovery`.
        topics: The topics to watch, by their logical names or by those in Kafka. By default all topics of the groups.
        every: The seconds between two readings.
    """

    def __init__(self, config: Config, groups: Sequence[str], topics: Sequence[str], every: float) -> None:
        self.admin = Admin(config)
        self.records = GroupInspector({**config, **SMALL_FETCHES}, "headway-inspection", self.admin.client)
        self.groups = GroupsReader(config)
        self._discovery = Discovery(groups)
        self._topics = topics
        self._every = every
        self._existing: Mapping[str, int] = {}
        self._ids: dict[str, str] = {}
        self._starts: dict[Partition, int] = {}
        self._listed_at = self._starts_at = -LISTED_EVERY
        self._sources: list[QueueSource] = []
        self._watches: dict[_LevelKey, LevelWatch] = {}
        self._readings: dict[str, GroupReading] = {}
        self._members: dict[str, MemberStatus] = {}
        self._is_first = True
        self._requests = 0
        self.failures: list[str] = []

    def close(self) -> None:
        """Close the connections."""
        self.records.close()

    @property
    def requests(self) -> int:
        """The number of requests that were sent, except fetches and those about groups."""
        return self._requests

    @property
    def existing(self) -> Mapping[str, int]:
        """All topics, each with its number of partitions, as of the last listing."""
        return self._existing

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about what is not shown or could not be read in the latest reading."""
        return [*self.failures, *self._discovery.notes]

    def list_if_due(self, now: float, schedulers: Callable[[Collection[str]], Collection[str]]) -> None:
        """List groups and topics if it is time to. `schedulers` returns the schedulers among some topics."""
        unknown = any(level.kafka_topic not in self._existing for queue in self._sources for level in queue.levels)
        every = _LISTED_AGAIN_AFTER if unknown or self._discovery.has_lost else LISTED_EVERY
        if now - self._listed_at >= every:
            self._existing = self.admin.topics().seen
            self._discovery.list_groups(self.records.groups(), schedulers(self._existing))
            self._requests += 2
            self._listed_at = now

    def read(self, now: float) -> None:
        """Read the groups and the ends of their logs once. Raises `KafkaError` if Kafka does not answer."""
        self.failures = []
        found = self.groups.read(self._discovery.next_groups(), self.failures)
        missed = {group: reading for group, reading in self._readings.items() if group not in found}
        self._readings = self._discovery.examine({**missed, **found})
        self._sources = self._arranged()
        levels = [(level.group, level.kafka_topic) for queue in self._sources for level in queue.levels]
        self._read_ids({topic for _, topic in levels})
        bounds = self._bounds(sorted({topic for _, topic in levels}), now)
        self._see_members(now)
        for queue in self._sources:
            for source in queue.levels:
                self._see_level(source, now, bounds)
        self._watches = {level: self._watches[level] for level in levels}
        self._read_records(now)
        self._is_first = False

    def _arranged(self) -> list[QueueSource]:
        read = {
            group: {topic for topic, _ in reading.commits}
            | {topic for each in reading.members for topic, _ in each.partitions}
            for group, reading in self._readings.items()
        }
        found = arrange(read, self._existing)
        if not self._topics:
            return found
        return [
            queue
            for queue in found
            if any(
                topic == queue.topic or is_topic_or_level(level.kafka_topic, topic)
                for topic in self._topics
                for level in queue.levels
            )
        ]

    def _read_ids(self, topics: set[str]) -> None:
        """Read the ids of topics that are new, and again those of all topics after each listing."""
        if self._listed_at != self._starts_at:
            self._ids = {}
        if unknown := [topic for topic in topics if topic not in self._ids and topic in self._existing]:
            self._requests += 1
            try:
                self._ids |= self.admin.topic_ids(unknown)
            except HeadwayError as error:
                self.failures.append(str(error))

    def _bounds(self, topics: Sequence[str], now: float) -> dict[Partition, tuple[int, int]]:
        places = [(topic, number) for topic in topics for number in range(self._existing.get(topic, 0))]
        if len(places) > _MOST_PARTITIONS:
            self.failures.append(f"Only {_MOST_PARTITIONS:,} of {len(places):,} partitions are read.")
            places = places[:_MOST_PARTITIONS]
        # The ends are read after the commits. Otherwise an offset map could seem to reach beyond the log.
        ends = self.records.ends(places)
        if self._listed_at != self._starts_at or any(place not in self._starts for place in ends):
            self._starts, self._starts_at = self.records.starts(places), self._listed_at
            self._requests += 2
        self._requests += 2
        return {place: (min(self._starts.get(place, 0), end), end) for place, end in ends.items()}

    def _see_members(self, now: float) -> None:
        before, self._members = self._members, {}
        for group, reading in self._readings.items():
            for each in reading.members:
                known = before.get(each.member_id)
                since, was_there = (known.since, known.was_there) if known else (now, self._is_first)
                host, count = each.host, len(each.partitions)
                self._members[each.member_id] = MemberStatus(
                    group, each.member_id, each.client_id, host, count, since, was_there
                )

    def _see_level(self, source: LevelSource, now: float, bounds: Mapping[Partition, tuple[int, int]]) -> None:
        level = source.group, source.kafka_topic
        if level not in self._watches or self._watches[level].source != source:
            self._watches[level] = LevelWatch(source, self._every)
        reading = self._readings[source.group]
        commits: Mapping[Partition, CommittedOffset] = reading.commits
        members = {place: each.member_id for each in reading.members for place in each.partitions}
        self._watches[level].see(now, bounds, commits, members, self._ids.get(source.kafka_topic, ""))

    def _read_records(self, now: float) -> None:
        """Read the records that hold back a commit, and some of the oldest ones, as far as they are not known."""
        urgent = sorted(
            (
                (urgency, -watch.done_ahead, group, topic, watch.partition, watch)
                for group, topic, watch in self._all()
                if (urgency := watch.urgency(now)) is not None
            ),
            key=lambda each: each[:5],
        )[:_RECORDS_A_READING]
        ranges: dict[Partition, tuple[int, int]] = {}
        readers: dict[Partition, tuple[str, PartitionWatch]] = {}
        for _, _, group, topic, number, watch in urgent:
            if (topic, number) not in ranges:  # another group that reads the topic has to wait for the next reading
                ranges[topic, number] = (watch.lowest, watch.lowest + 1)
                readers[topic, number] = group, watch
        facts: dict[Partition, RecordFacts] = {}
        for place, message in self.records.read_together(ranges):
            facts[place] = RecordFacts.of(message, readers[place][0])
        for place, (_, watch) in readers.items():
            watch.has_read(now, watch.lowest, facts.get(place))
        self._count_same_keys(now)

    def _count_same_keys(self, now: float) -> None:
        """Count the records that have the key of a stuck one, for one partition in each reading."""
        for _, topic, watch in self._all():
            if wanted := watch.to_count(now, _COUNTED):
                watch.has_counted(now, self._counted((topic, watch.partition), watch, *wanted))
                return

    def _counted(self, place: Partition, watch: PartitionWatch, start: int, end: int) -> SameKey:
        waiting = size = 0
        for message in self.records.read(place, start, end):
            offset = message.offset() or 0
            waiting += watch.counts(offset, message.key())
            size += len(message.value() or b"")
            if size > _COUNTED_BYTES:
                return SameKey(waiting, offset + 1 - start)
        return SameKey(waiting, end - start)

    def _all(self) -> Iterator[tuple[str, str, PartitionWatch]]:
        for (group, topic), level in self._watches.items():
            for watch in level.partitions.values():
                yield group, topic, watch

    def queues(self, now: float) -> tuple[QueueStatus, ...]:
        """Return the state of all queues as of the latest reading."""
        return tuple(
            QueueStatus(
                queue.topic,
                queue.group,
                tuple(self._watches[level.group, level.kafka_topic].status(now) for level in queue.levels),
            )
            for queue in self._sources
        )

    def members(self) -> tuple[MemberStatus, ...]:
        """Return the members of all groups that are watched."""
        return tuple(sorted(self._members.values(), key=lambda each: (each.group, each.client_id, each.member_id)))

"""Reads the newest letters of dead-letter topics, each letter once, and groups them by cause."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headway.core.offsets.commit_metadata import Done, read_metadata
from headway.core.offsets.offset_map import OffsetMap
from headway.inspection.letters import Letter
from headway.inspection.rates_and_ages import Rates
from headway.inspection.snapshot import DeadCause, DeadLetterStatus
from headway.kafka.binding.capi import CommittedOffset, Partition
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.groups_reader import GroupsReader

NEWEST = 2_000
"""How many letters of a topic are kept and grouped: the newest ones."""

_MOST_TOPICS = 20
_MOST_OF_A_MESSAGE = 300  # characters
_MOST_CAUSES = 100
_ENDS = ("-dead", ".dead", "-dlq", ".dlq", "-dead-letters")


class KeptLetter(NamedTuple):
    """What is kept of a letter."""

    partition: int
    offset: int
    when: float
    exception: str
    topic: str | None
    reason: str | None
    message: str
    is_letter: bool


class LettersOfTopic:
    """The newest letters of one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._kept = deque[KeptLetter](maxlen=NEWEST)
        self._positions: dict[Partition, int] = {}
        self._bounds: Mapping[Partition, tuple[int, int]] = {}
        self._settled: dict[int, OffsetMap] = {}
        self._rates = Rates()

    def unread(self, now: float, bounds: Mapping[Partition, tuple[int, int]]) -> dict[Partition, tuple[int, int]]:
        """Take in where the log begins and ends, and return the ranges to read: the newest letters that are new."""
        if any(end < self._positions.get(place, 0) for place, (_, end) in bounds.items()):
            self._kept.clear()  # the topic was deleted and created again
            self._positions = {}
        self._bounds = bounds
        self._rates.see(now, sum(end for _, end in bounds.values()), 0)
        most = max(1, NEWEST // max(1, len(bounds)))
        ranges = {}
        for place, (start, end) in bounds.items():
            begin = max(start, self._positions.get(place, 0), end - most)
            if begin < end:
                ranges[place] = (begin, end)
            self._positions[place] = end
        return ranges

    def add(self, letter: Letter) -> None:
        """Keep a letter that was read."""
        failure = letter.failure
        self._kept.append(
            KeptLetter(
                *letter.place,
                when=letter.when / 1000,
                exception=(failure.exception or "" if failure else "")[:_MOST_OF_A_MESSAGE],
                topic=failure.topic[:250] if failure and failure.topic else None,
                reason=failure.reason[:_MOST_OF_A_MESSAGE] if failure and failure.reason else None,
                message=(failure.message or "" if failure else "")[:_MOST_OF_A_MESSAGE],
                is_letter=failure is not None,
            )
        )

    def settle(self, commits: Mapping[Partition, CommittedOffset]) -> None:
        """Take in which letters are settled, from the commits of the group that remembers them."""
        self._settled = {}
        for (topic, partition), (offset, text) in commits.items():
            end = self._bounds.get((topic, partition), (0, 0))[1]
            if topic == self.topic and offset <= end:
                self._settled[partition] = read_metadata(text, offset, end).offset_map or OffsetMap(offset)

    @property
    def has_letters(self) -> bool:
        """Whether any record that was read is a dead letter."""
        return any(each.is_letter for each in self._kept)

    def status(self) -> DeadLetterStatus:
        """Return the state as a value for a snapshot."""
        total = sum(end - start for start, end in self._bounds.values())
        settled = sum(self._settled_in(partition, *self._bounds[self.topic, partition]) for partition in self._settled)
        done = {partition: Done(offset_map) for partition, offset_map in self._settled.items()}
        still_open = [each for each in self._kept if each.offset not in done.get(each.partition, ())]
        return DeadLetterStatus(
            topic=self.topic,
            total=total,
            open=max(0, total - settled),
            read=len(self._kept),
            causes=tuple(_causes(still_open)),
            arrived_per_second=self._rates.arrived_per_second,
        )

    def _settled_in(self, partition: int, start: int, end: int) -> int:
        settled = self._settled[partition]
        ahead = sum(len(range(max(each.start, start), min(each.stop, end))) for each in settled.complete)
        return max(0, settled.offset - start) + ahead


class DeadLettersReader:
    """Reads dead-letter topics with the clients of another reader. Not thread-safe.

    Args:
        records: Reads the records.
        groups: Reads which letters are settled.
        named: The topics to read. By default, those whose names end as those of dead-letter topics usually do, such as
            in `-dead`, if one of the newest records is a dead letter.
    """

    def __init__(self, records: GroupInspector, groups: GroupsReader, named: Sequence[str]) -> None:
        self._records = records
        self._groups = groups
        self._named = named
        self._topics: dict[str, LettersOfTopic] = {}
        self.requests = 0

    def read(self, now: float, existing: Mapping[str, int], failures: list[str]) -> None:
        """Read the letters that are new. `existing` has the number of partitions of all topics."""
        wanted = self._named or sorted(each for each in existing if each.endswith(_ENDS))
        there = [each for each in wanted if each in existing][:_MOST_TOPICS]
        failures += [f"Kafka has no topic {each}." for each in self._named if each not in existing]
        if len(wanted) > len(there) == _MOST_TOPICS:
            failures.append(f"Only {_MOST_TOPICS} dead-letter topics are read. Name the ones to watch.")
        self._topics = {each: self._topics.get(each) or LettersOfTopic(each) for each in there}
        places = [(topic, number) for topic in there for number in range(existing[topic])]
        if not places:
            return
        starts, ends = self._records.starts(places), self._records.ends(places)
        self.requests += 4
        ranges: dict[Partition, tuple[int, int]] = {}
        for topic, letters in self._topics.items():
            bounds = {place: (starts.get(place, 0), end) for place, end in ends.items() if place[0] == topic}
            ranges |= letters.unread(now, bounds)
        for (topic, _), message in self._records.read_together(ranges):
            self._topics[topic].add(Letter.of(message, settled=False))
        self._read_settled(failures)

    def _read_settled(self, failures: list[str]) -> None:
        groups = {f"headway-dead-{topic}": letters for topic, letters in self._topics.items() if letters.has_letters}
        for group, reading in self._groups.read(list(groups), failures).items():
            groups[group].settle(reading.commits)

    def status(self) -> Iterator[DeadLetterStatus]:
        """Yield the state of each topic with dead letters, and of each topic that the user has named."""
        for topic, letters in self._topics.items():
            if letters.has_letters or topic in self._named:
                yield letters.status()


def _causes(letters: Sequence[KeptLetter]) -> list[DeadCause]:
    """Return the causes of these letters, the most frequent first."""
    groups = defaultdict[tuple[str, str | None, str | None], list[KeptLetter]](list)
    for each in letters:
        groups[each.exception, each.topic, each.reason].append(each)
    causes = []
    for (exception, topic, reason), some in groups.items():
        newest = max(some, key=lambda each: each.when)
        first, place = min(each.when for each in some), (newest.partition, newest.offset)
        causes.append(DeadCause(exception, topic, reason, len(some), first, newest.when, place, newest.message))
    return sorted(causes, key=lambda each: (-each.count, -each.last))[:_MOST_CAUSES]

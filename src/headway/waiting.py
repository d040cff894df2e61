"""Records that wait: list what is not done, and drop or move records before they are handled.

    from headway.waiting import WaitingRecords

    with WaitingRecords({"bootstrap.servers": "localhost:9092"}, "billing", "orders") as waiting:
        late = waiting.records(where="header.tenant = acme", older_than=3600)
        waiting.promote(late, why="they pay for it")

The members of the group must run with `steered=True`. `headway waiting` is the command for the same.
"""

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from headway.core.levels.naming import is_topic_or_level, level_group, level_topic
from headway.core.offsets.commit_metadata import read_metadata
from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.trailer import Tried, log_mark
from headway.core.outgoing_record import OutgoingRecord
from headway.core.selectors.conditions import FieldValue
from headway.core.selectors.parser import HEADER
from headway.core.selectors.selector import Selector
from headway.core.waiting.requests import (
    FINAL,
    REQUESTS_TOPIC,
    Edit,
    EditAnswer,
    EditRequest,
    Fate,
    Place,
    RecordFate,
    in_requests,
    read_message,
)
from headway.errors import ConfigError, HeadwayError, KafkaError, UnreadableError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.requests_topic import RequestMessages
from headway.parallel.consumer import ParallelConsumer
from headway.records.record_types import ConsumerRecord, Header, Message, headers_of
from headway.rules import Hold, Rule, Rules
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of

log = logging.getLogger(__name__)

__all__ = ["Fate", "RecordFate", "UnfinishedRecord", "WaitingRecords"]

_ASK_AGAIN_AFTER = 1.0  # how long an asker waits for an answer before it asks again, in seconds
_HELD = "held-"  # the beginning of the ids of rules that hold single records
_MOST_IN_A_RULE = 150  # offsets; a selector has at most 4,000 characters
_held_records = re.compile(
    r"topic = '([\w.-]+)' and level = (\d+) and partition = (\d+) and offset in \(([\d, ]+)\)"
).fullmatch
_EXPLAINED_WITHIN = 3.0  # how long members have to say why records wait, in seconds


RecordAddress = tuple[str, int, int]
"""The Kafka topic, the partition and the offset of a record."""


@dataclass(frozen=True, slots=True)
class UnfinishedRecord:
    """A record that a group has not finished.

    Attributes:
        topic: The name of its topic in Kafka.
        level: Its level; 0 for a topic without levels.
        partition: The number of its partition.
        offset: Its offset.
        key: The bytes of its key.
        value: The bytes of its value.
        headers: Its headers.
        timestamp: Its timestamp in milliseconds since the epoch.
        attempts: How many attempts have failed, as of the group's last commit.
    """

    topic: str
    level: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None = field(repr=False)
    headers: Sequence[Header] = field(repr=False)
    timestamp: int
    attempts: int

    @property
    def place(self) -> RecordAddress:
        """The Kafka topic, the partition and the offset."""
        return self.topic, self.partition, self.offset


class _LevelOfGroup(NamedTuple):
    """A level of the topic, and the group that reads it."""

    group: str
    topic: str
    level: int
    partitions: int


class _Log(NamedTuple):
    """What a group has not finished of one partition: the ranges of offsets, and the failed attempts."""

    source: _LevelOfGroup
    partition: int
    ranges: Sequence[range]
    tried: Mapping[int, Tried]


OnFate = Callable[[RecordFate], None]
"""Called with what became of each record, as soon as it is known. Records that wait for their turn are reported too."""


class WaitingRecords(Closable):
    """Lists and edits the records of a topic that a group has not finished.

    An edit is carried out by the member that owns the record's partition, in one transaction with the offset, so each
    record is handled, moved or dropped once, even if that member dies. If the group has no members, this process
    becomes one for as long as the edit takes. It handles no records.

    Args:
        config: The connection's settings.
        group: The group, without a level.
        topic: The topic, without a level.
        by: Who makes the edits, for the logs of members.

    Raises `ConfigError` if the topic does not exist. Not thread-safe.
    """

    def __init__(self, config: Config, group: str, topic: str, *, by: str = "") -> None:
        self._config = connection_of(config)
        self._group, self._topic, self._by = group, topic, by
        self._admin = Admin(self._config)
        self._client: ProducerClient | None = None
        self._inspectors: dict[str, GroupInspector] = {}
        self._sources = self._find_sources()

    def close(self) -> None:
        """Close the connections."""
        for inspector in self._inspectors.values():
            inspector.close()
        if self._client is not None:
            self._client.close(0.0)

    # Listing

    def records(
        self,
        *,
        level: int | None = None,
        partition: int | None = None,
        offsets: Collection[int] | None = None,
        key: bytes | str | None = None,
        where: str = "",
        older_than: float | None = None,
        limit: int = 100,
    ) -> list[UnfinishedRecord]:
        """Return up to `limit` records that are not done, by level, partition and offset, the highest level first.

        All arguments choose together. `where` is a selector, such as `header.tenant = acme`, and `older_than` an age in
        seconds. A record counts as not done until the group has committed that it is done. Raises `ConfigError` if the
        selector is not valid, and `KafkaError` if Kafka does not answer.
        """
        chooses = _chooser(offsets, key, Selector.parse(where) if where else None, older_than)
        found: list[UnfinishedRecord] = []
        for log in self._logs(level, partition):
            for record in self._read(log, log.ranges if offsets is None else _only(log.ranges, offsets)):
                if len(found) >= limit:
                    return found
                if chooses(record):
                    found.append(record)
        return found

    def why(self, records: Sequence[UnfinishedRecord]) -> dict[RecordAddress, RecordFate]:
        """Ask the members why records wait. Records without an answer are left out, because no member has them."""
        fates = self._ask(Edit.LOOK, records, "", "", False, _EXPLAINED_WITHIN, None)
        found = {(fate.topic, fate.partition, fate.offset): fate for fate in fates}
        with Rules(self._config) as rules:
            for rule, place, offsets in self._held(rules):
                for record in records:
                    if (record.level, record.partition) == place and record.offset in offsets:
                        found[record.place] = RecordFate(*record.place, Fate.HELD, f"by the rule {rule.id}")
        return found

    # Edits

    def drop(
        self,
        records: Sequence[UnfinishedRecord],
        *,
        why: str = "",
        timeout: float = 30.0,
        on_fate: OnFate | None = None,
    ) -> list[RecordFate]:
        """Mark records as done without a call of the handler. Returns what became of each record that is decided.

        Waits up to `timeout` seconds for the members. A record that is not in the result is undecided: no member has
        answered, or it waits for its turn. It might still be dropped.
        """
        return self._ask(Edit.DROP, records, "", why, False, timeout, on_fate)

    def move(
        self,
        records: Sequence[UnfinishedRecord],
        to: str,
        *,
        why: str = "",
        break_order: bool = False,
        timeout: float = 30.0,
        on_fate: OnFate | None = None,
    ) -> list[RecordFate]:
        """Move records to another Kafka topic: store copies there, and mark the records as done.

        A record is moved after the earlier records of its key. It is not moved if a later record of its key waits that
        is not moved with it. `break_order` moves all of them at once. The rest is as for `drop`.
        """
        if reason := self._admin.why_not_writable(to):
            raise ConfigError(f"Records cannot be moved to {to}. {reason}")
        own = [record for record in records if record.topic == to]
        if own:
            raise ConfigError(f"The record at offset {own[0].offset} of {to} cannot be moved to its own topic.")
        return self._ask(Edit.MOVE, records, to, why, break_order, timeout, on_fate)

    def promote(
        self, records: Sequence[UnfinishedRecord], level: int | None = None, **options: Any
    ) -> list[RecordFate]:
        """Move records to a higher level, by default the next one. The options are those of `move`."""
        return self._to_levels(records, lambda own: own + 1 if level is None else level, options)

    def demote(self, records: Sequence[UnfinishedRecord], level: int | None = None, **options: Any) -> list[RecordFate]:
        """Move records to a lower level, by default the next one. The options are those of `move`."""
        return self._to_levels(records, lambda own: own - 1 if level is None else level, options)

    def next(
        self,
        records: Sequence[UnfinishedRecord],
        *,
        why: str = "",
        timeout: float = 30.0,
        on_fate: OnFate | None = None,
    ) -> list[RecordFate]:
        """Let records start before all other records of their partitions. Earlier records of their keys come first.

        This works for records that a member has fetched; the fate of others is `UNREAD`. It lasts until the partition
        gets another owner. The rest is as for `drop`.
        """
        return self._ask(Edit.NEXT, records, "", why, False, timeout, on_fate)

    # Holding

    def hold(
        self, records: Sequence[UnfinishedRecord], *, lets_pass: bool = False, why: str = "", lasts: float | None = None
    ) -> list[Rule]:
        """Keep records from starting until they are released, or for `lasts` seconds. Returns the rules for that.

        A held record is not done and takes no slot. Later records of its key wait for it, unless `lets_pass` is True.
        It stays held if its partition gets another owner, because a rule of the group names it. A record that is
        running continues. Raises `KafkaError` if the rules cannot be stored.
        """
        now = int(time.time() * 1000)
        until = None if lasts is None else now + int(lasts * 1000)
        stored = []
        with Rules(self._config) as rules:
            for (level, partition), offsets in self._by_partition(records).items():
                for start in range(0, len(offsets), _MOST_IN_A_RULE):
                    where = self._where(level, partition, offsets[start : start + _MOST_IN_A_RULE])
                    id_ = f"{_HELD}{uuid.uuid4().hex[:6]}"
                    rule = Rule(id_, self._group, Hold(lets_pass), where, self._by, why[:1000], now, until)
                    stored.append(rules.set(rule))
        return stored

    def release(self, records: Sequence[UnfinishedRecord]) -> int:
        """Let held records start. Returns how many of these records were held by `hold`."""
        chosen = {place: set(offsets) for place, offsets in self._by_partition(records).items()}
        count = 0
        with Rules(self._config) as rules:
            for rule, place, offsets in self._held(rules):
                if gone := set(offsets) & chosen.get(place, set()):
                    count += len(gone)
                    left = [offset for offset in offsets if offset not in gone]
                    if left:
                        rules.set(msgspec.structs.replace(rule, where=self._where(*place, left)))
                    else:
                        rules.end(self._group, rule.id)
        return count

    def _by_partition(self, records: Iterable[UnfinishedRecord]) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for record in records:
            found.setdefault((record.level, record.partition), []).append(record.offset)
        return {place: sorted(offsets) for place, offsets in found.items()}

    def _where(self, level: int, partition: int, offsets: Sequence[int]) -> str:
        numbers = ", ".join(map(str, offsets))
        return f"topic = '{self._topic}' and level = {level} and partition = {partition} and offset in ({numbers})"

    def _held(self, rules: Rules) -> Iterator[tuple[Rule, tuple[int, int], list[int]]]:
        """Yield the rules that hold records of this topic, each with a level, a partition and the offsets."""
        for rule in rules.all(self._group):
            found = _held_records(rule.where)
            if rule.id.startswith(_HELD) and found and found[1] == self._topic:
                yield rule, (int(found[2]), int(found[3])), [int(each) for each in found[4].split(", ")]

    def _to_levels(
        self, records: Sequence[UnfinishedRecord], level_of: Callable[[int], int], options: dict[str, Any]
    ) -> list[RecordFate]:
        by_level: dict[int, list[UnfinishedRecord]] = {}
        for record in records:
            by_level.setdefault(level_of(record.level), []).append(record)
        topics = {level: self._topic_of(level) for level in by_level}
        return [fate for level, some in by_level.items() for fate in self.move(some, topics[level], **options)]

    def _topic_of(self, level: int) -> str:
        for source in self._sources:
            if source.level == level and source.topic == level_topic(self._topic, level):
                return source.topic
        levels = ", ".join(str(source.level) for source in self._sources)
        raise ConfigError(f"The topic {self._topic} has no level {level}. Its levels are {levels}.")

    # The members

    def _ask(
        self,
        edit: Edit,
        records: Sequence[UnfinishedRecord],
        to: str,
        why: str,
        break_order: bool,
        timeout: float,
        on_fate: OnFate | None,
    ) -> list[RecordFate]:
        deadline = time.monotonic() + timeout
        until = int((time.time() + timeout) * 1000)
        chosen = {record.place for record in records}
        earlier = self._earlier(records) if edit is Edit.MOVE and not break_order else {}
        places = [Place(*place, earlier.get(place)) for place in chosen]
        requests = [
            EditRequest(uuid.uuid4().hex, self._group, edit, some, until, to, self._by, why[:1000], break_order)
            for some in in_requests(places)
        ]
        messages = RequestMessages(self._config)
        try:
            with self._stand_in(edit):
                return _Asking(requests, chosen, self._send, on_fate).answers(messages, deadline)
        finally:
            messages.close()

    @contextmanager
    def _stand_in(self, edit: Edit) -> Iterator[None]:
        """Be a member of the group if it has none, so that an edit is carried out. This member handles no records."""
        is_needed = edit in (Edit.DROP, Edit.MOVE) and not any(
            self._inspector(group).member_count() for group in {source.group for source in self._sources}
        )
        if not is_needed:
            yield
            return
        member = self._make_member()
        member.pause()
        thread = threading.Thread(target=_run, args=(member,), name="headway-stand-in", daemon=True)
        thread.start()
        try:
            yield
        finally:
            member.close(drain=False)
            thread.join()

    def _make_member(self) -> ParallelConsumer:
        # A partition without a commit is left alone, because only the handlers' settings say where it begins.
        config: dict[str, Any] = {**self._config, "group.id": self._group, "auto.offset.reset": "error"}
        levels = 1 + max(source.level for source in self._sources)
        is_plain = self._sources[0].topic == self._topic
        if not is_plain or levels > 1:
            config["levels"] = levels
            config["group.per.level"] = self._sources[0].group != self._group
        member = ParallelConsumer(config, steered=True, commit_mode="transactional")
        member.subscribe({self._topic: self._sources[0].level} if is_plain and levels > 1 else self._topic)
        return member

    def _send(self, requests: Iterable[EditRequest]) -> None:
        refused: list[Any] = []
        if self._client is None:
            self._client = ProducerClient({**self._config, "enable.idempotence": True, "linger.ms": 0})
        for request in requests:
            record = OutgoingRecord(REQUESTS_TOPIC, request.encode(), request.id, 0)
            self._client.produce(record, lambda error, _: refused.append(error))
        left = self._client.flush(BROKER_ANSWERS_WITHIN)
        if left or any(refused):
            reason = next(filter(None, refused), "Kafka did not answer")
            raise KafkaError(f"The request was not stored in {REQUESTS_TOPIC}: {reason}.")

    # What is not done

    def _find_sources(self) -> list[_LevelOfGroup]:
        listed = self._admin.topics().seen
        names = sorted(name for name in listed if is_topic_or_level(name, self._topic))
        if level_topic(self._topic, 0) in names:
            names = [name for name in names if name != self._topic]
        if not names:
            raise ConfigError(f"Kafka has no topic {self._topic}. `headway topics list` shows the topics.")
        found = [self._source(name, listed[name]) for name in names]
        return sorted(found, key=lambda source: -source.level)

    def _source(self, topic: str, partitions: int) -> _LevelOfGroup:
        number = topic.removeprefix(f"{self._topic}-")
        is_level = topic != self._topic
        groups = self._groups_of_level(int(number)) if is_level else self._groups_of_topic()
        places = [(topic, partition) for partition in range(partitions)]
        group = next((each for each in groups if self._inspector(each).committed(places)), None)
        if group is None:
            group = level_group(self._group, int(number)) if is_level else self._group
        return _LevelOfGroup(group, topic, int(number) if is_level else _level_of(group, self._group), partitions)

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

    def _logs(self, level: int | None, partition: int | None) -> Iterator[_Log]:
        for source in self._sources:
            if level is not None and source.level != level:
                continue
            numbers = range(source.partitions) if partition is None else [partition]
            yield from self._logs_of(source, [(source.topic, number) for number in numbers])

    def _logs_of(self, source: _LevelOfGroup, places: Sequence[Partition]) -> Iterator[_Log]:
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
            yield _Log(
                source, place[1], [each for each in left if each], metadata.trailer.tried if metadata.trailer else {}
            )

    def _read(self, log: _Log, ranges: Sequence[range]) -> Iterator[UnfinishedRecord]:
        inspector, place = self._inspector(log.source.group), (log.source.topic, log.partition)
        for offsets in ranges:
            for message in inspector.read(place, offsets.start, offsets.stop):
                yield _record(message, log)

    def _earlier(self, records: Sequence[UnfinishedRecord]) -> dict[RecordAddress, int]:
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


class _Asking:
    """One edit that is being asked for: what is decided, and what must be asked again."""

    def __init__(
        self,
        requests: Sequence[EditRequest],
        records: Collection[RecordAddress],
        send: Callable[[Iterable[EditRequest]], None],
        on_fate: OnFate | None,
    ) -> None:
        self._requests = {request.id: request for request in requests}
        self._undecided = set(records)
        self._send = send
        self._on_fate = on_fate
        self._fates: dict[RecordAddress, RecordFate] = {}

    def answers(self, messages: RequestMessages, deadline: float) -> list[RecordFate]:
        """Ask, and ask again, until each record is decided or the time is over."""
        ask_at = 0.0
        while self._undecided and (now := time.monotonic()) < deadline:
            if now >= ask_at:
                self._send(each for each in self._requests.values() if self._is_open(each))
                ask_at = time.monotonic() + _ASK_AGAIN_AFTER
            if (message := messages.take()) is not None:
                self._take(*message)
        return [self._fates[place] for place in sorted(self._fates)]

    def _is_open(self, request: EditRequest) -> bool:
        return any(
            (each.topic, each.partition, offset) in self._undecided
            for each in request.records
            for offset in each.offsets
        )

    def _take(self, key: str, value: bytes) -> None:
        if key not in self._requests:
            return
        try:
            answer = read_message(key, value)
        except UnreadableError:
            return
        for fate in answer.fates if isinstance(answer, EditAnswer) else ():
            place = (fate.topic, fate.partition, fate.offset)
            if place not in self._undecided:
                continue  # the first answer counts: that of an edit comes before "gone"
            if fate.fate in FINAL:
                self._undecided.discard(place)
                self._fates[place] = fate
            if self._on_fate:
                self._on_fate(fate)


def _run(member: ParallelConsumer) -> None:
    """Run a member that is paused, so it handles no records."""
    try:
        member.run(_handle_nothing)
    except HeadwayError as error:
        log.warning("This process could not carry out the edits as a member of the group: %s", error)


def _handle_nothing(record: ConsumerRecord) -> None:
    raise HeadwayError("This member must not handle records.")


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


def _record(message: Message, log: _Log) -> UnfinishedRecord:
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


def _chooser(
    offsets: Collection[int] | None, key: bytes | str | None, selector: Selector | None, older_than: float | None
) -> Callable[[UnfinishedRecord], bool]:
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

"""Lists and edits the records of a topic that a group has not finished."""

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import msgspec

from headway.core.outgoing_record import OutgoingRecord
from headway.core.selectors.selector import Selector
from headway.core.waiting.requests import REQUESTS_TOPIC, Edit, EditRequest, Fate, Place, RecordFate, in_requests
from headway.errors import ConfigError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.kafka.reading.requests_topic import RequestMessages
from headway.rules import Hold, Rule, Rules
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of
from headway.waiting.edit_question import EditQuestion, OnFate
from headway.waiting.stand_in import standing_in
from headway.waiting.unfinished_log import UnfinishedLog, chooser
from headway.waiting.unfinished_record import RecordAddress, UnfinishedRecord

_HELD = "held-"  # the beginning of the ids of rules that hold single records
_MOST_IN_A_RULE = 150  # offsets; a selector has at most 4,000 characters
_held_records = re.compile(
    r"topic = '([\w.-]+)' and level = (\d+) and partition = (\d+) and offset in \(([\d, ]+)\)"
).fullmatch
_EXPLAINED_WITHIN = 3.0  # how long members have to say why records wait, in seconds


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
        self._log = UnfinishedLog(self._config, self._admin, group, topic)

    def close(self) -> None:
        """Close the connections."""
        self._log.close()
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
        chooses = chooser(offsets, key, Selector.parse(where) if where else None, older_than)
        return list(islice(self._log.records(level, partition, offsets, chooses), limit))

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
        topics = {level: self._log.topic_of(level) for level in by_level}
        return [fate for level, some in by_level.items() for fate in self.move(some, topics[level], **options)]

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
        earlier = self._log.earlier(records) if edit is Edit.MOVE and not break_order else {}
        places = [Place(*place, earlier.get(place)) for place in chosen]
        requests = [
            EditRequest(uuid.uuid4().hex, self._group, edit, some, until, to, self._by, why[:1000], break_order)
            for some in in_requests(places)
        ]
        messages = RequestMessages(self._config)
        try:
            needs_stand_in = edit in (Edit.DROP, Edit.MOVE) and not self._log.has_members()
            with self._stand_in() if needs_stand_in else nullcontext():
                return EditQuestion(requests, chosen, self._send, on_fate).answers(messages, deadline)
        finally:
            messages.close()

    def _stand_in(self) -> AbstractContextManager[None]:
        return standing_in(self._config, self._group, self._topic, self._log.sources)

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

"""Carries out the edits of records that wait, for the partitions that this member owns.

Invariants: an edit, its answer and the offset of its record are in one transaction. While the lanes of a partition are
open, the dispatch is locked, so no handler starts for a record that is being edited. A request that arrives again,
because its asker has no answer yet, is carried out once: the records that it has ended are remembered.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from headway.core.engine.attempt import Attempt, FinalOutcome
from headway.core.engine.lanes import ALONE
from headway.core.engine.open_lanes import OpenLanes
from headway.core.record_size import size_of
from headway.core.retry import Move
from headway.core.waiting.decisions import Decision, decide_edits
from headway.core.waiting.requests import REQUESTS_TOPIC, ChosenOffsets, Edit, EditAnswer, EditRequest, Fate, RecordFate
from headway.errors import EditedError, KafkaError
from headway.execution.dispatch import Dispatch
from headway.execution.jobs import RecordAttempt
from headway.kafka.admin import Admin
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.kafka.reading.group_inspector import GroupInspector
from headway.parallel.handler_output import HandlerOutput, OutputKind
from headway.parallel.moves import copy_of
from headway.records.record_types import ConsumerRecord, RecordSource, TopicPartition
from headway.settings.config import Config

log = logging.getLogger(__name__)

_MOST_BYTES = 1_000_000  # assumed if the settings of a topic are not known
_MOST_OF_A_HISTORY = 20_000  # the size of the history in a header of the copy is below this
_REMEMBERED = 200  # how many requests are remembered


class Edits:
    """Carries out edits under the lock of the dispatch.

    Args:
        config: The connection's settings, to read records that are not fetched yet.
        group: The group, without the level.
        member: The name of this member in answers.
        dispatch: The dispatch, which holds the fetched records.
        levels: The members of all levels, which know the assigned partitions by their names in Kafka.
    """

    def __init__(self, config: Config, group: str, member: str, dispatch: Dispatch, levels: LevelConsumers) -> None:
        self._config = config
        self._group = group
        self._member = member
        self._dispatch = dispatch
        self._levels = levels
        self._reader: GroupInspector | None = None
        self.dropped = 0
        """The number of records that were dropped."""
        # The records that each request has ended, by its id. A record is an offset in an assignment with this epoch: if
        # the partition was lost before the commit, the record is not done.
        self._ended: dict[str, set[tuple[int, int]]] = {}

    def concerns(self, request: EditRequest) -> bool:
        """Return whether this member owns a partition with records of this request."""
        return request.group == self._group and bool(self._own(request))

    def carry_out(self, request: EditRequest, now: float) -> EditAnswer | None:
        """Carry out a request for the partitions of this member.

        Returns the answer about records that were not ended, or None if there is nothing to answer. The answers about
        the others are in the transactions that end them. Raises `KafkaError` if records that are not fetched yet cannot
        be read.
        """
        fates: list[RecordFate] = []
        most = self._most_bytes(request.to) if request.edit is Edit.MOVE else 0
        for partition, records in self._own(request):
            fates += self._carry_out(request, partition, records, now, most)
        return EditAnswer(request.id, self._member, tuple(fates)) if fates else None

    def refuse(self, request: EditRequest, reason: str) -> EditAnswer:
        """Return the answer that refuses a request for all partitions of this member."""
        fates = [
            RecordFate(records.topic, records.partition, offset, Fate.REFUSED, reason[:1000])
            for _, records in self._own(request)
            for offset in records.offsets
        ]
        return EditAnswer(request.id, self._member, tuple(fates))

    def close(self) -> None:
        """Close the connections."""
        if self._reader:
            self._reader.close()

    def _own(self, request: EditRequest) -> list[tuple[TopicPartition, ChosenOffsets]]:
        own = {self._levels.of(each).client.addresses.name(each): each for each in self._levels.assignment()}
        return [(own[place], each) for each in request.records if (place := (each.topic, each.partition)) in own]

    def _carry_out(
        self, request: EditRequest, partition: TopicPartition, records: ChosenOffsets, now: float, most: int
    ) -> Iterable[RecordFate]:
        unread = self._read_ahead(request, partition, records)
        with self._dispatch.lock:
            lanes = self._dispatch.open_lanes(partition)
            if lanes is None:
                return ()  # its next owner gets the request again
            ended = self._ended_by(request)
            offsets = [offset for offset in records.offsets if (lanes.assignment.epoch, offset) not in ended]
            try:
                lane_of = self._dispatch.engine.lane_of
                lanes_of = {each: lane_of(record) if record else ALONE for each, record in unread.items()}
                decided = decide_edits(request, offsets, lanes, lanes_of, records.earlier)
                if request.edit is Edit.MOVE:
                    decided = {
                        offset: self._unless_too_large(request, decision, unread.get(offset), most)
                        for offset, decision in decided.items()
                    }
                for offset, decision in decided.items():
                    if request.edit is Edit.NEXT:
                        self._put_first(lanes, decision)
                    elif decision.fate is Fate.DONE:
                        ended.add((lanes.assignment.epoch, offset))
                        self._end(request, lanes, offset, decision, unread, now)
                    elif decision.fate is Fate.TURN:
                        self._end_later(request, lanes, decision)
            finally:
                self._dispatch.engine.close_lanes(lanes, now)
        self._dispatch.feed()
        self._log(request, partition, sum(decision.fate is Fate.DONE for decision in decided.values()))
        return [
            RecordFate(records.topic, records.partition, offset, decision.fate, decision.note)
            for offset, decision in decided.items()
            if decision.fate is not Fate.DONE or request.edit is Edit.NEXT
        ]

    def _ended_by(self, request: EditRequest) -> set[tuple[int, int]]:
        while len(self._ended) >= _REMEMBERED and request.id not in self._ended:
            del self._ended[next(iter(self._ended))]
        return self._ended.setdefault(request.id, set())

    def _log(self, request: EditRequest, partition: TopicPartition, count: int) -> None:
        if count and request.edit in (Edit.DROP, Edit.MOVE):
            self.dropped += count if request.edit is Edit.DROP else 0
            what = "dropped" if request.edit is Edit.DROP else f"moved to {request.to}"
            log.info("%d records of %s are %s, because %s", count, partition, what, _why(request))

    def _most_bytes(self, topic: str) -> int:
        """Return the largest size of a record that the topic of a move accepts.

        Raises `KafkaError` if records cannot be written to this topic, because a copy that is refused would hold up the
        commits.
        """
        admin = Admin(self._config)
        if reason := admin.why_not_writable(topic):
            raise KafkaError(f"Records cannot be moved to {topic}. {reason}")
        most = admin.topic_settings(topic).get("max.message.bytes", "")
        return int(most) if most.isdecimal() else _MOST_BYTES

    def _unless_too_large(
        self, request: EditRequest, decision: Decision, unread: ConsumerRecord | None, most: int
    ) -> Decision:
        record = unread if decision.attempt is None else decision.attempt.record
        if decision.fate not in (Fate.DONE, Fate.TURN) or record is None:
            return decision
        size = size_of(record.raw_value, record.raw_key, record.headers) + _MOST_OF_A_HISTORY
        if record.kafka_topic == request.to:
            return Decision(Fate.REFUSED, "it is in this topic already")
        if size > most:
            return Decision(Fate.REFUSED, f"its copy can have {size} bytes, but {request.to} accepts {most}")
        return decision

    # Carrying out an edit. The caller holds the lock.

    def _end(
        self,
        request: EditRequest,
        lanes: OpenLanes[ConsumerRecord],
        offset: int,
        decision: Decision,
        unread: Mapping[int, ConsumerRecord | None],
        now: float,
    ) -> None:
        attempt = decision.attempt or _unread_attempt(lanes, offset, unread.get(offset))
        outputs = [self._answer(request, attempt, offset)]
        if request.edit is Edit.MOVE:
            outputs.insert(0, copy_of(attempt, request.to, self._group))
        attempt.outcome = FinalOutcome(_error(request), None)  # the circuit breaker does not count it as a success
        if decision.attempt is None:
            self._dispatch.engine.end_ahead(lanes, offset, outputs)
        else:
            self._dispatch.engine.end_waiting(lanes, attempt, outputs)
        self._dispatch.ended_waiting(attempt, now)

    def _put_first(self, lanes: OpenLanes[ConsumerRecord], decision: Decision) -> None:
        if decision.fate is Fate.DONE and decision.attempt is not None:
            self._dispatch.engine.put_first(lanes, decision.attempt)

    def _end_later(self, request: EditRequest, lanes: OpenLanes[ConsumerRecord], decision: Decision) -> None:
        attempt = decision.attempt
        if attempt is not None:
            also = self._answer(request, attempt, attempt.offset)
            attempt.not_before = 0.0  # it is behind another record, so it has no entry with a time
            attempt.outcome = FinalOutcome(_error(request), Move(request.to, _why(request), request.id, also))

    def _answer(self, request: EditRequest, attempt: RecordAttempt, offset: int) -> HandlerOutput:
        place = attempt.partition
        topic = self._levels.of(place).client.addresses.topic(place)
        answer = EditAnswer(request.id, self._member, (RecordFate(topic, place.partition, offset, Fate.DONE),))
        return HandlerOutput(
            REQUESTS_TOPIC,
            answer.encode(),
            request.id,
            0,
            job=(attempt,),
            returned=None,
            kind=OutputKind.ANSWER,
        )

    # Records that are not fetched yet

    def _read_ahead(
        self, request: EditRequest, partition: TopicPartition, records: ChosenOffsets
    ) -> Mapping[int, ConsumerRecord | None]:
        """Return the records that this member has not fetched yet and that exist.

        Records that must be copied are read. The others are None: for them, it is enough that the log has the offset.
        """
        if request.edit not in (Edit.DROP, Edit.MOVE):
            return {}
        with self._dispatch.lock:
            ahead = self._dispatch.engine.unread(partition, records.offsets)
        if not ahead:
            return {}
        self._reader = self._reader or GroupInspector(self._config, self._group)
        place = self._levels.of(partition).client.addresses.name(partition)
        end = self._reader.ends([place]).get(place, 0)
        there = [offset for offset in ahead if offset < end]
        if request.edit is Edit.DROP:
            return dict.fromkeys(there)
        source = RecordSource(partition.level, records.topic.removeprefix(partition.topic), _raw, _raw)
        return {
            message.offset() or 0: ConsumerRecord(message, source, message.value())
            for offset in there
            for message in self._reader.read(place, offset, offset + 1)
        }


def _raw(message: Any) -> Any:
    return message.key()


def _unread_attempt(lanes: OpenLanes[ConsumerRecord], offset: int, record: ConsumerRecord | None) -> Attempt[Any]:
    return Attempt(record, offset, 0, ALONE, lanes.assignment, 0.0, 0)


def _why(request: EditRequest) -> str:
    return f"{request.by or 'an operator'} asked for it" + (f": {request.why}" if request.why else "")


def _error(request: EditRequest) -> EditedError:
    return EditedError(f"The request {request.id} of {request.by or 'an operator'} ended the record before it started.")

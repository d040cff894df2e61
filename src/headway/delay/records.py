"""Converts a relay's decisions to records for Kafka, and fetched records to the form that the relay uses."""

import logging
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headway.core.delay.changes import PUT_HEADER, Command, read_command, read_put
from headway.core.delay.command_ledger import PutRecord
from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import Ladder
from headway.core.delay.relay_tick import Answer, RelayTick, Write
from headway.core.delay.schedule import CHOSEN, HEADER, EmptyRecordError, Schedule, read_schedule
from headway.core.outgoing_record import ANY_PARTITION, NOW, OutgoingRecord
from headway.core.record_size import size_of
from headway.dead_letters import PREFIX, fitting, halved, letter_headers
from headway.delay.topic_names import TopicNames
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.delay.writable import Writable
from headway.errors import AuthorizationError, DeliveryError, HeadwayError, KafkaError, ScheduleError
from headway.kafka.binding.time_limits import PERMISSIONS_ASKED_FOR_EVERY
from headway.kafka.producer.targets import Targets
from headway.records.expiry import expiry_header
from headway.records.history import Origin, history_of
from headway.records.record_types import ConsumerRecord, Header, Message, RecordSource, headers_of

log = logging.getLogger(__name__)

_RELAY_OBJECTS = 500  # how much memory a relay's objects take for each record, approximately, in bytes
# The maximum number of characters of an error. Errors are shortened because they might quote a forged header that is as
# large as a record.
_LONGEST_ERROR = 1000
_REFUSED = "Kafka refuses the delivery"
_NO_SCHEDULE = "the record does not say where and when it is due"
_NO_MOVE = "no delay topic takes the record"

# librdkafka's names of errors that are caused by the record itself. "" means that the client refused to send the
# record.
_OF_THE_RECORD = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG", ""}

_LETTER = "dead-letter-"  # prefix of the ids of dead letters that wait in a delay topic
_WAITS = "waits-"  # prefix of the ids of records that wait in a delay topic for a permission
_SHORTEST_WAIT = 100  # the shortest wait in a delay topic, in milliseconds
# How many bytes of a dead letter are reserved for the header that it needs to wait in a delay topic.
_BYTES_OF_A_SCHEDULE = 1_000
_LETTERS_WAIT = "Dead letters wait in the delay topics, and are stored as soon as the topic accepts them."
_RECORDS_WAIT = (
    "Records for it wait in the delay topics for 20 s. Records that come due after that become dead letters, until the "
    "topic accepts records again."
)
# How long records wait for a permission before they become dead letters, in seconds; `_RECORDS_WAIT` mentions it.
_WAIT_FOR_A_PERMISSION = 20.0
_FORBIDDEN = "TOPIC_AUTHORIZATION_FAILED"
_NO_ANSWERS = "Commands are still carried out, but their outcome is not reported."


OWN_HEADERS = frozenset({HEADER, PUT_HEADER})
"""The headers that a scheduler adds to a record. When the record is delivered, a relay removes these headers."""


class RelayRecord(OutgoingRecord, gc=False):
    """A record that a relay writes.

    `source` is the fetched record from which this one was made, or None for a relay's state. `delay_topic` is the delay
    topic that the record moves to, or None if the record does not move. If the record is a dead letter that waits in a
    delay topic, `letter` is the dead letter without the header that makes it wait.
    """

    source: Any = None
    delay_topic: int | None = None
    letter: Any = None


class Writing:
    """Converts a tick, which is the decisions for a partition number, to the records that must be written.

    Args:
        names: The names of the scheduler's topics.
        ladder: The delay topics in use. Dead letters that cannot be stored now wait in these topics.
        partitions_of: Takes a topic and a time limit in seconds, and returns how many partitions the topic has, or 0 if
            it does not exist.
        why_not: Takes a topic, and returns a sentence that explains why it refuses records, or None.
        counts: Counts the dead letters.
    """

    def __init__(
        self,
        names: TopicNames,
        ladder: Ladder,
        partitions_of: Callable[[str, float], int],
        why_not: Callable[[str], str | None],
        counts: Counter[str],
    ) -> None:
        self._names = names
        self._ladder = ladder
        self._own_names_begin = f"{names.name}."
        self._dead_topic = names.dead
        self._targets = Targets(partitions_of)
        self._dead = Writable(names.dead, partitions_of, why_not, _LETTERS_WAIT)
        self._answers = Writable(names.answers, partitions_of, why_not, _NO_ANSWERS)
        self._partitions_of = partitions_of
        self._why_not = why_not
        self._forbidden: dict[str, Writable] = {}  # targets to which this relay is not permitted to write
        self._counts = counts
        self._now = 0

    def records(self, partition: int, tick: RelayTick, now: int) -> Iterator[RelayRecord]:
        """Yield all records that a tick writes.

        State is yielded first, so that a transaction has all its partitions early and registers them with the broker in
        one request.
        """
        self._now = now
        for key, value in tick.state.items():
            yield RelayRecord(self._names.state, value, key, partition, NOW, None)
        for write in tick.writes:
            yield self._move(partition, write) if write.delay_topic is not None else self._delivery(write, now)
        for refusal in tick.refusals:
            yield self.dead_letter(refusal.record, refusal.error, _NO_SCHEDULE)
        for answer in tick.answers:
            if self._targets.have(self._names.answers, answer.command.reply) and self._answers.is_open:
                yield self._answer(answer)
            # The topic for answers does not exist or has no such partition, or this relay is not permitted to write to
            # it.
            else:
                log.warning("The outcome of the command %s cannot be reported.", answer.command.token)

    def _move(self, partition: int, write: Write) -> RelayRecord:
        message, schedule = write.record, write.schedule
        headers = [*own_headers(message), schedule.header()]
        topic = self._names.delay_topic(write.delay_topic or 0)
        return RelayRecord(topic, message.value(), message.key(), partition, NOW, headers, message, write.delay_topic)

    def _delivery(self, write: Write, now: int) -> RelayRecord:
        message, schedule = write.record, write.schedule
        if schedule.topic == self._dead_topic and _is_letter(message):
            headers = list(headers_of(message))[:-1]  # leave out the last header, which made the letter wait
            letter = RelayRecord(self._names.dead, message.value(), message.key(), ANY_PARTITION, NOW, headers, message)
            return self._now_or_later(letter)
        if schedule.topic.startswith(self._own_names_begin) and self._names.owns(schedule.topic):
            error = DeliveryError(f"A schedule is for {schedule.topic}, which is one of the scheduler's own topics.")
            return self.dead_letter(message, error, _REFUSED)
        target = self._forbidden.get(schedule.topic)
        if target and not target.is_open:
            return self._wait_for_a_permission(message, schedule, target)
        if missing := self._missing_target(schedule):
            return self.dead_letter(message, missing, _REFUSED)
        partition = ANY_PARTITION if schedule.partition is None else schedule.partition
        headers = own_headers(message)
        if schedule.recurrence is not None and schedule.recurrence.expires_after:
            headers = [*headers, expiry_header(schedule.due + schedule.recurrence.expires_after)]
        # The timestamp comes from the brokers' clock, because this machine's own clock might still be behind the due
        # time.
        timestamp = max(schedule.due, now)
        return RelayRecord(schedule.topic, message.value(), message.key(), partition, timestamp, headers, message)

    def _missing_target(self, schedule: Schedule) -> DeliveryError | None:
        """Return an error if the schedule's topic or partition does not exist.

        Returns None if both exist. Also returns None if the brokers do not answer, because sending the record will then
        fail.
        """
        try:
            count = self._targets.too_few(schedule.topic, schedule.partition or 0)
        except KafkaError:
            return None
        if count is None:
            return None
        if count == 0:
            return DeliveryError(f"A schedule is for the topic {schedule.topic}, which does not exist.")
        return DeliveryError(
            f"A schedule is for partition {schedule.partition} of {schedule.topic}, which has {count} partitions."
        )

    def _wait_for_a_permission(self, message: Message, schedule: Schedule, target: Writable) -> RelayRecord:
        """Make a record wait in a delay topic until this relay is permitted to write to the record's target.

        If the permission is missing for too long, the record becomes a dead letter. So a permission that is missing for
        a moment delays records only for that moment, and a permission that is never granted does not cause a growing
        backlog.
        """
        if target.refused_for > _WAIT_FOR_A_PERMISSION:
            return self.dead_letter(message, DeliveryError(target.reason), _REFUSED)
        wait = max(_SHORTEST_WAIT, math.ceil(target.again_in * 1000))
        later = Schedule(
            f"{_WAITS}{uuid.uuid4().hex}", self._now + wait, self._now, 0, schedule.topic, schedule.partition
        )
        delay_topic = self._ladder.delay_for(wait)
        headers = [*own_headers(message), later.header()]
        topic, partition = self._names.delay_topic(delay_topic), message.partition()
        return RelayRecord(topic, message.value(), message.key(), partition or 0, NOW, headers, message, delay_topic)

    def _forbid(self, topic: str, reason: str) -> Writable:
        """Note that this relay is not permitted to write to a target."""
        if (target := self._forbidden.get(topic)) is None:
            target = Writable(topic, self._partitions_of, self._why_not, _RECORDS_WAIT, PERMISSIONS_ASKED_FOR_EVERY)
            self._forbidden[topic] = target
        target.refused(reason)
        return target

    def _answer(self, answer: Answer) -> RelayRecord:
        command, settled = answer
        return RelayRecord(self._names.answers, settled.value, command.token, command.reply, NOW, None, answer)

    def dead_letter(self, message: Message, error: HeadwayError, reason: str) -> RelayRecord:
        """Make a dead letter: a copy of the record in its delay topic, with the reason for the failure."""
        self._counts["dead letters"] += 1
        error = type(error)(str(error)[:_LONGEST_ERROR])
        record = ConsumerRecord(message, _source, message.value())
        log.error("%r becomes a dead letter in %s, because %s: %s", record, self._names.dead, reason, error)
        headers = letter_headers(self._names.dead, _FailedDelivery(record), error, reason, origin=_origin_of(message))
        letter = RelayRecord(self._names.dead, message.value(), message.key(), ANY_PARTITION, NOW, headers, message)
        return self._now_or_later(fitting(letter, MAX_MESSAGE_BYTES))

    def _now_or_later(self, letter: RelayRecord) -> RelayRecord:
        """Return the dead letter if it can be stored now. Otherwise, turn it into a schedule for the dead-letter topic.

        While the dead letter waits in a delay topic, it is not lost if this relay ends, and it does not delay other
        records. When it is due, it is tried again.
        """
        return letter if self._dead.is_open else self._later(letter)

    def _later(self, letter: RelayRecord) -> RelayRecord:
        wait = max(_SHORTEST_WAIT, math.ceil(self._dead.again_in * 1000))
        schedule = Schedule(f"{_LETTER}{uuid.uuid4().hex}", self._now + wait, self._now, 0, self._names.dead)
        letter = fitting(letter, MAX_MESSAGE_BYTES - _BYTES_OF_A_SCHEDULE)
        delay_topic = self._ladder.delay_for(wait)
        return msgspec.structs.replace(
            letter,
            topic=self._names.delay_topic(delay_topic),
            partition=letter.source.partition(),
            headers=[*(letter.headers or []), schedule.header()],
            delay_topic=delay_topic,
            letter=letter,
        )

    def instead_of(self, refused: RelayRecord, error: str, reason: str) -> RelayRecord | None:
        """Return a replacement for a record that Kafka refuses permanently, or None if the record can be omitted.

        If a dead letter is too large, its size is halved. If it is refused for another reason, it waits in a delay
        topic.

        Args:
            refused: The record.
            error: librdkafka's name of the error, or an empty string if the client itself refused the record.
            reason: The reason, as text.

        Raises `KafkaError` if the relay cannot continue without the record, and `AuthorizationError` if a permission is
        missing.
        """
        refusal = f"A record for {refused.topic} was refused: {reason.rstrip('.')}."
        if refused.topic == self._names.answers:
            self._answers.refused(reason)
            return None
        if refused.topic == self._names.dead:
            return self._instead_of_letter(refused, error, reason)
        if error == _FORBIDDEN:
            return self._instead_of_forbidden(refused, reason, refusal)
        if refused.delay_topic is None and refused.source is not None:
            return self.dead_letter(refused.source, DeliveryError(refusal), _REFUSED)
        if refused.source is None or error not in _OF_THE_RECORD:
            raise KafkaError(refusal)
        if refused.letter is None:
            return self.dead_letter(refused.source, DeliveryError(refusal), _NO_MOVE)
        shorter = halved(refused.letter)
        if shorter is None:
            raise KafkaError(refusal)
        return self._later(shorter)

    def _instead_of_letter(self, letter: RelayRecord, error: str, reason: str) -> RelayRecord:
        shorter = halved(letter) if error in _OF_THE_RECORD else None
        if shorter is not None:
            return shorter
        self._dead.refused(reason)
        return self._later(letter)

    def _instead_of_forbidden(self, refused: RelayRecord, reason: str, refusal: str) -> RelayRecord:
        if refused.delay_topic is None and refused.source is not None:
            target = self._forbid(refused.topic, reason)
            return self._wait_for_a_permission(refused.source, schedule_of(refused.source), target)
        try:
            known = self._why_not(refused.topic)
        except HeadwayError:  # the brokers do not answer, so no better reason is known
            known = None
        raise AuthorizationError(known or refusal)


def _is_letter(message: Message) -> bool:
    return any(name.startswith(PREFIX) for name, _ in headers_of(message))


class _FailedDelivery(NamedTuple):
    record: ConsumerRecord
    number: int = 1
    failure: None = None


def _origin_of(message: Message) -> Origin | None:
    """Return the topic, partition and offset that a record comes from, if its headers contain them."""
    headers = headers_of(message)
    try:
        history = history_of(headers, _schedule_in(headers).topic)
    except ScheduleError:
        return None
    return history.origin if history else None


_source = RecordSource(0, "", lambda message: message.key(), lambda message: message.value())


def schedule_of(message: Message) -> Schedule:
    """Return the schedule of a record in a delay topic. Raises `ScheduleError` if the schedule cannot be read."""
    return _schedule_in(headers_of(message))


def _schedule_in(headers: Sequence[Header]) -> Schedule:
    if headers and headers[-1][0] == HEADER:
        return read_schedule(headers[-1][1])
    return read_schedule(next((value for name, value in headers if name == HEADER), None))


def fetched_from(message: Any) -> Fetched:
    """Convert a record of a delay topic to the form that `PartitionRelay` uses."""
    headers = headers_of(message)
    try:
        schedule: Schedule | ScheduleError = _schedule_in(headers)
    except ScheduleError as error:
        schedule = error if headers or message.key() or message.value() else EmptyRecordError(str(error))
    size = _RELAY_OBJECTS + size_of(message.value(), message.key(), headers)
    return Fetched(message.offset(), message.timestamp()[1], size, message, schedule)


def _put_from(message: Any, value: str | bytes) -> PutRecord:
    put, fetched = read_put(value), fetched_from(message)
    if isinstance(fetched.schedule, ScheduleError):
        raise fetched.schedule
    if not fetched.schedule.id.startswith(CHOSEN):
        raise ScheduleError(f"The id {fetched.schedule.id[:100]!r} is not an id that a user chose.")
    return PutRecord(put, fetched, fetched.schedule)


def own_headers(message: Message) -> list[Header]:
    """Return a record's headers without the headers that the scheduler added."""
    headers = headers_of(message)
    # Nearly every record has only this header, and testing for it first makes the function twice as fast.
    if len(headers) == 1 and headers[0][0] == HEADER:
        return []
    return [header for header in headers if header[0] not in OWN_HEADERS]


def command_from(message: Any) -> Command | PutRecord | None:
    """Read a command from its record. If the command cannot be read, log a warning and return None."""
    try:
        put = next((value for name, value in headers_of(message) if name == PUT_HEADER), None)
        return read_command(message.value()) if put is None else _put_from(message, put)
    except ScheduleError as error:
        log.warning(
            "The record at offset %s of partition %s of %s is skipped: %s",
            message.offset(),
            message.partition(),
            message.topic(),
            error,
        )
        return None

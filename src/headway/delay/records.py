"""A relay's decisions as records for Kafka, and the facts that a relay needs of each record it reads."""

import logging
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headway.core.delay.changes import PUT_HEADER, Command, read_command, read_put
from headway.core.delay.command_ledger import PutRecord
from headway.core.delay.ladder import Ladder
from headway.core.delay.line_window import Fetched
from headway.core.delay.relay_tick import Answer, Refusal, Tick, Write
from headway.core.delay.schedule import HEADER, OWN, EmptyRecordError, Schedule, read_schedule
from headway.core.outgoing_record import ANY_PARTITION, NOW, OutgoingRecord
from headway.core.record_size import size_of
from headway.dead_letters import PREFIX, fitting, halved, letter_headers
from headway.delay.topic_names import TopicNames
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.delay.writable import Writable
from headway.errors import AuthorizationError, DeliveryError, HeadwayError, KafkaError, ScheduleError
from headway.kafka.binding.time_limits import RIGHTS_ASKED_FOR_EVERY
from headway.kafka.producer.targets import Targets
from headway.records.expiry import expiry_header
from headway.records.history import Origin, history_of
from headway.records.record_types import ConsumerRecord, Header, Message, RecordSource, headers_of

log = logging.getLogger(__name__)

_OF_A_RELAY = 500  # bytes of a relay's own objects for a record, about
_MOST_SAID = 1000  # characters of an error that cites a forged header, which may be as large as a record
_REFUSED = "Kafka refuses the delivery"
_NO_SCHEDULE = "the record does not say where and when it is due"
_NO_MOVE = "no delay line takes the record"

# librdkafka's names for the refusal of a record that is wrong in itself. The client does not even send one with "".
_OF_THE_RECORD = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG", ""}

_LETTER = "dead-letter-"
_SHORTEST_WAIT = 100  # milliseconds
_ROOM_FOR_A_SCHEDULE = 1_000  # bytes
_LETTERS_WAIT = "Dead letters wait in the delay lines, and are stored as soon as the topic takes them."
_RECORDS_WAIT = (
    "Records for it wait in the delay lines, for 20 s; those that come due after that become dead letters, until the "
    "topic takes records again."
)
_WAITS = "waits-"
_WAIT_FOR_A_RIGHT = 20.0  # seconds
_FORBIDDEN = "TOPIC_AUTHORIZATION_FAILED"
_NO_ANSWERS = "Commands are carried out, and nobody is told what became of them."


OWN_HEADERS = frozenset({HEADER, PUT_HEADER})
"""The headers that a schedule adds to a record, and that are taken off when it is delivered."""


class RelayRecord(OutgoingRecord, gc=False):
    """A record that a relay writes.

    `source` is the record it was made of; None for a relay's state. `line` is the line that it moves to, if it moves.
    `letter` is the dead letter that waits in a line, as `Writing.instead_of` says.
    """

    source: Any = None
    line: int | None = None
    letter: Any = None


class Writing:
    """The converter of one partition number's ticks into records.

    Args:
        names: The scheduler's.
        ladder: The lines in use; dead letters that cannot be stored wait there.
        partitions_of: Returns how many partitions a topic has, asked within so many seconds; 0 if it is missing.
        why_not: Returns a sentence about what keeps records out of a topic, or None.
    """

    def __init__(
        self,
        names: TopicNames,
        ladder: Ladder,
        partitions_of: Callable[[str, float], int],
        why_not: Callable[[str], str | None],
    ) -> None:
        self._names = names
        self._ladder = ladder
        self._own_names_begin = f"{names.name}."
        self._targets = Targets(partitions_of)
        self._dead = Writable(names.dead, partitions_of, why_not, _LETTERS_WAIT)
        self._answers = Writable(names.answers, partitions_of, why_not, _NO_ANSWERS)
        self._partitions_of = partitions_of
        self._why_not = why_not
        self._forbidden: dict[
            str, Writable
        ] = {}  # targets that this relay may not write to, or might not some time ago
        self._now = 0

    def records(self, partition: int, tick: Tick, now: int) -> Iterator[RelayRecord]:
        """Yield all records that a tick writes.

        State comes first: so a transaction knows all its partitions early, and asks the broker for them once.
        """
        self._now = now
        for key, value in tick.state.items():
            yield RelayRecord(self._names.state, value, key, partition, NOW, None)
        for write in tick.writes:
            yield self._move(partition, write) if write.line is not None else self._delivery(write, now)
        for refusal in tick.refusals:
            yield self._refused(refusal)
        for answer in tick.answers:
            if self._targets.have(self._names.answers, answer.command.reply) and self._answers.is_open:
                yield self._answer(answer)
            else:  # the command comes from a deleted or unknown scheduler, or the answers may not be written
                log.warning("Nobody is told what became of the command %s.", answer.command.token)

    def _move(self, partition: int, write: Write) -> RelayRecord:
        message, schedule = write.record, write.schedule
        headers = [*own_headers(message), schedule.header()]
        topic = self._names.line(write.line or 0)
        return RelayRecord(topic, message.value(), message.key(), partition, NOW, headers, message, write.line)

    def _delivery(self, write: Write, now: int) -> RelayRecord:
        message, schedule = write.record, write.schedule
        if schedule.topic == self._names.dead and _is_letter(message):
            headers = list(headers_of(message))[:-1]  # the last one is the header of its wait
            letter = RelayRecord(self._names.dead, message.value(), message.key(), ANY_PARTITION, NOW, headers, message)
            return self._now_or_later(letter)
        if schedule.topic.startswith(self._own_names_begin) and self._names.owns(schedule.topic):
            error = DeliveryError(f"The topic {schedule.topic} of a schedule is the scheduler's own.")
            return self.dead_letter(message, error, _REFUSED)
        target = self._forbidden.get(schedule.topic)
        if target and not target.is_open:
            return self._wait_for_a_right(message, schedule, target)
        if missing := self._missing_target(schedule):
            return self.dead_letter(message, missing, _REFUSED)
        partition = ANY_PARTITION if schedule.partition is None else schedule.partition
        headers = own_headers(message)
        if schedule.recurrence is not None and schedule.recurrence.expires_after:
            headers = [*headers, expiry_header(schedule.due + schedule.recurrence.expires_after)]
        # By the clock that decided that the record is due: this machine's own clock may be behind it.
        timestamp = max(schedule.due, now)
        return RelayRecord(schedule.topic, message.value(), message.key(), partition, timestamp, headers, message)

    def _missing_target(self, schedule: Schedule) -> DeliveryError | None:
        """Return why a schedule's target cannot take it; None if that cannot be asked now: a send will show it."""
        try:
            count = self._targets.too_few(schedule.topic, schedule.partition or 0)
        except KafkaError:
            return None
        if count is None:
            return None
        if count == 0:
            return DeliveryError(f"The topic {schedule.topic} of a schedule does not exist.")
        return DeliveryError(
            f"A schedule is for partition {schedule.partition} of {schedule.topic}, which has {count}."
        )

    def _wait_for_a_right(self, message: Message, schedule: Schedule, target: Writable) -> RelayRecord:
        """Return a record that waits in a line for the right to write it to its target; or its dead letter.

        A right that is missing for a moment costs only that moment. A right that was never given makes no pile of work.
        """
        if target.refused_for > _WAIT_FOR_A_RIGHT:
            return self.dead_letter(message, DeliveryError(target.reason), _REFUSED)
        wait = max(_SHORTEST_WAIT, math.ceil(target.again_in * 1000))
        later = Schedule(
            f"{_WAITS}{uuid.uuid4().hex}", self._now + wait, self._now, 0, schedule.topic, schedule.partition
        )
        line = self._ladder.line_for(wait)
        headers = [*own_headers(message), later.header()]
        topic, partition = self._names.line(line), message.partition()
        return RelayRecord(topic, message.value(), message.key(), partition or 0, NOW, headers, message, line)

    def _forbid(self, topic: str, reason: str) -> Writable:
        """Note that a target refuses this relay's records because a right is missing."""
        if (target := self._forbidden.get(topic)) is None:
            target = Writable(topic, self._partitions_of, self._why_not, _RECORDS_WAIT, RIGHTS_ASKED_FOR_EVERY)
            self._forbidden[topic] = target
        target.refused(reason)
        return target

    def _refused(self, refusal: Refusal) -> RelayRecord:
        return self.dead_letter(refusal.record, refusal.error, _NO_SCHEDULE)

    def _answer(self, answer: Answer) -> RelayRecord:
        command, settled = answer
        return RelayRecord(self._names.answers, settled.value, command.token, command.reply, NOW, None, answer)

    def dead_letter(self, message: Message, error: HeadwayError, reason: str) -> RelayRecord:
        """Return the dead letter of a record: the record as it is in its line, and why it cannot be delivered."""
        error = type(error)(str(error)[:_MOST_SAID])
        record = ConsumerRecord(message, _source, message.value())
        log.error("%r becomes a dead letter in %s, as %s: %s", record, self._names.dead, reason, error)
        headers = letter_headers(self._names.dead, _Failed(record), error, reason, origin=_origin_of(message))
        letter = RelayRecord(self._names.dead, message.value(), message.key(), ANY_PARTITION, NOW, headers, message)
        return self._now_or_later(fitting(letter, MAX_MESSAGE_BYTES))

    def _now_or_later(self, letter: RelayRecord) -> RelayRecord:
        """Return a dead letter if it can be stored now; else the same letter in a line, scheduled for its own topic.

        In the line the letter survives the relay's end, delays no other record, and comes again for the next try.
        """
        return letter if self._dead.is_open else self._later(letter)

    def _later(self, letter: RelayRecord) -> RelayRecord:
        wait = max(_SHORTEST_WAIT, math.ceil(self._dead.again_in * 1000))
        schedule = Schedule(f"{_LETTER}{uuid.uuid4().hex}", self._now + wait, self._now, 0, self._names.dead)
        letter = fitting(letter, MAX_MESSAGE_BYTES - _ROOM_FOR_A_SCHEDULE)
        line = self._ladder.line_for(wait)
        return msgspec.structs.replace(
            letter,
            topic=self._names.line(line),
            partition=letter.source.partition(),
            headers=[*(letter.headers or []), schedule.header()],
            line=line,
            letter=letter,
        )

    def instead_of(self, refused: RelayRecord, error: str, reason: str) -> RelayRecord | None:
        """Return the replacement for a record that Kafka refuses for good; None if no replacement is needed.

        A dead letter is halved if it is too large; for any other reason it waits in a line.

        Args:
            refused: The record.
            error: librdkafka's name of the refusal; empty for one of the client's own.
            reason: The reason for people.

        Raises `KafkaError` if the relay cannot go on without the record, `AuthorizationError` if a right is missing.
        """
        said = f"A record for {refused.topic} was refused: {reason.rstrip('.')}."
        if refused.topic == self._names.answers:
            self._answers.refused(reason)
            return None
        if refused.topic == self._names.dead:
            return self._instead_of_letter(refused, error, reason)
        if error == _FORBIDDEN:
            return self._instead_of_forbidden(refused, reason, said)
        if refused.line is None and refused.source is not None:
            return self.dead_letter(refused.source, DeliveryError(said), _REFUSED)
        if refused.source is None or error not in _OF_THE_RECORD:
            raise KafkaError(said)
        if refused.letter is None:
            return self.dead_letter(refused.source, DeliveryError(said), _NO_MOVE)
        shorter = halved(refused.letter)
        if shorter is None:
            raise KafkaError(said)
        return self._later(shorter)

    def _instead_of_letter(self, letter: RelayRecord, error: str, reason: str) -> RelayRecord:
        shorter = halved(letter) if error in _OF_THE_RECORD else None
        if shorter is not None:
            return shorter
        self._dead.refused(reason)
        return self._later(letter)

    def _instead_of_forbidden(self, refused: RelayRecord, reason: str, said: str) -> RelayRecord:
        if refused.line is None and refused.source is not None:
            target = self._forbid(refused.topic, reason)
            return self._wait_for_a_right(refused.source, schedule_of(refused.source), target)
        try:
            known = self._why_not(refused.topic)
        except HeadwayError:  # the brokers do not answer now
            known = None
        raise AuthorizationError(known or said)


def _is_letter(message: Message) -> bool:
    return any(name.startswith(PREFIX) for name, _ in headers_of(message))


class _Failed(NamedTuple):
    record: ConsumerRecord
    attempt: int = 1
    failure: None = None


def _origin_of(message: Message) -> Origin | None:
    """Return the origin that a record in a line brings along for its target; None if it has none."""
    headers = headers_of(message)
    try:
        history = history_of(headers, _schedule_in(headers).topic)
    except ScheduleError:
        return None
    return history.origin if history else None


_source = RecordSource(0, "", lambda message: message.key(), lambda message: message.value())


def schedule_of(message: Message) -> Schedule:
    """Return the schedule of a record in a line; raise `ScheduleError` if it is unreadable."""
    return _schedule_in(headers_of(message))


def _schedule_in(headers: Sequence[Header]) -> Schedule:
    if headers and headers[-1][0] == HEADER:
        return read_schedule(headers[-1][1])
    return read_schedule(next((value for name, value in headers if name == HEADER), None))


def fetched_from(message: Any) -> Fetched:
    """Return a record of a line in the form that `PartitionRelay` decides about."""
    headers = headers_of(message)
    try:
        schedule: Schedule | ScheduleError = _schedule_in(headers)
    except ScheduleError as error:
        schedule = error if headers or message.key() or message.value() else EmptyRecordError(str(error))
    size = _OF_A_RELAY + size_of(message.value(), message.key(), headers)
    return Fetched(message.offset(), message.timestamp()[1], size, message, schedule)


def _put_from(message: Any, value: str | bytes) -> PutRecord:
    put, fetched = read_put(value), fetched_from(message)
    if isinstance(fetched.schedule, ScheduleError):
        raise fetched.schedule
    if not fetched.schedule.id.startswith(OWN):
        raise ScheduleError(f"The id {fetched.schedule.id[:100]!r} is none of a user's own.")
    return PutRecord(put, fetched, fetched.schedule)


def own_headers(message: Message) -> list[Header]:
    """Return a record's headers without Headway's own."""
    headers = headers_of(message)
    if len(headers) == 1 and headers[0][0] == HEADER:  # nearly always, and twice as quick
        return []
    return [header for header in headers if header[0] not in OWN_HEADERS]


def command_from(message: Any) -> Command | PutRecord | None:
    """Return a command from its record; None, and log a warning, if it cannot be read."""
    try:
        put = next((value for name, value in headers_of(message) if name == PUT_HEADER), None)
        return read_command(message.value()) if put is None else _put_from(message, put)
    except ScheduleError as error:
        log.warning(
            "The record at offset %s of partition %s of %s is passed over: %s",
            *(message.offset(), message.partition(), message.topic(), error),
        )
        return None

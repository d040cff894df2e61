"""A relay's decisions as records for Kafka, and the facts that a relay needs of each record it reads."""

import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headway.core.delay.changes import Command, read_command
from headway.core.delay.ladder import Ladder
from headway.core.delay.line_window import Fetched
from headway.core.delay.relay_tick import Answer, Refusal, Tick, Write
from headway.core.delay.schedule import HEADER, Schedule, read_schedule
from headway.dead_letters import PREFIX, Parts, halved, letter_headers, shortened, size_of
from headway.delay.topics import MAX_MESSAGE_BYTES, TopicNames
from headway.delay.writable import Writable
from headway.errors import AuthorizationError, DeliveryError, HeadwayError, KafkaError, ScheduleError
from headway.records import ConsumerRecord, Header, Message, RecordSource, headers_of

log = logging.getLogger(__name__)

_ANY_PARTITION = -1
_NOW = 0
_ANSWER_WITHIN = 5.0
_ASK_AGAIN_AFTER = 1.0
_OVERHEAD = 1000  # bytes of a record's objects, about
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
_LOOK_FOR_A_RIGHT_EVERY = 1.0
_FORBIDDEN = "TOPIC_AUTHORIZATION_FAILED"
_NO_ANSWERS = "Commands are carried out, and nobody is told what became of them."


class OutgoingRecord(msgspec.Struct, gc=False):
    """A record as the client takes it.

    `source` is the record it was made of; None for a relay's state. `line` is the line that it moves to, if it moves.
    `letter` is the dead letter that waits in a line, as `Writing.instead_of` says.
    """

    topic: str
    value: Any
    key: Any
    partition: int
    timestamp: int
    headers: list[Header] | None
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

    def records(self, partition: int, tick: Tick, now: int) -> Iterator[OutgoingRecord]:
        """Yield all records that a tick writes.

        State comes first: so a transaction knows all its partitions early, and asks the broker for them once.
        """
        self._now = now
        for key, value in tick.state.items():
            yield OutgoingRecord(self._names.state, value, key, partition, _NOW, None)
        for write in tick.writes:
            yield self._move(partition, write) if write.line is not None else self._delivery(write, now)
        for refusal in tick.refusals:
            yield self._refused(refusal)
        for answer in tick.answers:
            if self._targets.have(self._names.answers, answer.command.reply) and self._answers.is_open:
                yield self._answer(answer)
            else:  # the command comes from a deleted or unknown scheduler, or the answers may not be written
                log.warning("Nobody is told what became of the command %s.", answer.command.token)

    def _move(self, partition: int, write: Write) -> OutgoingRecord:
        message, schedule = write.record, write.schedule
        headers = [*own_headers(message), schedule.header()]
        topic = self._names.line(write.line or 0)
        return OutgoingRecord(topic, message.value(), message.key(), partition, _NOW, headers, message, write.line)

    def _delivery(self, write: Write, now: int) -> OutgoingRecord:
        message, schedule = write.record, write.schedule
        if schedule.topic == self._names.dead and _is_letter(message):
            headers = list(headers_of(message))[:-1]  # the last one is the header of its wait
            letter = OutgoingRecord(
                self._names.dead, message.value(), message.key(), _ANY_PARTITION, _NOW, headers, message
            )
            return self._now_or_later(letter)
        if schedule.topic.startswith(self._own_names_begin) and self._names.owns(schedule.topic):
            error = DeliveryError(f"The topic {schedule.topic} of a schedule is the scheduler's own.")
            return self.dead_letter(message, error, _REFUSED)
        target = self._forbidden.get(schedule.topic)
        if target and not target.is_open:
            return self._wait_for_a_right(message, schedule, target)
        if missing := self._targets.error(schedule):
            return self.dead_letter(message, missing, _REFUSED)
        partition = _ANY_PARTITION if schedule.partition is None else schedule.partition
        headers = own_headers(message)
        # By the clock that decided that the record is due: this machine's own clock may be behind it.
        timestamp = max(schedule.due, now)
        return OutgoingRecord(schedule.topic, message.value(), message.key(), partition, timestamp, headers, message)

    def _wait_for_a_right(self, message: Message, schedule: Schedule, target: Writable) -> OutgoingRecord:
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
        return OutgoingRecord(topic, message.value(), message.key(), partition or 0, _NOW, headers, message, line)

    def _forbid(self, topic: str, reason: str) -> Writable:
        """Note that a target refuses this relay's records because a right is missing."""
        if (target := self._forbidden.get(topic)) is None:
            target = Writable(topic, self._partitions_of, self._why_not, _RECORDS_WAIT, _LOOK_FOR_A_RIGHT_EVERY)
            self._forbidden[topic] = target
        target.refused(reason)
        return target

    def _refused(self, refusal: Refusal) -> OutgoingRecord:
        return self.dead_letter(refusal.record, refusal.error, _NO_SCHEDULE)

    def _answer(self, answer: Answer) -> OutgoingRecord:
        command, settled = answer
        return OutgoingRecord(self._names.answers, settled.value, command.token, command.reply, _NOW, None, answer)

    def dead_letter(self, message: Message, error: HeadwayError, reason: str) -> OutgoingRecord:
        """Return the dead letter of a record: the record as it is in its line, and why it cannot be delivered."""
        error = type(error)(str(error)[:_MOST_SAID])
        record = ConsumerRecord(message, _source, message.value())
        log.error("%r becomes a dead letter in %s, as %s: %s", record, self._names.dead, reason, error)
        headers = letter_headers(_Failed(record), error, reason)
        letter = OutgoingRecord(
            self._names.dead, message.value(), message.key(), _ANY_PARTITION, _NOW, headers, message
        )
        parts = _parts(letter)
        if size_of(*parts) > MAX_MESSAGE_BYTES:
            letter = _with_parts(letter, shortened(parts, MAX_MESSAGE_BYTES))
        return self._now_or_later(letter)

    def _now_or_later(self, letter: OutgoingRecord) -> OutgoingRecord:
        """Return a dead letter if it can be stored now; else the same letter in a line, scheduled for its own topic.

        In the line the letter survives the relay's end, delays no other record, and comes again for the next try.
        """
        return letter if self._dead.is_open else self._later(letter)

    def _later(self, letter: OutgoingRecord) -> OutgoingRecord:
        wait = max(_SHORTEST_WAIT, math.ceil(self._dead.again_in * 1000))
        schedule = Schedule(f"{_LETTER}{uuid.uuid4().hex}", self._now + wait, self._now, 0, self._names.dead)
        parts = _parts(letter)
        if size_of(*parts) > MAX_MESSAGE_BYTES - _ROOM_FOR_A_SCHEDULE:
            letter = _with_parts(letter, shortened(parts, MAX_MESSAGE_BYTES - _ROOM_FOR_A_SCHEDULE))
        line = self._ladder.line_for(wait)
        return msgspec.structs.replace(
            letter,
            topic=self._names.line(line),
            partition=letter.source.partition(),
            headers=[*(letter.headers or []), schedule.header()],
            line=line,
            letter=letter,
        )

    def instead_of(self, refused: OutgoingRecord, error: str, reason: str) -> OutgoingRecord | None:
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
        shorter = halved(_parts(refused.letter))
        if shorter is None:
            raise KafkaError(said)
        return self._later(_with_parts(refused.letter, shorter))

    def _instead_of_letter(self, letter: OutgoingRecord, error: str, reason: str) -> OutgoingRecord:
        shorter = halved(_parts(letter)) if error in _OF_THE_RECORD else None
        if shorter is not None:
            return _with_parts(letter, shorter)
        self._dead.refused(reason)
        return self._later(letter)

    def _instead_of_forbidden(self, refused: OutgoingRecord, reason: str, said: str) -> OutgoingRecord:
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


def _parts(letter: OutgoingRecord) -> Parts:
    return Parts(letter.value, letter.key, letter.headers or [])


def _with_parts(letter: OutgoingRecord, parts: Parts) -> OutgoingRecord:
    return msgspec.structs.replace(letter, value=parts.value, key=parts.key, headers=parts.headers)


class Targets:
    """The topics and partitions that exist: asked once, since librdkafka looks for a new topic for half a minute."""

    def __init__(self, partitions_of: Callable[[str, float], int]) -> None:
        self._partitions_of = partitions_of
        self._partitions: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}

    def error(self, schedule: Schedule) -> DeliveryError | None:
        """Return why a schedule's target cannot take it; None if that cannot be asked now: a send will show it."""
        topic = schedule.topic
        if self.have(topic, schedule.partition or 0):
            return None
        if (count := self._partitions[topic]) == 0:
            return DeliveryError(f"The topic {topic} of a schedule does not exist.")
        return DeliveryError(f"A schedule is for partition {schedule.partition} of {topic}, which has {count}.")

    def have(self, topic: str, partition: int) -> bool:
        """Return whether a topic has this partition; True if that cannot be asked now."""
        if self._partitions.get(topic, 0) > partition:
            return True
        if time.monotonic() - self._asked_at.get(topic, -math.inf) > _ASK_AGAIN_AFTER:  # not for each record of a burst
            try:
                self._partitions[topic] = self._partitions_of(topic, _ANSWER_WITHIN)
            except KafkaError:
                return True
            self._asked_at[topic] = time.monotonic()
        return self._partitions[topic] > partition


class _Failed(NamedTuple):
    record: ConsumerRecord
    attempt: int = 1
    first_failed_at: float | None = None


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
        schedule = error
    size = _OVERHEAD + len(message) + len(message.key() or b"")
    for _, value in headers:
        size += len(value or b"")
    return Fetched(message.offset(), message.timestamp()[1], size, message, schedule)


def own_headers(message: Message) -> list[Header]:
    """Return a record's headers without Headway's own."""
    headers = headers_of(message)
    if len(headers) == 1 and headers[0][0] == HEADER:  # nearly always, and twice as quick
        return []
    return [header for header in headers if header[0] != HEADER]


def command_from(message: Any) -> Command | None:
    """Return a command from its record; None, and log a warning, if it cannot be read."""
    try:
        return read_command(message.value())
    except ScheduleError as error:
        log.warning(
            "The record at offset %s of partition %s of %s is passed over: %s",
            *(message.offset(), message.partition(), message.topic(), error),
        )
        return None

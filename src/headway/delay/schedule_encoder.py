"""Encodes records with a due time for Kafka.

The encoder needs no client, so any producer can send the encoded records.
"""

import itertools
import threading
import uuid
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec

from headway.core.delay.changes import IfPending, Put
from headway.core.delay.recurrence import Recurrence
from headway.core.delay.schedule import Schedule, chosen_id
from headway.core.levels.naming import level_topic
from headway.core.outgoing_record import OutgoingRecord
from headway.core.untrusted import LATEST
from headway.delay.due_time import When
from headway.delay.limits import MOST_BYTES
from headway.delay.records import OWN_HEADERS
from headway.delay.topic_names import TopicNames
from headway.errors import ConfigError, DeliveryError, SerializationError
from headway.kafka.producer.headers import check_headers, header_list
from headway.records.record_types import Header

_MOST_TARGETS = 1000  # the maximum number of valid targets that are remembered, which bounds the memory
_MOST_STEP_BACK = 500  # the largest step back that is evened out, in milliseconds


Encoded = tuple[Schedule, Any, Any, list[Header]]
"""A schedule, and the value, key and headers of its record. `DelayTopicChoice.place` chooses the topic."""


class SchedulingTimes:
    """Ensures that the times of scheduling do not go back by a few milliseconds. Thread-safe.

    Records with the same due time are delivered in the order in which they were scheduled. However, a new estimate of
    the brokers' clock can be some milliseconds behind the previous estimate. If the estimate goes back by more than
    half a second, a clock was set. In that case the times of scheduling go back too, because a search for a schedule
    begins only one second before its time of scheduling.
    """

    def __init__(self) -> None:
        self._latest = 0
        self._lock = threading.Lock()  # protects `_latest`

    def next(self, at: int) -> int:
        """Return the time of scheduling for a record that is scheduled when the clock shows `at`, in milliseconds."""
        with self._lock:
            if not 0 < self._latest - at <= _MOST_STEP_BACK:
                self._latest = at
            return self._latest


class ScheduleEncoder:
    """Encodes the schedules of one client. Thread-safe.

    Args:
        names: The names of the scheduler's topics.
        write_key: The serialiser of keys, or None if keys are already bytes.
        write_value: The serialiser of values, or None if values are already bytes.
    """

    def __init__(
        self, names: TopicNames, write_key: Callable[..., Any] | None, write_value: Callable[..., Any] | None
    ) -> None:
        self._names = names
        self._write_key = write_key
        self._write_value = write_value
        self._orders = itertools.count()
        self._times = SchedulingTimes()
        self._token = uuid.uuid4().hex[:10]
        self._checked: set[str] = set()

    def encode(
        self,
        key: Any,
        value: Any,
        topic: str,
        due: int,
        at: int,
        headers: Sequence[Header] | None = None,
        level: int | None = None,
        partition: int | None = None,
        id_: str | None = None,
        recurrence: Recurrence | None = None,
    ) -> Encoded:
        """Encode a record that is due at `due` and was scheduled at `at`, in milliseconds since the epoch.

        Raises the same errors as `Scheduler.send_later` if the record cannot be scheduled.
        """
        target = topic if level is None else level_topic(topic, level)
        fields = checked_headers(headers, target) if headers else []
        if self._write_key is not None:
            key = self._write_key(key, target, fields)
        if self._write_value is not None:
            value = self._write_value(value, target, fields)
        order, at = next(self._orders), self._times.next(at)
        name = f"{self._token}{order:x}" if id_ is None else chosen_id(id_)
        schedule = Schedule(name, due, at, order, target, partition, 0, recurrence)
        if partition is not None or due > LATEST or target.__class__ is not str or target not in self._checked:
            self._check(schedule)
        fields.append(schedule.header())
        return schedule, value, key, fields

    def _check(self, schedule: Schedule) -> None:
        schedule.check()
        if self._names.owns(schedule.topic):
            raise ConfigError(f"The topic {schedule.topic} is the scheduler's own, so nothing can be scheduled to it.")
        if len(self._checked) >= _MOST_TARGETS:
            self._checked.clear()
        self._checked.add(schedule.topic)


def recurring(schedule: Schedule, key: Any, value: Any, headers: Sequence[Header]) -> Schedule:
    """Set the id of a recurring schedule to a hash of its whole content, so that equal schedules have the same id.

    Raises `SerializationError` if the key or the value is neither bytes nor text.
    """
    written = [each.encode() if isinstance(each, str) else each for each in (key, value)]
    try:
        whole = msgspec.msgpack.encode([schedule.topic, schedule.partition, schedule.recurrence, written, headers])
    except (TypeError, ValueError) as error:
        raise SerializationError(
            f"The key or the value of a schedule is neither bytes nor a string ({error}). Convert it, or set "
            "key.serializer and value.serializer."
        ) from error
    return msgspec.structs.replace(schedule, id=chosen_id(f"every-{sha256(whole).hexdigest()[:32]}"))


def check_later(
    topic: str, due: When | None, timestamp: int | None, id_: str | None, if_pending: Literal["replace", "keep"]
) -> None:
    """Raise `ConfigError` if a record has fields that do not fit its due time, or that need a due time."""
    if due is None:
        raise ConfigError(
            f"A record for {topic} has an id or if_pending, but no due time. Add a due time, or leave out id and "
            "if_pending. Nothing was sent."
        )
    if timestamp is not None:
        raise ConfigError(
            "A record with a due time gets the time of its delivery as its timestamp. Leave out timestamp or due."
        )
    if if_pending not in ("replace", "keep"):
        raise ConfigError(
            f"if_pending is {if_pending!r}; for a record that is sent it must be 'replace' or 'keep'. Only "
            "Scheduler.send_later can refuse, because it waits for a relay's answer."
        )
    check_if_pending(if_pending, id_)


def check_if_pending(if_pending: IfPending, id_: str | None) -> None:
    """Raise `ConfigError` if `if_pending` is given without an id."""
    if id_ is None and if_pending != "replace":
        raise ConfigError(f"if_pending is {if_pending!r}, which needs an id. Give an id, or leave out if_pending.")


def check_size(record: OutgoingRecord) -> None:
    """Raise `DeliveryError` if a schedule is larger than relays can move. A producer might accept larger records."""
    written = [each.encode() if isinstance(each, str) else each for each in (record.value, record.key)]
    size = sum(len(each) for each in written if isinstance(each, bytes))
    size += check_headers(record.headers, record.topic)
    if size > MOST_BYTES:
        raise DeliveryError(
            f"A record with a due time has {size} bytes, but relays can move at most {MOST_BYTES} bytes. Store the "
            "content elsewhere, and schedule a reference to it."
        )


def put_header(if_pending: IfPending, token: str = "", reply: int = 0) -> Header:
    """Return the header that marks a schedule as a command, because the user chose the id of the schedule."""
    if if_pending not in get_args(IfPending):
        raise ConfigError(f"if_pending is {if_pending!r}; it must be one of {', '.join(get_args(IfPending))}.")
    return Put(if_pending, token, reply).header()


def checked_headers(headers: Sequence[Header], target: str) -> list[Header]:
    """Return the headers as a list. Raises `SerializationError` or `ConfigError` for a header that cannot be sent."""
    fields: list[Header] = header_list(headers)
    check_headers(fields, target)
    for name, _ in fields:
        if name in OWN_HEADERS:
            raise ConfigError(f"The header {name} is the scheduler's own. Choose another name for your header.")
    return fields

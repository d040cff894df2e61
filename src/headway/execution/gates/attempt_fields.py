"""The fields of a fetched record, and of its attempts, that selectors compare."""

from collections.abc import Callable, Mapping

from headway.core.engine.attempt import TenantAttempt
from headway.core.selectors.conditions import FieldValue
from headway.core.selectors.parser import HEADER
from headway.core.user_errors import class_name
from headway.execution.context import wall_time
from headway.execution.jobs import RecordAttempt


def field_reader(field: str) -> Callable[[RecordAttempt], FieldValue]:
    """Return a function that reads one field of an attempt that has not failed now.

    For fields that depend on the time, use `AttemptFields`.
    """
    if field.startswith(HEADER):
        name = field[len(HEADER) :]
        return lambda attempt: _header(attempt, name)
    return _READ[field]


class AttemptFields:
    """The fields of an attempt that selectors compare."""

    __slots__ = ("_attempt", "_error", "_now")

    def __init__(self, attempt: RecordAttempt, now: float, error: BaseException | None = None) -> None:
        self._attempt = attempt
        self._now = now
        self._error = error

    def value_of(self, field: str) -> FieldValue:
        if field.startswith(HEADER):
            return _header(self._attempt, field[len(HEADER) :])
        if field == "error" and self._error is not None:
            return class_name(type(self._error))
        read = _READ.get(field)
        if read is not None:
            return read(self._attempt)
        timestamp = self._attempt.record.timestamp
        if field != "age" or timestamp < 0:
            return None
        return max(0.0, wall_time(self._now) - timestamp / 1000)


def _header(attempt: RecordAttempt, name: str) -> FieldValue:
    for header, value in attempt.record.headers:
        if header == name:
            return value.encode() if isinstance(value, str) else value
    return None


def _error_of(attempt: RecordAttempt) -> str | None:
    return class_name(type(attempt.failure.error)) if attempt.failure else None


_READ: Mapping[str, Callable[[RecordAttempt], FieldValue]] = {
    "key": lambda attempt: attempt.record.raw_key,
    "tenant": lambda attempt: attempt.tenant if isinstance(attempt, TenantAttempt) else None,
    "error": _error_of,
    "topic": lambda attempt: attempt.partition.topic,
    "level": lambda attempt: attempt.partition.level,
    "partition": lambda attempt: attempt.partition.partition,
    "offset": lambda attempt: attempt.offset,
    "attempts": lambda attempt: attempt.number - 1,
}

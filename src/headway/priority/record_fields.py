"""Converts a `ProducerRecord` to arguments of `send` and `try_send`."""

from typing import Any

from headway.delay.schedule_encoder import check_later
from headway.errors import ConfigError
from headway.records.record_types import ProducerRecord


def fields_of(record: ProducerRecord, has_levels: bool, *given: Any) -> dict[str, Any]:
    """Return a record's fields as arguments of `send`.

    `given` has the values of the call's other arguments. Raises `ConfigError` if any of these is not None, or if the
    record needs a level and has none.
    """
    if any(field is not None for field in given):
        raise ConfigError(
            f"A ProducerRecord for {record.topic} was given together with other fields of a record. Put all fields "
            "into the ProducerRecord, or give the topic's name instead of it. Nothing was sent."
        )
    if record.level is None and has_levels:
        raise ConfigError(
            f"The ProducerRecord for {record.topic} has no level, so it is for the topic of exactly that name, but "
            "this producer has levels. Give the record a level, such as level=0, or send it with a producer without "
            "levels. Nothing was sent."
        )
    fields: dict[str, Any] = {
        "topic": record.topic,
        "value": record.value,
        "key": record.key,
        "headers": record.headers or None,
        "partition": record.partition,
        "timestamp": record.timestamp,
        "level": record.level,
        "expires": record.expires,
    }
    if record.due is not None or record.id is not None or record.if_pending != "replace":
        check_later(record.topic, record.due, record.timestamp, record.id, record.if_pending)
        fields |= {"due": record.due, "id": record.id, "if_pending": record.if_pending}
    return fields


def fields_of_now(record: ProducerRecord, has_levels: bool, *given: Any) -> dict[str, Any]:
    """Return a record's fields as arguments of `try_send`.

    Raises `ConfigError` if `fields_of` does, or if the record has a due time or an id.
    """
    fields = fields_of(record, has_levels, *given)
    if "due" in fields:
        raise ConfigError(
            f"The ProducerRecord for {record.topic} has a due time or an id, so it may have to wait for the "
            "scheduler's topics, but try_send never waits. Call send instead. Nothing was sent."
        )
    return fields

"""A `ProducerRecord` as the arguments of `send`."""

from typing import Any

from headway.delay.schedule_encoder import check_later
from headway.errors import ConfigError
from headway.records.record_types import ProducerRecord


def fields_of(record: ProducerRecord, has_levels: bool, *given: Any) -> dict[str, Any]:
    """Return a record's fields as arguments of `send`.

    Raises `ConfigError` if other fields were given with the record, or if the record has no level and must have one.
    """
    if any(field is not None for field in given):
        raise ConfigError(
            f"A ProducerRecord for {record.topic} was given together with other fields of a record. Put all fields "
            "into the ProducerRecord, or give the topic's name instead of it. Nothing was sent."
        )
    if record.level is None and has_levels:
        raise ConfigError(
            f"The ProducerRecord for {record.topic} has no level, so it is for the topic of exactly that name, and "
            "this Producer has levels. Give the record a level, such as level=0, or send it with a Producer without "
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
    """Return a record's fields as arguments of `try_send`. Raises `ConfigError` also for a record with a due time."""
    fields = fields_of(record, has_levels, *given)
    if "due" in fields:
        raise ConfigError(
            f"The ProducerRecord for {record.topic} has a due time or an id. try_send never waits, and such a record "
            "may have to wait for the scheduler's topics: call send. Nothing was sent."
        )
    return fields

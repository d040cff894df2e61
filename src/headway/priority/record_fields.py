"""A `ProducerRecord` as the arguments of `send`."""

from typing import Any

from headway.delay.schedule_encoder import check_later
from headway.errors import ConfigError
from headway.records.record_types import ProducerRecord


def fields_of(record: ProducerRecord, has_levels: bool, *given: Any) -> dict[str, Any]:
    """Return a record's fields as arguments of `send`.

    Raises `ConfigError` if further fields were given beside the record, or for a level that its topic cannot have.
    """
    if any(field is not None for field in given):
        raise ConfigError(
            f"A ProducerRecord for {record.topic} was given beside other fields of a record, or a due time. Say all of "
            "it in the ProducerRecord, or give the topic's name first. Nothing was sent."
        )
    if record.level is None and has_levels:
        raise ConfigError(
            f"The ProducerRecord for {record.topic} has no level, which means the topic of that very name. Give it "
            "one, as level=0, or send it with a Producer that has no levels. Nothing was sent."
        )
    if record.level is not None and not has_levels:
        raise ConfigError(
            f"The ProducerRecord for {record.topic} has level={record.level}, and this Producer has no levels. Leave "
            "it out, or give the producer the setting levels. Nothing was sent."
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
    """Return a record's fields as arguments of `try_send`; raises `ConfigError` also for one with a due time."""
    fields = fields_of(record, has_levels, *given)
    if "due" in fields:
        raise ConfigError(
            f"The ProducerRecord for {record.topic} is due later. It may have to wait for the scheduler's topics, "
            "which try_send does not: call send. Nothing was sent."
        )
    return fields

"""A record on its way to Kafka, in the form in which producers' clients take it."""

from typing import Any

import msgspec

from headway.records.record_types import Header

ANY_PARTITION = -1
"""The partition is chosen by the key."""
NOW = 0
"""The timestamp is the time at which librdkafka takes the record."""


class OutgoingRecord(msgspec.Struct):
    """A record with its topic: `value` and `key` are bytes, strings or None."""

    topic: str
    value: Any
    key: Any
    partition: int = ANY_PARTITION
    timestamp: int = NOW
    headers: list[Header] | None = None

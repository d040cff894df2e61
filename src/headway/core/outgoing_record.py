"""A record on its way to Kafka, in the form that producer clients accept."""

from typing import Any

import msgspec

from headway.records.record_types import Header

ANY_PARTITION = -1
"""Means that the key chooses the partition."""
NOW = 0
"""Means the time at which librdkafka takes the record."""


class OutgoingRecord(msgspec.Struct):
    """A record with its topic: `value` and `key` are bytes, strings or None."""

    topic: str
    value: Any
    key: Any
    partition: int = ANY_PARTITION
    timestamp: int = NOW
    headers: list[Header] | None = None

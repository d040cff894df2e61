"""A record to send, in the form that producer clients accept."""

from typing import Any

import msgspec

from headway.records.record_types import Header

ANY_PARTITION = -1
"""As a record's partition, this value means that the key determines the partition."""
NOW = 0
"""As a record's timestamp, this value means the time when librdkafka accepts the record."""


class OutgoingRecord(msgspec.Struct):
    """A record to send, with its topic. `value` and `key` are bytes, strings or None."""

    topic: str
    value: Any
    key: Any
    partition: int = ANY_PARTITION
    timestamp: int = NOW
    headers: list[Header] | None = None

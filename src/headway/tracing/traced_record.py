"""What spans say about a record. It comes from an attempt, from a consumed record, or from a row of Spark."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from headway.records.record_types import ConsumerRecord, Header


class EarlierFailure(NamedTuple):
    """The last failed attempt at a record: the class of its error, and its time in seconds since the epoch."""

    error: str
    at: float


class TracedRecord(NamedTuple):
    """A record as its spans describe it. `timestamp` is in milliseconds since the epoch, or 0 if there is none.

    A row of Spark that comes from no topic has neither a topic nor a place and an origin.
    """

    kafka_topic: str | None
    level: int
    partition: int | None
    offset: int | None
    timestamp: int
    headers: Sequence[Header]
    key: object
    origin: str | None
    attempt: int = 1
    failure: EarlierFailure | None = None

    @classmethod
    def of(cls, record: ConsumerRecord, attempt: int = 1, failure: EarlierFailure | None = None) -> Self:
        """Describe a consumed record."""
        return cls(
            record.kafka_topic,
            record.level,
            record.partition,
            record.offset,
            record.timestamp,
            record.headers,
            record.raw_key,
            str(record.origin),
            attempt,
            failure,
        )

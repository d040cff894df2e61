"""Dead letters as records: what a record that failed for good is sent with, and what it takes to reach the brokers."""

import time
from typing import Any, Protocol

from headway.config import Config
from headway.core.user_errors import kind_of, text_of
from headway.records import ConsumerRecord, Header

PREFIX = "headway.error."
MOST_BYTES = 2_097_152
"""`message.max.bytes` of who sends them: with its story a dead letter is larger than its record was."""

# The consumer's settings that say how to reach the brokers; the others would be refused, or mean something else.
_REACH = "bootstrap. metadata.broker.list security. sasl. ssl. enable.ssl. https. socket. broker. client. reconnect. "
_REACH += "api.version. log_level log. oauth_cb"
_CONNECTION = tuple(_REACH.split())


class Failed(Protocol):
    """A record that failed for good: a `Work`, or what is like one."""

    @property
    def record(self) -> ConsumerRecord: ...
    @property
    def attempt(self) -> int: ...
    @property
    def first_failed_at(self) -> float | None: ...


def connection_of(config: Config) -> dict[str, Any]:
    """Of a consumer's settings those that a producer needs to reach the same brokers."""
    return {key: value for key, value in config.items() if key.startswith(_CONNECTION)}


def letter_headers(work: Failed, error: BaseException, reason: str) -> list[Header]:
    """The record's own headers and what went wrong; of an earlier life as a dead letter nothing is kept."""
    record, now, first_failed_at = work.record, time.time(), work.first_failed_at
    first = now if first_failed_at is None else now - (time.monotonic() - first_failed_at)
    story = {
        "exception": kind_of(error),
        "message": text_of(error),
        "reason": reason,
        "attempts": str(work.attempt),
        "topic": record.kafka_topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "first.time": str(round(first * 1000)),
        "last.time": str(round(now * 1000)),
    }
    own = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    return own + [(PREFIX + name, text.encode(errors="replace")) for name, text in story.items()]

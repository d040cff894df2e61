"""Formats consumed records as lines of output."""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

from headway.cli.display.json_lines import to_json
from headway.records.record_types import ConsumerRecord

Encode = Callable[[ConsumerRecord], bytes]


def text_line(record: ConsumerRecord) -> bytes:
    """Format a record as its value, or as an empty line if the record has no value."""
    return (record.raw_value or b"") + b"\n"


def record_json(record: ConsumerRecord) -> bytes:
    """Format a whole record as a JSON object.

    A value that is not UTF-8 is encoded in Base64, in the field `value_base64` instead of `value`.
    """
    fields = {
        "topic": record.topic,
        "level": record.level,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **text_or_base64("key", record.raw_key),
        **text_or_base64("value", record.raw_value),
        "headers": [{"name": name, **text_or_base64("value", value)} for name, value in record.headers],
    }
    return to_json(fields).encode() + b"\n"


def text_or_base64(name: str, content: Any) -> dict[str, str | None]:
    """Return a key or value as a JSON field. Content that is not UTF-8 is in Base64, as `key_base64`."""
    if isinstance(content, bytes):
        try:
            return {name: content.decode()}
        except UnicodeDecodeError:
            return {f"{name}_base64": b64encode(content).decode()}
    return {name: content}

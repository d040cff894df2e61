"""Consumed records as lines of output."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from headway.records import ConsumerRecord

Encode = Callable[[ConsumerRecord], bytes]

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def text_line(record: ConsumerRecord) -> bytes:
    """The value as it is; a record without one is an empty line."""
    return (record.raw_value or b"") + b"\n"


def json_line(record: ConsumerRecord) -> bytes:
    """All of the record as a JSON object.

    What is not UTF-8 is in Base64, under a name that says so: `value_base64` in place of `value`.
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
    return _to_json(fields).encode() + b"\n"


def text_or_base64(name: str, content: Any) -> dict[str, str | None]:
    """A field of JSON for a key or value; what is not UTF-8 in Base64, under a name that says so."""
    if isinstance(content, bytes):
        try:
            return {name: content.decode()}
        except UnicodeDecodeError:
            return {f"{name}_base64": b64encode(content).decode()}
    return {name: content}

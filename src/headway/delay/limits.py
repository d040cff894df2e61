"""Limits for clients that store schedules in the delay topics: the size of a record, and the time to store a record."""

from collections.abc import Mapping
from typing import Any

from headway.core.delay.schedule import STORED_WITHIN
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.errors import ConfigError
from headway.settings.config import Config, whole_number

# How many bytes are reserved for what a relay adds: a new due time, or headers that explain why the record is a dead
# letter.
_LATER_ADDED = 65_536
MOST_BYTES = MAX_MESSAGE_BYTES - _LATER_ADDED
"""The maximum number of bytes that a scheduled record can have, including its key and its headers."""

DEFAULTS: Mapping[str, Any] = {"message.max.bytes": MOST_BYTES, "message.timeout.ms": STORED_WITHIN}


def check(config: Config) -> None:
    """Raise `ConfigError` for settings that could make a relay miss a record, or be unable to move one."""
    key = next((key for key in ("message.timeout.ms", "delivery.timeout.ms") if key in config), "message.timeout.ms")
    timeout = whole_number(key, config.get(key, STORED_WITHIN))
    if not 0 < timeout <= STORED_WITHIN:
        raise ConfigError(
            f"The setting {key} is {timeout}; for schedules it must be from 1 to {STORED_WITHIN}, because relays do "
            "not wait longer for records that are still being stored."
        )
    size = whole_number("message.max.bytes", config.get("message.max.bytes", MOST_BYTES))
    if size > MOST_BYTES:
        raise ConfigError(
            f"The setting message.max.bytes is {size}; for schedules it must be at most {MOST_BYTES}, because relays "
            "cannot move larger records. Store the content elsewhere, and schedule a reference to it."
        )

"""Parsers for options, which Spark passes as text. Each parser raises `ConfigError` if the text is not valid."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from headway.core.duration import parse_duration
from headway.core.levels.naming import MOST_LEVELS
from headway.declarations import shown
from headway.errors import ConfigError

KAFKA_PREFIX = "kafka."
SERVERS = f"{KAFKA_PREFIX}bootstrap.servers"

LARGEST = 2**63 - 1
"""The largest of Kafka's offsets and times, and of Spark's whole numbers."""

_EPOCH = datetime.fromtimestamp(0, UTC)
_DIGITS = 40  # further digits of a number are not parsed
_PRIORITIES_EXAMPLE = '{"payments": 2, "clicks": 0}: topic, level'


def refuse_unknown(kind: str, names: Sequence[str], options: Mapping[str, str]) -> None:
    """Raise `ConfigError` for an option that is not in `names` and does not begin with `kafka.`.

    The error suggests the most similar name. The names in `options` must be in lower case.
    """
    if not options or "provider" in options:  # as when Spark requests a catalog table's columns
        raise ConfigError(
            f"The headway {kind} needs the option `kafka.bootstrap.servers`, but it got no options. Set it, as in "
            '.option("kafka.bootstrap.servers", "host:9092"). Spark does not pass the options of CREATE TABLE to data '
            "sources in Python: use CREATE TEMPORARY VIEW … USING headway OPTIONS (…), which SELECT and INSERT INTO "
            "accept."
        )
    known = {name.lower(): name for name in names}
    for name in options:
        if name not in known and not name.startswith(KAFKA_PREFIX):
            near = get_close_matches(name, [*known, SERVERS], n=1)
            known_names = f"The options are {', '.join(names)} and kafka.*."
            hint = f"Did you mean {known.get(near[0], near[0])}?" if near else known_names
            raise ConfigError(f"The headway {kind} has no option `{name}`. {hint}")


def kafka_settings(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for librdkafka from the options `kafka.*`.

    Raises `ConfigError` if the option `kafka.bootstrap.servers` is missing or empty.
    """
    if not options.get(SERVERS, "").strip():
        raise ConfigError(f'The headway {kind} needs the option `{SERVERS}`, as in .option("{SERVERS}", "host:9092").')
    return {name.removeprefix(KAFKA_PREFIX): value for name, value in options.items() if name.startswith(KAFKA_PREFIX)}


def bounded_number(name: str, value: str, least: int, meaning: str, most: int = LARGEST) -> int:
    """Parse a whole number from `least` to `most`. The error contains `meaning`, which says what the number is for."""
    number = _number(value)
    if number is None or number < least:
        raise ConfigError(
            f"The option `{name}` is {shown(value)}; it must be a whole number of at least {least}: {meaning}."
        )
    if number > most:
        raise ConfigError(f"The option `{name}` is {shown(value)}; it must be at most {most}: {meaning}.")
    return number


def _number(value: str) -> int | None:
    """Parse text that consists only of digits. Returns None for any other text.

    Only the first 40 digits are parsed, because Python refuses to convert thousands of digits. A number of 40 digits is
    already too large for any option, so the caller rejects it.
    """
    return int(value[:_DIGITS]) if value.isdecimal() else None


def choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Return the value in lower case. Raises `ConfigError` unless the value, ignoring case, is one of the choices."""
    if value.lower() not in choices:
        raise ConfigError(f"The option `{name}` is {value!r}. Choose {', '.join(choices[:-1])} or {choices[-1]}.")
    return value.lower()


def true_or_false(name: str, value: str) -> bool:
    """Parse `true` or `false`, ignoring case."""
    return choice(name, value, ("true", "false")) == "true"


def duration(name: str, value: str) -> float:
    """Parse a duration into seconds.

    >>> duration("maxTriggerDelay", "15m"), duration("maxTriggerDelay", "500ms")
    (900.0, 0.5)
    """
    seconds = parse_duration(value)
    if seconds is None:
        raise ConfigError(f"The option `{name}` is {shown(value)}; it must be a duration: 500ms, 30s, 15m, 12h or 7d.")
    return seconds


def moment_ms(value: str) -> int | None:
    """Parse a time into milliseconds since the epoch. Returns None for a time without a zone, and for any other text.

    A time before 1970 becomes 0, because no records are that old, and because negative numbers have a special meaning
    in Kafka.

    >>> moment_ms("2026-01-01T00:00:00Z"), moment_ms("1767225600000"), moment_ms("soon")
    (1767225600000, 1767225600000, None)
    """
    if (number := _number(value)) is not None:
        return number
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return None if time.tzinfo is None else max(0, (time - _EPOCH) // timedelta(milliseconds=1))


def json_object(name: str, value: str, example: str) -> Mapping[str, Any]:
    """Parse a JSON object. For any other value, raises a `ConfigError` that shows `example`."""
    try:
        form = json.loads(value)
    except (ValueError, RecursionError):  # Python also raises ValueError for a number with thousands of digits
        form = None
    if not isinstance(form, dict):
        raise ConfigError(f"The option `{name}` is {shown(value)}; it must be JSON, such as {example}.")
    return form


def topic_priorities(value: str) -> dict[str, int]:
    """Parse the option `priorities`, which gives each existing topic a level.

    >>> topic_priorities('{"payments": 2, "clicks": 0}')
    {'payments': 2, 'clicks': 0}
    """
    form = json_object("priorities", value, _PRIORITIES_EXAMPLE)
    for topic, level in form.items():
        if type(level) is not int or not 0 <= level < MOST_LEVELS:
            raise ConfigError(
                f"The option `priorities` gives {topic} the level {shown(level)}; it must be a whole number from 0, "
                f"the lowest, to {MOST_LEVELS - 1}."
            )
    if not form:
        raise ConfigError(f"The option `priorities` names no topic. Name at least one, such as {_PRIORITIES_EXAMPLE}.")
    return dict(form)

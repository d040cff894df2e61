"""Values of options, which Spark hands over as text: each parser raises `ConfigError` with a sentence."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from headway.errors import ConfigError

KAFKA_PREFIX = "kafka."
SERVERS = f"{KAFKA_PREFIX}bootstrap.servers"

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")


def refuse_unknown(kind: str, names: Sequence[str], options: Mapping[str, str]) -> None:
    """Any option that is neither of these nor Kafka's, with the nearest right name; `options` are in lower case."""
    known = {name.lower(): name for name in names}
    for name in options:
        if name not in known and not name.startswith(KAFKA_PREFIX):
            near = get_close_matches(name, [*known, SERVERS], n=1)
            hint = f"Did you mean {known.get(near[0], near[0])}?" if near else f"It has {', '.join(names)} and kafka.*."
            raise ConfigError(f"The headway {kind} has no option {name}. {hint}")


def whole_number(name: str, value: str, least: int, meaning: str) -> int:
    """A whole number of at least so much; `meaning` says what it is, or why it must be so much."""
    if not value.isdecimal() or int(value) < least:
        raise ConfigError(f"The option {name} is {value!r}; it must be a whole number of at least {least}: {meaning}.")
    return int(value)


def choice(name: str, value: str, choices: Sequence[str]) -> str:
    """One of several words, in any case."""
    if value.lower() not in choices:
        raise ConfigError(f"The option {name} is {value!r}. Choose {', '.join(choices[:-1])} or {choices[-1]}.")
    return value.lower()


def true_or_false(name: str, value: str) -> bool:
    """`true` or `false`, in any case."""
    return choice(name, value, ("true", "false")) == "true"


def duration(name: str, value: str) -> float:
    """A duration in seconds.

    >>> duration("maxTriggerDelay", "15m"), duration("maxTriggerDelay", "500ms")
    (900, 0.5)
    """
    found = _DURATION.fullmatch(value.strip().lower())
    if not found:
        raise ConfigError(f"The option {name} is {value!r}; it must be a duration: 500ms, 30s, 15m, 12h or 7d.")
    return int(found[1]) * _SECONDS[found[2]]


def moment_ms(value: str) -> int | None:
    """A time in milliseconds since the epoch, None for what is no time; a time without a zone is none.

    >>> moment_ms("2026-01-01T00:00:00Z"), moment_ms("1767225600000"), moment_ms("soon")
    (1767225600000, 1767225600000, None)
    """
    if value.isdecimal():
        return int(value)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return None if time.tzinfo is None else int(time.astimezone(UTC).timestamp() * 1000)


def json_object(name: str, value: str, example: str) -> Mapping[str, Any]:
    """A JSON object; `example` is in the sentence for what is none."""
    try:
        form = json.loads(value)
    except json.JSONDecodeError:
        form = None
    if not isinstance(form, dict):
        raise ConfigError(f"The option {name} is {value!r}; it must be JSON, as {example}.")
    return form

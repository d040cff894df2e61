"""Durations in the form in which users write them in commands, options and selectors."""

import re

SECONDS_PER_UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}

_DURATION = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*(ms|[smhdwy])")


def parse_duration(text: str) -> float | None:
    """Parse a number with a unit into seconds. Returns None for any other text.

    >>> parse_duration("90s"), parse_duration("1.5 h"), parse_duration("soon")
    (90.0, 5400.0, None)
    """
    found = _DURATION.fullmatch(text.strip().lower())
    return float(found[1]) * SECONDS_PER_UNIT[found[2]] if found else None

"""Durations in words, as the descriptions of waits have them."""

from typing import Final

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def in_words(seconds: float) -> str:
    """Return a duration in its largest unit.

    >>> in_words(0.25), in_words(41.3), in_words(10_900), in_words(200_000)
    ('250 ms', '41 s', '3 h', '2.3 d')
    """
    for size, unit in _UNITS:
        if seconds >= size:
            number = seconds / size
            return f"{number:.1f}".removesuffix(".0") + f" {unit}" if unit != "s" else f"{number:.0f} s"
    return f"{max(0.0, seconds) * 1000:.0f} ms"

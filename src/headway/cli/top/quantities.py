"""Formats numbers, times and offset maps so that a narrow column can hold them."""

UNKNOWN = "-"

_UNITS = ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "m"))


def short_duration(seconds: float | None) -> str:
    """Format a duration with two units at most.

    >>> [short_duration(each) for each in (None, 0.04, 7.25, 75, 3_725, 200_000)]
    ['-', '0.0 s', '7.2 s', '1m 15s', '1h 2m', '2d 7h']
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    for index, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            smaller, name = (*_UNITS[1:], (1, "s"))[index]
            return f"{int(seconds // size)}{unit} {int(seconds % size // smaller)}{name}"
    raise AssertionError(seconds)


def rate(per_second: float | None) -> str:
    """Format a rate.

    >>> [rate(each) for each in (None, 0.0, 0.25, 12.34, 5_432.1)]
    ['-', '0', '0.2', '12', '5,432']
    """
    if per_second is None:
        return UNKNOWN
    return f"{per_second:.1f}" if 0.05 <= per_second < 10 else f"{per_second:,.0f}"


def bar(value: float, largest: float, width: int) -> str:
    """Draw a value as a bar, beside the largest of its kind. A value above 0 always has a mark.

    >>> bar(5, 10, 8), bar(0.01, 10, 8), bar(0, 10, 8)
    ('████', '▏', '')
    """
    eighths = round(8 * width * value / largest) if largest > 0 else 0
    full, rest = divmod(max(eighths, int(value > 0)), 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]

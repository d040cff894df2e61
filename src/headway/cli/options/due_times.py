"""Delays and due times in the form in which users type and read them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from headway.core.delay.ladder import Ladder
from headway.core.duration import SECONDS_PER_UNIT, parse_duration
from headway.errors import ConfigError

FOREVER = "forever"


class DelayParameter(click.ParamType[float]):
    """Parses a delay with a unit into seconds."""

    name = "DELAY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = parse_duration(str(value))
        if seconds is None and parse_duration(str(value).removeprefix("-")) is not None:
            self.fail(f"{value!r} is in the past. Give a delay from now, such as 5m.", param, ctx)
        if seconds is None:
            self.fail(f"{value!r} is not a delay. Give a number and a unit: 250ms, 90s, 5m, 2h, 30d, 2y.", param, ctx)
        return seconds


class Retention(click.ParamType[timedelta]):
    """Parses a retention time: a number with a unit, or "forever", which becomes `timedelta.max`."""

    name = "TIME|forever"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        if value == FOREVER:
            return timedelta.max
        seconds = parse_duration(str(value))
        if not seconds:
            self.fail(
                f"{value!r} is not valid. Give a number and a unit, such as 12h or 30d, or {FOREVER!r}.", param, ctx
            )
        try:
            return timedelta(seconds=seconds)
        except OverflowError:
            self.fail(f"{value!r} is too long. Use {FOREVER!r} to keep all records.", param, ctx)


class TimeParameter(click.ParamType[datetime]):
    """Parses a time with a time zone."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        example = "such as 2030-01-31T17:00:00+01:00, or with Z for UTC"
        try:
            time = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time. Give a date, a time and its zone, {example}.", param, ctx)
        if time.utcoffset() is None:
            self.fail(f"{value!r} has no time zone. Add one, {example}.", param, ctx)
        return time


class Moment(click.ParamType[int]):
    """Parses a date, a time, or how long ago a time was, such as 90m, into milliseconds since the epoch."""

    name = "moment"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "TIME|AGO"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            ago = parse_duration(str(value))
            # Without a zone, a time is local.
            time = datetime.fromisoformat(str(value)) if ago is None else datetime.now(UTC) - timedelta(seconds=ago)
            return int(time.timestamp() * 1000)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is not a time such as 2026-05-01 or '2026-05-01 12:30', or how long ago, such as 90m, 12h "
                "or 7d.",
                param,
                ctx,
            )


class DelayTopics(click.ParamType[Ladder]):
    """Parses the delays of delay topics, such as 1s,1m,1h."""

    name = "DELAY,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Ladder:
        if isinstance(value, Ladder):
            return value
        try:
            return Ladder(tuple(round(DUE.convert(each, param, ctx) * 1000) for each in str(value).split(",")))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


DUE = DelayParameter()
TIME = TimeParameter()
LADDER = DelayTopics()


def show_due(time: int) -> str:
    """Format milliseconds since the epoch for people, in a form that `--at` accepts.

    >>> show_due(1_763_745_120_000)
    '2025-11-21T17:12:00+00:00'
    """
    return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="seconds")


def describe_ms(time: int) -> str:
    """Format a duration in milliseconds with the largest possible unit.

    >>> describe_ms(90_000), describe_ms(86_400_000)
    ('1.5 m', '1 d')
    """
    unit = next((unit for unit in ("d", "h", "m", "s") if time >= SECONDS_PER_UNIT[unit] * 1000), "ms")
    return f"{time / 1000 / SECONDS_PER_UNIT[unit]:.3g} {unit}"

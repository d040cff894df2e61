"""Formats dead letters for people and programs, and parses their positions."""

from typing import Any

import click

from headway.cli.display.json_lines import to_json
from headway.cli.display.texts import local_time, printable, shortened, shown_bytes
from headway.cli.records.record_lines import text_or_base64
from headway.inspection.letters import LETTER_PREFIXES, Letter, LetterFailure, LetterPosition, is_whole_number
from headway.records.history import HEADER

_MOST_OF_A_MESSAGE = 60
_MOST_OF_A_KEY = 30
_BYTES_OF_A_LINE = 32


class PlaceType(click.ParamType[LetterPosition]):
    """Parses a position from text such as `0:12`, as `headway dead list` shows it."""

    name = "PARTITION:OFFSET"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LetterPosition:
        partition, _, offset = str(value).partition(":")
        if not (is_whole_number(partition) and is_whole_number(offset)):
            self.fail(f"{value!r} is not PARTITION:OFFSET, such as 0:12. `headway dead list` shows them.", param, ctx)
        return LetterPosition(int(partition), int(offset))


def letter_row(letter: Letter) -> list[str]:
    """Format a letter as a row of a table: place, when, from, attempts, exception, message and key."""
    failure, when = letter.failure, local_time(letter.when, zone=False)
    key = shortened(shown_bytes(letter.key), _MOST_OF_A_KEY)
    if failure is None:
        return [str(letter.place), when, "-", "-", "not a dead letter", "", key]
    attempts = "-" if failure.attempts is None else str(failure.attempts)
    message = shortened(printable(failure.message or ""), _MOST_OF_A_MESSAGE)
    exception = printable(failure.exception or "-").removeprefix("builtins.")
    return [str(letter.place), when, _source(failure), attempts, exception, message, key]


def letter_json(topic: str, letter: Letter) -> str:
    """Format a letter as one line of JSON. Content that is not UTF-8 is in Base64, as `value_base64`."""
    return to_json(
        {
            "topic": topic,
            **letter.place._asdict(),
            "timestamp": letter.timestamp,
            "settled": letter.settled,
            "failure": letter.failure and letter.failure._asdict(),
            **text_or_base64("key", letter.key),
            **text_or_base64("value", letter.value),
            "headers": [{"name": name, **text_or_base64("value", value)} for name, value in letter.headers],
        }
    )


def letter_page(topic: str, letter: Letter) -> list[str]:
    """Format a letter as several lines for people."""
    state = "is settled" if letter.settled else "is open"
    what = state if letter.failure else "is not a dead letter: it has no headway.error headers"
    lines = [f"{topic} {letter.place} {what}."]
    origin = letter.origin(topic)
    first_sent = {"origin": printable(str(origin))} if letter.failure and origin else {}
    lines += _fields(_story(letter.failure) | first_sent | _times(letter) | {"key": shown_bytes(letter.key)})
    prefixes = (*LETTER_PREFIXES, HEADER)
    own = [(printable(name), shown_bytes(value)) for name, value in letter.headers if not name.startswith(prefixes)]
    if own:
        lines += ["headers", *(f"  {name}: {value}" for name, value in own)]
    return [*lines, *_value(letter.value)]


def _story(failure: LetterFailure | None) -> dict[str, str]:
    if failure is None:
        return {}
    times = {"first failed": failure.first_time, "last failed": failure.last_time}
    story = {
        "exception": failure.exception,
        "message": failure.message,
        "reason": failure.reason,
        "attempts": failure.attempts,
        "first exception": failure.first_exception,
        "first message": failure.first_message,
        "from": _source(failure),
        "share group" if failure.of_share_group else "group": failure.group,
        "shortened": failure.shortened,
        **{name: time if time is None else local_time(time) for name, time in times.items()},
    }
    return {name: printable(str(text), "\n") for name, text in story.items() if text is not None}


def _times(letter: Letter) -> dict[str, str]:
    """Return the timestamps of the record and of its dead letter."""
    if letter.failure is None:
        return {"timestamp": local_time(letter.timestamp)}
    own = letter.failure.timestamp
    return {"timestamp": "-" if own is None else local_time(own), "written here": local_time(letter.timestamp)}


def _fields(fields: dict[str, str]) -> list[str]:
    width = max(map(len, fields))
    indent = "\n" + " " * (width + 4)
    return [f"  {name:{width}}  {indent.join(text.splitlines())}" for name, text in fields.items()]


def _value(value: bytes | None) -> list[str]:
    if value is None:
        return ["no value"]
    title = f"value, {len(value):,} byte{'' if len(value) == 1 else 's'}"
    try:
        return [title, *printable(value.decode(), "\n\t").split("\n")]
    except UnicodeDecodeError:
        parts = (value[start : start + _BYTES_OF_A_LINE] for start in range(0, len(value), _BYTES_OF_A_LINE))
        return [f"{title}, in hex, because it is not UTF-8", *(part.hex(" ") for part in parts)]


def _source(failure: LetterFailure) -> str:
    if failure.topic is None:
        return "-"
    partition, offset = ("?" if each is None else each for each in (failure.partition, failure.offset))
    return f"{printable(failure.topic)} {partition}:{offset}"

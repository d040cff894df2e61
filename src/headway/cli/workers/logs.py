"""Logs on stderr, as text or JSON, one line per event. A line names the record that the event concerns.

Only commands configure logging like this. The library itself never does, because that is up to its users.
"""

import hashlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click

from headway.cli.display.texts import printable
from headway.cli.workers.messages import LogStyle
from headway.records.record_types import ConsumerRecord

_HASH_DIGITS = 12
_LONGEST_KEY = 200  # the maximum number of bytes of a key that are shown

CLEAR_LINE = "\r\x1b[K"

Handled = ConsumerRecord | Sequence[ConsumerRecord]
"""The record, or the records of a batch, with which a handler is called."""

handled_record: ContextVar[Handled | None] = ContextVar("handled_record", default=None)
"""The record or batch whose handler runs in this context. All its logs name the record."""

_PLAIN = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}


class TextLog(logging.Formatter):
    """Formats `2027-01-31 12:00:00.123 WARNING billing:bill[2] headway.…: message [orders-2, partition 1, offset 7]`.

    If the record has a key, it is shown too: `[orders-2, partition 1, offset 7, key customer 7]`.
    """

    def __init__(self, source: str, style: LogStyle) -> None:
        super().__init__()
        self._source = source
        self._start = CLEAR_LINE if style.over_progress else ""
        self._keys = style.keys

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        text = f"{_time(record):%Y-%m-%d %H:%M:%S}.{int(record.msecs):03} {record.levelname:<7} {self._source} "
        text += f"{record.name}: {record.getMessage()}"
        if handled := handled_record.get():
            about, count = _first_of(handled)
            more = f" and {count - 1} more" if count > 1 else ""
            key = _shown_key(about, self._keys)
            named = "" if key is None else f", key {key}"
            text += f" [{about.kafka_topic}, partition {about.partition}, offset {about.offset}{named}{more}]"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return self._start + text


class JsonLog(logging.Formatter):
    """Formats each event as a JSON object on one line. The `extra` of a log call is added as fields."""

    def __init__(self, worker: str | None, process: int | None, style: LogStyle) -> None:
        super().__init__()
        self._keys = style.keys
        self._who = {} if worker is None else {"worker": worker, "process": process}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event: dict[str, Any] = {
            "timestamp": _time(record).astimezone(UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": os.getpid(),
            **self._who,
        }
        if handled := _record_of(record):
            about, count = _first_of(handled)
            event |= {"topic": about.kafka_topic, "partition": about.partition, "offset": about.offset}
            if (key := _shown_key(about, self._keys)) is not None:
                event["key"] = key
            if count > 1:
                event["records"] = count
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        given = {key: value for key, value in vars(record).items() if key not in event.keys() | _PLAIN}
        return json.dumps(event | given, ensure_ascii=False, default=str)


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the log options to a command that runs until it is stopped. The command gets them in the argument `style`."""

    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How to log on stderr: one line per event, for people or for programs.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="The lowest level that is logged.",
    )
    @click.option(
        "--log-keys",
        type=click.Choice(["shown", "hashed", "hidden"]),
        default="shown",
        show_default=True,
        help="How logs show a record's key. hashed shows the start of its SHA-256, for keys that identify a person.",
    )
    @wraps(command)
    def with_style(*args: Any, log_format: str, log_level: str, log_keys: str, **options: Any) -> None:
        command(*args, style=LogStyle(log_format, log_level, keys=log_keys), **options)

    return with_style


def log_to_stderr(
    style: LogStyle, worker: str | None = None, process: int | None = None, command: str = "supervisor"
) -> None:
    """Send all logs, warnings and uncaught errors of this process to stderr.

    In text logs, each line names the worker's process or, outside a worker, the command.
    """
    formatter: logging.Formatter
    if style.format == "json":
        formatter = JsonLog(worker, process, style)
    else:
        source = command if worker is None else f"{worker}[{process}]"
        formatter = TextLog(source, style)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=style.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    log = logging.getLogger("headway.worker")
    sys.excepthook = lambda *error: log.critical("Uncaught error:", exc_info=error)
    threading.excepthook = lambda args: log.error(
        "The thread %s died:", args.thread and args.thread.name, exc_info=args.exc_value
    )


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created)


def _record_of(event: logging.LogRecord) -> Handled | None:
    """Return the record or batch whose handler logged the event, or otherwise a record from the event's arguments."""
    named = (each for each in event.args or () if isinstance(each, ConsumerRecord))
    return handled_record.get() or next(named, None)


def _shown_key(record: ConsumerRecord, how: str) -> str | None:
    """Return a record's key in the form that logs show, or None if it has no key or keys are hidden."""
    key = record.raw_key
    if key is None or how == "hidden":
        return None
    if how == "hashed":
        return hashlib.sha256(key).hexdigest()[:_HASH_DIGITS]
    return printable(key[:_LONGEST_KEY].decode(errors="backslashreplace"))


def _first_of(handled: Handled) -> tuple[ConsumerRecord, int]:
    """Return the record, or the first record of a batch, and the number of records."""
    return (handled, 1) if isinstance(handled, ConsumerRecord) else (handled[0], len(handled))

"""Logs on stderr: a line for each event, for people or as JSON, with the place where it happened.

Only the command installs this; the library itself only logs, and leaves the rest to its users.
"""

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

from headway.cli.workers.messages import LogStyle
from headway.records import ConsumerRecord

CLEAR_LINE = "\r\x1b[K"

Handled = ConsumerRecord | Sequence[ConsumerRecord]
"""The record of a call of a handler, or the records of a batch."""

handled_record: ContextVar[Handled | None] = ContextVar("handled_record", default=None)
"""The record whose handler runs here, or the batch, so that all that it logs names the record or the batch's first."""

_PLAIN = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}


class TextLines(logging.Formatter):
    """Lines: `2027-01-31 12:00:00.123 WARNING billing:bill[2] headway.…: message [orders-2, partition 1, offset 7]`."""

    def __init__(self, source: str, *, over_progress: bool) -> None:
        super().__init__()
        self._source = source
        self._start = CLEAR_LINE if over_progress else ""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it if there is one."""
        text = f"{_time(record):%Y-%m-%d %H:%M:%S}.{int(record.msecs):03} {record.levelname:<7} {self._source} "
        text += f"{record.name}: {record.getMessage()}"
        if handled := handled_record.get():
            about, count = _first_of(handled)
            more = f" and {count - 1} more" if count > 1 else ""
            text += f" [{about.kafka_topic}, partition {about.partition}, offset {about.offset}{more}]"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return self._start + text


class JsonLines(logging.Formatter):
    """Lines with each event as a JSON object; a logger's `extra` is among its fields."""

    def __init__(self, worker: str | None, process: int | None) -> None:
        super().__init__()
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
            if count > 1:
                event["records"] = count
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        given = {key: value for key, value in vars(record).items() if key not in event.keys() | _PLAIN}
        return json.dumps(event | given, ensure_ascii=False, default=str)


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the log options to a command that runs until it is told to end; it gets them as `style`."""

    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="A line for each event on stderr, for people or for programs.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="The least that is logged.",
    )
    @wraps(command)
    def with_style(*args: Any, log_format: str, log_level: str, **options: Any) -> None:
        command(*args, style=LogStyle(log_format, log_level), **options)

    return with_style


def log_to_stderr(
    style: LogStyle, worker: str | None = None, process: int | None = None, command: str = "supervisor"
) -> None:
    """Write logs to stderr for as long as this process lives, with warnings and uncaught errors.

    A line of text names the worker's process, or the command.
    """
    formatter: logging.Formatter
    if style.format == "json":
        formatter = JsonLines(worker, process)
    else:
        source = command if worker is None else f"{worker}[{process}]"
        formatter = TextLines(source, over_progress=style.over_progress)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=style.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    log = logging.getLogger("headway.worker")
    sys.excepthook = lambda *error: log.critical("Nobody caught this:", exc_info=error)
    threading.excepthook = lambda args: log.error(
        "The thread %s died:", args.thread and args.thread.name, exc_info=args.exc_value
    )


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created)


def _record_of(event: logging.LogRecord) -> Handled | None:
    """Return the record or batch that an event is about: the one whose handler logged it, or one that it names."""
    named = (each for each in event.args or () if isinstance(each, ConsumerRecord))
    return handled_record.get() or next(named, None)


def _first_of(handled: Handled) -> tuple[ConsumerRecord, int]:
    """Return a record, or the first of a batch, and how many there are."""
    return (handled, 1) if isinstance(handled, ConsumerRecord) else (handled[0], len(handled))

"""The messages between the supervisor and its members: a line of JSON each."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import msgspec

from headway.core.engine.suspects import Suspect

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogStyle:
    """The style of logs on stderr; `over_progress` says that a line of progress may stand there.

    `keys` is how the key of a record is named: as it is (`shown`), by the start of its SHA-256 (`hashed`), or not at
    all (`hidden`).
    """

    format: str = "text"
    level: str = "info"
    over_progress: bool = False
    keys: str = "shown"


@dataclass(frozen=True, slots=True)
class Job:
    """The task of one member, and the supervisor's first message. `config` can hold secrets.

    `suspects` are records that ran in members that died. `last_crash` is the error that ended the member before.
    """

    worker: str
    index: int
    config: dict[str, Any] = field(repr=False)
    max_concurrency: int | None
    drain_timeout: float
    logs: LogStyle
    suspects: list[Suspect] = field(default_factory=list)
    last_crash: str = ""


class Order(Enum):
    """The way in which a member is to end. A closed socket means `DRAIN`: the supervisor is gone."""

    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Warn:
    """More records that ran in members that died: any member may get the partition of one."""

    suspects: list[Suspect]


@dataclass(frozen=True, slots=True)
class Report:
    """The progress of a member; `mistake` is why it cannot go on, and `crash` the error that ends it this time."""

    handled: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    mistake: str = ""
    crash: str = ""


def to_line(message: Job | Order | Warn | Report) -> bytes:
    """Return a message as a line to send."""
    return msgspec.json.encode(message) + b"\n"


def from_line(line: bytes, kind: type[T]) -> T:
    """Return a message from its line."""
    return msgspec.json.decode(line, type=kind)


def order_from_line(line: bytes) -> Order | Warn:
    """Return a later message of the supervisor from its line."""
    said: Order | Warn = msgspec.json.decode(line, type=Order | Warn)
    return said

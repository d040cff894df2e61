"""What the supervisor and its members tell each other: a line of JSON each."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import msgspec

from headway.core.engine.suspects import Suspect

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogStyle:
    """How logs are written to stderr; `over_progress` says that a line of progress may stand there."""

    format: str = "text"
    level: str = "info"
    over_progress: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What one member runs: the first that the supervisor says. `config` can hold secrets.

    `suspects` are records that ran in members that died.
    """

    worker: str
    index: int
    config: dict[str, Any] = field(repr=False)
    concurrency: int | None
    drain_timeout: float
    logs: LogStyle
    suspects: list[Suspect] = field(default_factory=list)


class Order(Enum):
    """How a member is to end. A closed socket means `DRAIN`: the supervisor is gone."""

    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Warn:
    """More records that ran in members that died: the partition of one may come to any member."""

    suspects: list[Suspect]


@dataclass(frozen=True, slots=True)
class Report:
    """How far a member is; `mistake` is the sentence that says why it cannot go on."""

    handled: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    mistake: str = ""


def to_line(message: Job | Order | Warn | Report) -> bytes:
    """A message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


def from_line(line: bytes, kind: type[T]) -> T:
    """A message as it came."""
    return msgspec.json.decode(line, type=kind)


def order_from_line(line: bytes) -> Order | Warn:
    """Return what the supervisor says after the job."""
    said: Order | Warn = msgspec.json.decode(line, type=Order | Warn)
    return said

"""The messages between the supervisor and its members, each one line of JSON, and their exit codes."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, TypeVar

import msgspec

from headway.core.engine.suspects import Suspect
from headway.metrics.health import Health
from headway.metrics.samples import Sample
from headway.runtime.interrupt import INTERRUPTED

T = TypeVar("T")


class Code(IntEnum):
    """The exit codes of `headway worker` and of its processes."""

    DONE = 0
    MISTAKE = 1
    FAILED_FOR_GOOD = 3
    KEPT_DYING = 4
    UNFINISHED = 5
    CRASHED = 70  # only for a member, which the supervisor then restarts
    INTERRUPTED = INTERRUPTED


@dataclass(frozen=True, slots=True)
class LogStyle:
    """How logs are written to stderr. `over_progress` is True if log lines must overwrite a progress line.

    `keys` is how a record's key is shown: as it is (`shown`), as the start of its SHA-256 (`hashed`), or not at all
    (`hidden`).
    """

    format: str = "text"
    level: str = "info"
    over_progress: bool = False
    keys: str = "shown"


@dataclass(frozen=True, slots=True)
class MemberTask:
    """The task of one member, which is the supervisor's first message to it. `config` can hold secrets.

    `suspects` are records that were running in members that died. `last_crash` is the error that ended this member's
    previous process. `is_probed` is True if the member must send its metrics and its health regularly.
    """

    worker: str
    index: int
    config: dict[str, Any] = field(repr=False)
    max_concurrency: int | None
    drain_timeout: float
    logs: LogStyle
    suspects: list[Suspect] = field(default_factory=list)
    last_crash: str = ""
    is_probed: bool = False


class Order(Enum):
    """How a member should end. A closed socket means `DRAIN`, because the supervisor has died."""

    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Warn:
    """Reports more records that were running when a member died.

    Each member gets this message, because it can be assigned the partition of such a record.
    """

    suspects: list[Suspect]


@dataclass(frozen=True, slots=True)
class MemberReport:
    """The progress of a member.

    `mistake` is the reason why the member must not be restarted, and `crash` is the error that ended it.
    """

    handled: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    mistake: str = ""
    crash: str = ""


class MemberSamples(msgspec.Struct, array_like=True, frozen=True):
    """The samples and the health of a member, which the supervisor joins with those of the others."""

    samples: list[Sample]
    health: Health = Health()


LONGEST_LINE = 16 * 2**20
"""The longest line that a member may send, in bytes."""


def to_line(message: MemberTask | Order | Warn | MemberReport | MemberSamples) -> bytes:
    """Encode a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def from_line(line: bytes, kind: type[T]) -> T:
    """Decode a message from its line."""
    return msgspec.json.decode(line, type=kind)


def report_from_line(line: bytes) -> MemberReport | MemberSamples:
    """Decode a message that a member sent."""
    report: MemberReport | MemberSamples = msgspec.json.decode(line, type=MemberReport | MemberSamples)
    return report


def order_from_line(line: bytes) -> Order | Warn:
    """Decode a message that the supervisor sent after the job."""
    order: Order | Warn = msgspec.json.decode(line, type=Order | Warn)
    return order

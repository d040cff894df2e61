"""Handlers that raise what nobody sane would, as their record's value says; processes can import them."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import BatchError, ConsumerRecord, Context, FatalError, ProducerRecord, RetriableError


@dataclass(frozen=True)
class FrozenError(Exception):
    """It cannot be assigned to."""

    text: str = "frozen"


class ClosedError(Exception):
    """It refuses to be assigned to, by a way of its own."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(name)


def _raising(name: str, error: BaseException) -> type[Exception]:
    """A class one of whose attributes raises."""

    def ask(self: object) -> Any:
        raise error

    return type(f"Odd{name.strip('_').title()}Error", (RetriableError,), {"__init__": _nothing, name: property(ask)})


def _nothing(self: object) -> None: ...


class TextError(Exception):
    """It cannot say what it is."""

    def __str__(self) -> str:
        raise SystemExit("str")

    __repr__ = __str__


class LongError(Exception):
    """It says too much."""

    def __str__(self) -> str:
        return "long" * 1_000_000


class PickleError(FatalError):
    """It ends who sends it elsewhere."""

    def __reduce__(self) -> Any:
        raise SystemExit("reduce")


class ArrivesAsTextError(Exception):
    """It goes to another process as an exception, and arrives there as text."""

    def __reduce__(self) -> Any:
        return str, ("text",)


class _Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise SystemExit("name")
        return super().__getattribute__(name)


def _nameless() -> Any:
    # Not a name of the module, as who collects tests asks those for theirs.
    return _Meta("NamelessError", (FatalError,), {})()


class OddNumber(float):
    """It ends who compares it, adds to it or says it."""

    def _raise(self, *_: object) -> Any:
        raise SystemExit("number")

    __add__ = __radd__ = __lt__ = __le__ = __float__ = __repr__ = __str__ = _raise


def _caused_by_itself() -> Exception:
    error = ValueError("circle")
    error.__cause__ = error
    return error


ODD: dict[str, Any] = {
    "frozen": FrozenError,
    "closed": ClosedError,
    "text": TextError,
    "long": LongError,
    "pickle": PickleError,
    "arrives": ArrivesAsTextError,
    "nameless": _nameless,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "circle": _caused_by_itself,
    "members": lambda: ExceptionGroup("group", [FrozenError(), ClosedError()]),
} | {
    name: _raising(name, SystemExit(name))
    for name in ("__cause__", "__context__", "__traceback__", "__class__", "retry_after", "untried", "args")
}


def handle(record: ConsumerRecord, context: Context) -> None:
    """Fail as the record says."""
    if (value := (record.raw_value or b"").decode()) in ODD:
        raise ODD[value]()


async def handle_async(record: ConsumerRecord, context: Context) -> None:
    """The same in a loop."""
    await asyncio.sleep(0)
    handle(record, context)


def handle_batch(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
    """The same for those of a batch."""
    failures: dict[int, Any] = {}
    for index, record in enumerate(records):
        if (value := (record.raw_value or b"").decode()) in ODD:
            failures[index] = ODD[value]()
    if failures:
        raise BatchError(failures)


NO_ERRORS: dict[str, Any] = {
    "none": None,
    "text": "it is broken",
    "class": FatalError,
    "needy": UnicodeDecodeError,  # which cannot be made without arguments
    "number": 7,
}


def handle_batch_without_errors(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
    """Say of the records that are none of the good ones that they failed, by what is no exception."""
    values = [(record.raw_value or b"").decode() for record in records]
    if failures := {index: NO_ERRORS[value] for index, value in enumerate(values) if value in NO_ERRORS}:
        raise BatchError(failures)


class UnnamedFailuresError(BatchError):
    """Its failures are none."""

    def __init__(self, failures: object) -> None:
        self.failures = failures  # type: ignore[assignment]


def handle_batch_with_nonsense(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
    """Raise a batch error put together in a way of its own."""
    for record in records:
        if record.raw_value == b"nonsense":
            raise UnnamedFailuresError([None, {7: 1}, {0.5: ValueError()}, {-1: ValueError()}][record.offset % 4])


GOES_ON = "HEADWAY_TEST_GOES_ON"


def fail_at_some(record: ConsumerRecord, context: Context) -> None:
    """Fail at the first record of a partition, and as if by chance at a quarter, until the file `GOES_ON` is there."""
    if record.offset * 2_654_435_761 % 2**32 < 2**30 and not Path(os.environ[GOES_ON]).exists():
        raise RetriableError("not yet", untried=True)


async def fail_at_some_async(record: ConsumerRecord, context: Context) -> None:
    """The same in a loop."""
    fail_at_some(record, context)


def copy_all_but_some(record: ConsumerRecord, context: Context) -> ProducerRecord:
    """The same, and the record comes out again."""
    fail_at_some(record, context)
    return ProducerRecord(f"{record.topic}-out", record.value)

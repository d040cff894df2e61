"""Handlers that processes can import: each does what its record's value says, and notes it in the file `NOTES`."""

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway import BatchError, ConsumerRecord, Context, FatalError, ProducerRecord

NOTES = "HEADWAY_TEST_NOTES"


class Call(NamedTuple):
    """What a handler noted as it began."""

    process: int
    partition: int
    offset: int
    level: int
    key: str
    value: str
    attempt: int
    last_error: str
    at: float


class UnpicklableError(Exception):
    """It holds what cannot go to another process."""

    def __init__(self, text: str, *, needed: object) -> None:
        super().__init__(text)
        self.lock = needed


def calls(path: Path) -> list[Call]:
    """All notes up to now, in the order in which the handlers began."""
    whole, _, _ = path.read_text().rpartition("\n")  # a process may be amid a line
    lines = [line.split("\t") for line in whole.splitlines()]
    return [
        Call(int(process), int(partition), int(offset), int(level), key, value, int(attempt), error, float(at))
        for process, partition, offset, level, key, value, attempt, error, at in lines
    ]


def note(record: ConsumerRecord, context: Context) -> None:
    """Only note."""
    call = Call(
        os.getpid(),
        record.partition,
        record.offset,
        context.level,
        (record.raw_key or b"").decode(),
        (record.raw_value or b"").decode(),
        context.attempt,
        repr(context.last_error),
        time.monotonic(),
    )
    with Path(os.environ[NOTES]).open("a") as file:
        file.write("\t".join(map(str, call)) + "\n")


_alone = [True]


def note_beside_another(record: ConsumerRecord, context: Context) -> None:
    """Note, and at the process's first record wait until another process has, too."""
    note(record, context)
    while _alone and len({call.process for call in calls(Path(os.environ[NOTES]))}) < 2:
        time.sleep(0.01)
    _alone.clear()


def act(record: ConsumerRecord, context: Context) -> str:
    """Do what the value says, at the first attempt."""
    note(record, context)
    verb, _, argument = record.value.decode().partition(" ")
    if context.attempt == 1:
        _ACTIONS[verb](argument)
    return f"{verb} done at {context.attempt}"


def act_always(record: ConsumerRecord, context: Context) -> None:
    """Do what the value says, at each attempt."""
    note(record, context)
    _ACTIONS[record.value.decode()]("")


def act_always_in_batches(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
    """The same for batches."""
    for record, context in zip(records, contexts, strict=True):
        act_always(record, context)


async def act_async(record: ConsumerRecord, context: Context) -> None:
    """As `act`, as far as a coroutine can."""
    note(record, context)
    verb, _, argument = record.value.decode().partition(" ")
    if verb == "sleep":
        await asyncio.sleep(float(argument))
    while verb == "await" and not Path(argument).exists():
        await asyncio.sleep(0.01)


def _exit(argument: str) -> None:
    os._exit(int(argument))


def _kill(argument: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(argument: str) -> None:
    raise ValueError(argument)


def _fail_for_good(argument: str) -> None:
    raise FatalError(argument)


def _fail_unpicklably(argument: str) -> None:
    raise UnpicklableError(argument, needed=open)


def _leave(argument: str) -> None:
    raise SystemExit(argument)


def _sleep(argument: str) -> None:
    time.sleep(float(argument))


def _await(argument: str) -> None:
    while not Path(argument).exists():
        time.sleep(0.01)


def _fork(gate: str) -> None:
    if os.fork() == 0:
        open(gate).close()  # which waits
        os._exit(0)
    _kill("")


def _fork_unseen(gate: str) -> None:
    if ctypes.PyDLL(None).fork() == 0:  # as C code forks: Python does not know of it
        open(gate).close()
        os._exit(0)
    _kill("")


def _fork_and_return(argument: str) -> None:
    if child := os.fork():
        os.waitpid(child, 0)


_ACTIONS: dict[str, Callable[[str], None]] = {
    "await": _await,
    "exit": _exit,
    "kill": _kill,
    "poison": _kill,
    "fork": _fork,
    "fork_unseen": _fork_unseen,
    "fork_and_return": _fork_and_return,
    "fail": _fail,
    "fatal": _fail_for_good,
    "unpicklable": _fail_unpicklably,
    "leave": _leave,
    "sleep": _sleep,
    "nothing": lambda argument: None,
}


def doubled(record: ConsumerRecord, context: Context) -> ProducerRecord:
    """An output for each record."""
    return ProducerRecord(os.environ["HEADWAY_TEST_TOPIC"], record.value * 2, record.key)


def value(record: ConsumerRecord, context: Context) -> Any:
    """The value as it came."""
    return record.value


def stand_still_once(record: ConsumerRecord, context: Context) -> None:
    """Stand still at the first attempt where the value begins so."""
    if record.value.startswith(b"stand still") and context.attempt == 1:
        time.sleep(300)


def give_a_lambda(record: ConsumerRecord, context: Context) -> Any:
    """What cannot be sent back, at the first attempt."""
    return (lambda: 1) if context.attempt == 1 else "sent"


def value_and_process(record: ConsumerRecord, context: Context) -> tuple[Any, int]:
    """The value as it was read, and where."""
    return record.value, os.getpid()


def number_and_process(raw: bytes) -> tuple[int, int]:
    """A deserialiser that tells where it ran."""
    return int(raw), os.getpid()


def note_batch(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
    """Note each; those that are to fail do, at the first attempt."""
    for record, context in zip(records, contexts, strict=True):
        note(record, context)
    failures: dict[int, BaseException] = {
        index: UnpicklableError("no", needed=open)
        for index, (record, context) in enumerate(zip(records, contexts, strict=True))
        if record.value == b"fail" and context.attempt == 1
    }
    if failures:
        raise BatchError(failures)


def end_a_child(record: ConsumerRecord, context: Context) -> int:
    """How a process ends that the handler has started and ends."""
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    try:
        return child.wait(5)
    finally:
        child.kill()


def doubled_batch(records: Sequence[ConsumerRecord]) -> Iterator[ProducerRecord]:
    """An output for each record of a batch."""
    for record in records:
        yield ProducerRecord(os.environ["HEADWAY_TEST_TOPIC"], record.value * 2, record.key)


def sum_of_batch(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> int:
    """A result of a whole batch."""
    return sum(int(record.value) for record in records)


def fail(record: ConsumerRecord, context: Context) -> None:
    """Fail at each attempt, without a note."""
    raise ValueError("It fails.")

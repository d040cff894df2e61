"""The handlers of random walks, which processes can import, too: each does what its record's value says.

A value is text: the record's number and what becomes of its attempts, one word each, the last for all further ones.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headway import BatchError, ConsumerRecord, Context, FatalError, ProducerRecord, RetriableError

LONGEST_HANG = 1.0  # seconds, if nobody releases it
_LOOK_EVERY = 0.01
_FAILS = {"fails", "retriable", "fatal"}


class Note(NamedTuple):
    """What a handler wrote as an attempt began, or as it succeeded."""

    kind: str
    number: int
    attempt: int
    partition: int
    offset: int
    level: int
    at: float

    @property
    def is_end(self) -> bool:
        """True if the attempt succeeded."""
        return self.kind == "done"


class Plan:
    """What a handler does; it can be sent to another process."""

    def __init__(self, folder: Path, outputs: str | None) -> None:
        self.folder = folder
        self._outputs = outputs

    def notes(self) -> list[Note]:
        """All notes, in the order in which they were written."""
        path = self.folder / "notes"
        if not path.exists():
            return []
        whole, _, _ = path.read_text().rpartition("\n")  # a process may be writing
        return [Note(*json.loads(line)) for line in whole.splitlines()]

    def let_go(self, until: float | None = None) -> None:
        """End what hangs now, or has begun until a time."""
        (self.folder / "released.new").write_text(repr(time.time() if until is None else until))
        (self.folder / "released.new").replace(self.folder / "released")

    def _note(self, kind: str, record: ConsumerRecord, context: Context) -> None:
        number, _ = _read(record)
        place = record.partition, record.offset, record.level
        line = json.dumps([kind, number, context.attempt, *place, time.time()])
        file = os.open(self.folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{line}\n".encode())  # whole, also beside other processes
        finally:
            os.close(file)

    def _waits(self, word: str) -> Iterator[float]:
        if word != "hangs":
            return
        began, released = time.time(), self.folder / "released"
        while time.time() < began + LONGEST_HANG:
            if released.exists() and float(released.read_text()) >= began:
                return
            yield _LOOK_EVERY

    def _begin(self, record: ConsumerRecord, context: Context) -> str:
        self._note("began", record, context)
        _, words = _read(record)
        return words[min(context.attempt, len(words)) - 1]

    def _end(self, word: str, record: ConsumerRecord, context: Context) -> ProducerRecord | None:
        if word == "fails":
            raise OSError("as planned")
        if word == "retriable":
            raise RetriableError("as planned", retry_after=0.05)
        if word == "fatal":
            raise FatalError("as planned")
        self._note("done", record, context)
        return ProducerRecord(self._outputs, str(_read(record)[0]), record.raw_key) if self._outputs else None

    def handle(self, record: ConsumerRecord, context: Context) -> ProducerRecord | None:
        """Handle a record on a thread, or in a process."""
        word = self._begin(record, context)
        for seconds in self._waits(word):
            time.sleep(seconds)
        return self._end(word, record, context)

    async def handle_in_loop(self, record: ConsumerRecord, context: Context) -> ProducerRecord | None:
        """Handle a record on an event loop."""
        word = self._begin(record, context)
        for seconds in self._waits(word):
            await asyncio.sleep(seconds)
        return self._end(word, record, context)

    def handle_batch(self, records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> list[ProducerRecord]:
        """Handle a batch on a thread, or in a process."""
        together = list(zip(records, contexts, strict=True))
        words = [self._begin(*each) for each in together]
        for word in words:
            for seconds in self._waits(word):
                time.sleep(seconds)
        failed = [index for index, word in enumerate(words) if word in _FAILS]
        # What is behind a failure waits for it; and what is named by nobody would be done without its outputs.
        first = 0 if failed and self._outputs else min(failed, default=len(words))
        outputs = [self._end(*each) for each in zip(words[:first], records[:first], contexts[:first], strict=True)]
        failures: dict[int, Exception] = {}
        for index in range(first, len(words)):
            try:
                if index not in failed:
                    raise RetriableError("with others", retry_after=0, untried=True)
                self._end(words[index], records[index], contexts[index])
            except Exception as error:
                failures[index] = error
        if failures:
            raise BatchError(failures)
        return [output for output in outputs if output]


def _read(record: ConsumerRecord) -> tuple[int, list[str]]:
    number, *words = str(bytes(record.value), "ascii").split()
    return int(number), words

"""A member of a parallel group in a process of its own, which can be stopped, killed and measured.

Its one argument is a JSON object: the `config` and the `options` of its consumer, the `topic`, the `notes`, a file for
what it handles, how many seconds (`pause`) a record takes, and after how many (`print_every`) it prints how many
they are and the most memory that it has had, in bytes.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

import psutil

from headway import ConsumerRecord, Context, ParallelConsumer

MEASURE_EVERY = 500  # records


class Member:
    """Notes when each record's handler starts and ends; one whose value is `stuck` never does."""

    def __init__(self, notes: str, pause: float, print_every: int) -> None:
        self._notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._pause = pause
        self._print_every = print_every
        self._ended = 0
        self._most = 0

    async def handle(self, record: ConsumerRecord, context: Context) -> None:
        """One record."""
        self._note("started", record)
        if record.value == b"stuck":
            await asyncio.Event().wait()
        await asyncio.sleep(self._pause)
        self._note("ended", record)
        self._ended += 1
        if self._ended % MEASURE_EVERY == 0:
            self._measure()

    def _measure(self) -> None:
        # Not `ru_maxrss`, which on Linux begins with what the process had that started this one.
        self._most = max(self._most, psutil.Process().memory_info().rss)
        if self._ended % self._print_every == 0:
            print(self._ended, self._most, flush=True)

    def _note(self, what: str, record: ConsumerRecord) -> None:
        # One call for a whole line, at the end: so the lines of all members are in the order in which things happened.
        line = f"{os.getpid()} {what} {record.partition} {record.offset} {record.key.decode()}\n"
        os.write(self._notes, line.encode())


def main(asked: dict[str, Any]) -> None:
    """Handle records until a SIGTERM."""
    member = Member(asked["notes"], asked["pause"], asked["print_every"])
    with ParallelConsumer(asked["config"], **asked["options"]) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.subscribe(asked["topic"])
        consumer.run(member.handle)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

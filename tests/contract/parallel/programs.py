"""Starting `process_program.py`, and listening to it."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.contract.parallel.members import wait_for


class Program:
    """A running program and what it says."""

    def __init__(self, asked: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.contract.parallel.process_program", json.dumps(asked)]
        self.popen = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
        )
        self.lines: list[str] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=_read, args=(self.popen.stdout, self.lines)),
            threading.Thread(target=_read, args=(self.popen.stderr, self._errors)),
        ]
        for reader in self._readers:
            reader.start()

    def wait_until(self, done: int, running: int) -> None:
        """Until so many records count as done and so many run."""
        wait_for(lambda: f"{done} {running}" in self.lines or self.popen.poll() is not None)
        assert f"{done} {running}" in self.lines, self._errors

    def ended(self, timeout: float = 20) -> tuple[int, str]:
        """Its exit code and what it wrote to stderr, when it has ended."""
        code = self.popen.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return code, "\n".join(self._errors)


def _read(pipe: IO[str], lines: list[str]) -> None:
    with pipe:
        hear = lines.append
        for line in pipe:
            hear(line.rstrip())


@contextmanager
def program(
    config: dict[str, Any], options: dict[str, Any], topic: str, handler: str, **more: Any
) -> Iterator[Program]:
    """Start one, which is killed in the end."""
    started = Program({"config": config, "options": options, "topic": topic, "handler": handler} | more)
    try:
        yield started
    finally:
        started.popen.kill()
        started.ended()

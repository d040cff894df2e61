"""Four jobs whose calls share what a lifespan makes in each Python worker: MASTER FILE, which is told of each event."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from headway import Context
from headway.spark import InputRow, local_session, parallel_map


def main() -> None:
    """Run the jobs, wait for a line, and leave: by the end of the session, or by a kill from outside."""
    session = local_session("headway tests", master=sys.argv[1], short_lived=True)
    file = Path(sys.argv[2])

    def say(what: str) -> None:
        with file.open("a") as lines:
            lines.write(f"{what} {os.getpid()}\n")

    @contextmanager
    def plain() -> Iterator[str]:
        say("start plain")
        try:
            yield f"plain {os.getpid()}"
        finally:
            say("end plain")

    @asynccontextmanager
    async def waiting() -> AsyncIterator[str]:
        say("start waiting")
        try:
            yield f"waiting {os.getpid()}"
        finally:
            await asyncio.sleep(0.3)
            say("end waiting")

    def state_of(row: InputRow, context: Context) -> str:
        assert context.state == f"plain {os.getpid()}"
        return str(context.state)

    async def state_on_loop(row: InputRow, context: Context) -> str:
        assert context.state == f"waiting {os.getpid()}"
        return str(context.state)

    rows = session.range(0, 100, 1, 2)
    on_threads = parallel_map(rows, state_of, "string", key=None, lifespan=plain)
    on_a_loop = parallel_map(rows, state_on_loop, "string", key=None, lifespan=waiting)
    for frame in [on_threads, on_a_loop] * 3:
        assert {row.outcome for row in frame.collect()} == {"ok"}
    say("done")
    sys.stdin.readline()
    session.stop()


if __name__ == "__main__":
    main()

"""A relay of an outbox that kills itself at one step of its work: database, servers, name and the step.

It dies "before" or "after" a call, or "within" the commit.
"""

import os
import signal
import sys
import threading
from typing import Any

from sqlalchemy import create_engine

from headway import Producer
from headway.contrib.outbox import OutboxRelay

CALLS: dict[str, tuple[type, str]] = {
    "fence": (Producer, "init_transactions"),
    "send": (Producer, "send"),
    "commit": (Producer, "commit_transaction"),
    "delete": (OutboxRelay, "_delete"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(step: str) -> None:
    """Stand between the relay and its clients. The first delete is that of what an earlier relay has sent."""
    when, _, name = step.partition(" ")
    kind, method = CALLS[name]
    call = getattr(kind, method)

    def watched(self: Any, *args: Any, **named: Any) -> Any:
        if when == "before":
            die()
        if when == "within":
            threading.Timer(0.001, die).start()
        result = call(self, *args, **named)
        if when == "after":
            die()
        return result

    setattr(kind, method, watched)


if __name__ == "__main__":
    url, servers, outbox, at = sys.argv[1:]
    die_at(at)
    OutboxRelay(create_engine(url), {"bootstrap.servers": servers, "linger.ms": 0}, name=outbox).run()

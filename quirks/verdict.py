"""What a quirk returns, and what it does around a call that may end or block its process."""

import faulthandler
import json
import os
import signal
import sys
from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether the fault is still there, and what was seen."""

    is_there: bool
    seen: str


class NotShownError(Exception):
    """The quirk could not decide; its text says why."""


def at_risk(what_happens: str, within: int = 10) -> None:
    """Announce that the next call may kill or block the process, which counts as the fault.

    A call that takes longer than `within` seconds is ended by SIGALRM with the system's own handler, since a call that
    holds the GIL leaves Python no chance to run one.
    """
    faulthandler.disable()
    print(json.dumps({"at_risk": what_happens}), flush=True)
    signal.alarm(within)


def survived() -> None:
    """Take back `at_risk`."""
    signal.alarm(0)


def kafka() -> str:
    """Return the address of the real Kafka that the runner has started."""
    try:
        return os.environ["QUIRKS_KAFKA"]
    except KeyError:
        raise NotShownError("no Kafka could be started here") from None


def report(verdict: Verdict) -> None:
    """Print the verdict for the runner."""
    print(json.dumps({"is_there": verdict.is_there, "seen": verdict.seen}), flush=True)
    sys.stdout.flush()

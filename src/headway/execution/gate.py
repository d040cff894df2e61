"""The base class of gates: optional features that can hold back works, or that watch them start and end.

Examples are a rate limit, the circuit breaker and expiry. The dispatch asks only the gates that exist, so a feature
that is not in use costs a record nothing. `docs/design/engine.md` has the steps to add a gate.
"""

from collections.abc import Mapping
from typing import Any

from headway.core.retry import Verdict
from headway.execution.jobs import Job, RecordWork


class Gate:
    """A gate that lets everything through.

    All methods but `log` are called with the dispatch's lock. They must be quick and must not call users' code.
    `running` is the number of jobs that have a slot.
    """

    # Before a start

    def slots(self, slots: int) -> int:
        """Return how many of these slots can be used, including the taken ones."""
        return slots

    def may_start(self, running: int, now: float) -> bool:
        """Return whether another job can start now."""
        return True

    def opens_at(self) -> float | None:
        """Return when time alone makes `may_start` true: -inf if it is true, None if only an event can change it."""
        return -float("inf")

    def batch_size(self, size: int) -> int:
        """Return the maximum number of works of the next job, at most `size`."""
        return size

    def changes_wait(self, now: float) -> bool:
        """Return whether the control thread must compute its wait again. Called after each attempt to take a job."""
        return False

    def admit(self, job: Job, now: float) -> Job:
        """Return the works of a job that can start.

        A work that is left out returns to its lane. If the gate has set its `outcome`, it ends with that instead.
        """
        return job

    # From its start to its end

    def started(self, job: Job, running: int, now: float) -> bool:
        """Record that a job has taken a slot. Return True to keep it back until `kept_back` returns it."""
        return False

    def kept_back(self, running: int) -> Job | None:
        """Return a job that was kept back and must start now, before any other. None if there is no such job."""
        return None

    def timed_out(self, now: float, *, ending: bool) -> tuple[RecordWork, float] | None:
        """Return a work that was kept back for too long, and the time at which it can be taken again."""
        return None

    def judged(self, work: RecordWork, error: BaseException, verdict: Verdict, now: float) -> Verdict:
        """Record that an attempt failed. Return the verdict on it, or another one."""
        return verdict

    def done(self, work: RecordWork, now: float) -> bool:
        """Record that a record is done or was stored elsewhere. Return whether to wake the control thread."""
        return False

    def put_back(self, work: RecordWork) -> None:
        """Record that a work had a slot, but its handler was not called. It will start again as if it were new."""

    def ended(self, work: RecordWork, running: int, now: float) -> bool:
        """Record that a work has left its slot. Return whether to wake the control thread."""
        return False

    # Observations

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Log what has happened since the last call. Called often, and once at the end of the run."""

    def metrics(self) -> Mapping[str, Any]:
        """Return the fields of `ParallelMetrics` that this gate provides."""
        return {}

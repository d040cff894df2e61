"""The questions that a dispatch asks of its gates, with the answers of a gate that does nothing.

A gate is an optional feature that has a say in which works start, or that watches them start and end: a rate, the
circuit breaker, expiry. The dispatch asks only the gates that exist, so a feature that is not in use costs a record
nothing. `docs/design/engine.md` has the steps to add one.
"""

from collections.abc import Mapping
from typing import Any

from headway.core.retry import Verdict
from headway.execution.jobs import Job, RecordWork


class Gate:
    """A gate that lets everything through.

    All but `log` and `metrics` are called with the dispatch's lock: they must be quick, and call no user's code.
    `running` is the number of jobs that have a slot, the one in question included once it has one.
    """

    # Before a start

    def slots(self, slots: int) -> int:
        """Return how many of these slots may be used, taken ones included."""
        return slots

    def may_start(self, running: int, now: float) -> bool:
        """Return whether another job may start now."""
        return True

    def opens_at(self) -> float | None:
        """Return when `may_start` may become true by time alone: -inf if it is, None if only an event can help."""
        return -float("inf")

    def batch_size(self, size: int) -> int:
        """Return how many works the next job may have at most, up to this size."""
        return size

    def changes_wait(self, now: float) -> bool:
        """Return whether the control thread must look again for how long to wait; asked after each look for a job."""
        return False

    def admit(self, job: Job, now: float) -> Job:
        """Return the works of a job that may start.

        A work that is left out goes back to its lane; if the gate has given it an `outcome`, it ends with that instead.
        """
        return job

    # From its start to its end

    def started(self, job: Job, running: int, now: float) -> bool:
        """Note that a job has got a slot. Return True to keep it back, to be started by `kept_back` later."""
        return False

    def kept_back(self, running: int) -> Job | None:
        """Return a job that was kept back and starts now, before any other; None if there is none."""
        return None

    def timed_out(self, now: float, *, ending: bool) -> tuple[RecordWork, float] | None:
        """Return a work that was kept back for too long, and the time before which it must not run again."""
        return None

    def judged(self, work: RecordWork, error: BaseException, verdict: Verdict, now: float) -> Verdict:
        """Note that an attempt failed; return the verdict, or another one."""
        return verdict

    def done(self, work: RecordWork, now: float) -> bool:
        """Note that a record is done, or stored elsewhere; return whether the control thread must act on it."""
        return False

    def put_back(self, work: RecordWork) -> None:
        """Note that a work which had a slot has not begun; it will start again as if it had not been taken."""

    def ended(self, work: RecordWork, running: int, now: float) -> bool:
        """Note that a work has left its slot; return whether the control thread must act on it, as others may start."""
        return False

    # Without the lock

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Log what has happened since the last call; called now and then, and once as the run ends."""

    def metrics(self) -> Mapping[str, Any]:
        """Return the fields of `ParallelMetrics` that this gate knows."""
        return {}

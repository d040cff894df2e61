"""The base class of gates: optional features that can hold back attempts, or that observe how attempts start and end.

Examples are a rate limit, the circuit breaker and expiry. The dispatch calls only the gates that were passed to it, so
a feature that is not in use costs no time. `docs/design/engine.md` lists the steps to add a gate.
"""

from collections.abc import Mapping
from typing import Any

from headway.core.retry import Verdict
from headway.execution.jobs import Job, RecordAttempt


class Gate:
    """A gate that lets every attempt start. Subclasses override the methods that they need.

    The dispatch holds its lock while it calls these methods, except `log`. So they must be quick, and must not call the
    user's code. The parameter `running` is the number of jobs that have a slot.
    """

    # Before a start

    def slots(self, slots: int) -> int:
        """Return how many of these slots can be used in total, including the slots that are already taken."""
        return slots

    def may_start(self, running: int, now: float) -> bool:
        """Return whether another job can start now."""
        return True

    def opens_at(self) -> float | None:
        """Return the time at which `may_start` will return True.

        Returns -inf if a job can start now, and None if no job can start until some event occurs.
        """
        return -float("inf")

    def batch_size(self, size: int) -> int:
        """Return how many records the next job can have. The result is at most `size`."""
        return size

    def changes_wait(self, now: float) -> bool:
        """Return whether the control thread must recompute how long to wait.

        Called each time the dispatch takes a job.
        """
        return False

    def admit(self, job: Job, now: float) -> Job:
        """Return the attempts of a job that can start.

        An attempt that is not in the result returns to its lane, unless the gate has set `outcome` on it. In that case
        the attempt ends with that outcome.
        """
        return job

    # From the start of a job to its end

    def started(self, job: Job, running: int, now: float) -> bool:
        """Record that a job has taken a slot. Return True to hold the job back until `kept_back` returns it."""
        return False

    def kept_back(self, running: int) -> Job | None:
        """Return a held-back job that must start now, before any other job, or None if there is no such job."""
        return None

    def timed_out(self, now: float, *, ending: bool) -> tuple[RecordAttempt, float] | None:
        """Return an attempt that was held back for too long, with the time at which it can start again, or None."""
        return None

    def judged(self, attempt: RecordAttempt, error: BaseException, verdict: Verdict, now: float) -> Verdict:
        """Record that an attempt failed with this verdict. Return this verdict, or a different one that replaces it."""
        return verdict

    def done(self, attempt: RecordAttempt, now: float) -> bool:
        """Record that a record is done, or was stored as a dead letter or schedule.

        Return whether to wake the control thread.
        """
        return False

    def put_back(self, attempt: RecordAttempt) -> None:
        """Record that the handler was not called for an attempt that had a slot.

        The attempt will start again as if it were new.
        """

    def ended(self, attempt: RecordAttempt, running: int, now: float) -> bool:
        """Record that an attempt has left its slot. Return whether to wake the control thread."""
        return False

    # Observations

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Log what has happened since the last call.

        The dispatch calls this often, and once more at the end of the run.
        """

    def metrics(self) -> Mapping[str, Any]:
        """Return the fields of `ParallelMetrics` that this gate provides."""
        return {}

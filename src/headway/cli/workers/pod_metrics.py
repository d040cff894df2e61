"""Joins the metrics and the health of all members into those of one process, for the probes of `headway worker`."""

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol

from headway.cli.workers.messages import MemberSamples
from headway.metrics import table
from headway.metrics.health import Health
from headway.metrics.samples import Sample, merge, totals

# A member sends its metrics every 2 seconds. One that has sent nothing for this long has hung up as a whole.
_SILENT_AFTER = 60.0


class ProbedMember(Protocol):
    """A running member."""

    metrics: MemberSamples
    heard_at: float

    @property
    def name(self) -> str:
        """The name of the member."""
        ...

    @property
    def worker(self) -> str:
        """The name of its worker."""
        ...


class PodMetrics:
    """The metrics and the health of all members, which the threads of the probes read.

    Invariant: the totals of members that have ended stay part of the sums, so that counters never go back.

    Args:
        living: A function that returns the running members.
        count: How many members there must be.
    """

    def __init__(self, living: Callable[[], Collection[ProbedMember]], count: int) -> None:
        self._living = living
        self._count = count
        self._totals: list[Sample] = []
        self._deaths: Counter[str] = Counter()
        self.is_ending = False

    def ended(self, member: ProbedMember, *, died: bool) -> None:
        """Keep the totals of a member that has ended."""
        self._totals = merge([self._totals, totals(member.metrics.samples)])
        self._deaths[member.worker] += died

    def samples(self) -> list[Sample]:
        """Return the samples of all members, added up, and those of the supervisor."""
        living = list(self._living())
        processes = Counter(member.worker for member in living)
        own = [Sample.of(table.WORKER_PROCESSES, count, worker) for worker, count in processes.items()]
        own += [Sample.of(table.WORKER_DEATHS, self._deaths[worker], worker) for worker in processes | self._deaths]
        return merge([self._totals, *(member.metrics.samples for member in living), own])

    def health(self) -> Health:
        """Return the health of the pod: it is alive, or ready, if all members are."""
        now = time.monotonic()
        living = sorted(self._living(), key=lambda member: member.name)
        not_live, not_ready = list[str](), list[str]()
        for member in living:
            silent = now - member.heard_at
            if silent > _SILENT_AFTER and not self.is_ending:
                not_live.append(f"{member.name}: It has sent nothing for {silent:.0f} s.")
            not_live += [f"{member.name}: {reason}" for reason in member.metrics.health.not_live]
            not_ready += [f"{member.name}: {reason}" for reason in member.metrics.health.not_ready]
        if self.is_ending:
            not_ready.append("The command is stopping.")
        elif len(living) < self._count:
            not_ready.append(f"{self._count - len(living)} of {self._count} processes are not running now.")
        return Health(tuple(not_live), tuple(not_ready))

"""The records that waited for too long between the fetch and their first attempt: counted, and told in sums.

Invariant: of each topic at most one line in ten seconds is told, and it has all records since the line before.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from headway.execution.jobs import Job, RecordWork
from headway.records.record_types import TopicPartition

log = logging.getLogger(__name__)

_TELL_EVERY = 10.0  # seconds


@dataclass(slots=True)
class _Topic:
    """The records of one topic since the last line."""

    tell_at: float
    count: int = 0
    longest: float = 0.0


class QueueTimes:
    """The counter of records that waited longer than `limit` seconds; its owner lets one thread at a time in."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.late = 0
        """The number of records that waited for too long, since the start."""
        self._topics: dict[str, _Topic] = {}
        self._tell_at: float | None = None  # None while there is nothing to tell
        self._begun = set[tuple[TopicPartition, int]]()  # put back after they were noted

    def note(self, job: Job, now: float) -> None:
        """Note that a job starts: later attempts waited for their back-off, and do not count."""
        for work in job:
            waited = now - work.arrived
            if waited > self._limit and work.failure is None and not self._was_noted(work):
                self.late += 1
                name = work.assignment.partition.topic
                about = self._topics.get(name)
                if about is None:
                    about = self._topics[name] = _Topic(now)
                about.count += 1
                about.longest = max(about.longest, waited)
                self._tell_at = about.tell_at if self._tell_at is None else min(about.tell_at, self._tell_at)

    def put_back(self, work: RecordWork) -> None:
        """Note that a work which had got a slot has not begun after all: its next start is not its first."""
        if work.failure is None:
            self._begun.add((work.partition, work.offset))

    def _was_noted(self, work: RecordWork) -> bool:
        if not self._begun or (work.partition, work.offset) not in self._begun:
            return False
        self._begun.discard((work.partition, work.offset))
        return True

    def is_due(self, now: float) -> bool:
        """Return whether there is something to tell."""
        return self._tell_at is not None and now >= self._tell_at

    def take(self, now: float, all_of_them: bool = False) -> Mapping[str, tuple[int, float]]:
        """Return of each topic that is due how many waited since the last time, and the longest wait."""
        found: dict[str, tuple[int, float]] = {}
        for name, about in self._topics.items():
            if about.count and (all_of_them or now >= about.tell_at):
                found[name] = about.count, about.longest
                self._topics[name] = _Topic(now + _TELL_EVERY)
        times = [about.tell_at for about in self._topics.values() if about.count]
        self._tell_at = min(times, default=None)
        return found

    def tell(self, found: Mapping[str, tuple[int, float]]) -> None:
        """Tell the log, without the owner's lock."""
        for topic, (count, longest) in found.items():
            log.warning(
                "%d records of %s waited for more than %g s before they started, the longest for %.3g s. Handlers do "
                "not keep up: let more run at a time (max_concurrency, further members), or make them quicker.",
                count,
                topic,
                self._limit,
                longest,
            )

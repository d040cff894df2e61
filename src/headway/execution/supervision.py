"""The consumer's part in its supervision by another process: a table of running records, and care of suspects.

A suspect is a record that ran in a process that died. Here its attempt fails as it did there, without a call of the
handler, so the retries decide as about any other failure. The suspect's next attempt runs while nothing else does.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from headway.core.engine.partition_states import PartitionState
from headway.core.engine.suspects import MOST_SUSPECTS, Suspect
from headway.errors import BatchError
from headway.execution.jobs import Job, RecordWork
from headway.execution.running_table import RunningTable

PATIENCE = 60.0
"""The seconds that a suspect waits for others to end, and that others wait for it. Handlers may take for ever."""

_Address = tuple[str, int, int]


class Supervision:
    """A table of the running records, and the suspects among those that come.

    `suspect` may be called from any thread. `fail_as_before` is for the executor, and all else for the dispatch, with
    its lock.
    """

    def __init__(self, table: RunningTable, suspects: Iterable[Suspect], request_commit: Callable[[], None]) -> None:
        self._table = table
        self._request_commit = request_commit
        self._suspects: dict[_Address, Suspect] = {}
        self._condemned: set[_Address] = set()
        self.alone: RecordWork | None = None
        """The suspect that runs while nothing else may start, or that waits to."""
        self._is_waiting = False
        self._since = 0.0
        self.suspect(suspects)

    def suspect(self, suspects: Iterable[Suspect]) -> None:
        """Take care of these suspects from now on."""
        for suspect in suspects:
            record = suspect.record
            self._suspects[record.topic, record.partition, record.offset] = suspect
        for address in list(self._suspects)[:-MOST_SUSPECTS]:
            self._suspects.pop(address, None)

    def fail_as_before(self, call: Callable[[Job], Any]) -> Callable[[Job], Any]:
        """Return the same call, which raises for a suspect whose attempt ended with its process how that ended."""

        def supervised(job: Job) -> Any:
            if not self._suspects:
                return call(job)
            failed = {index: error for index, work in enumerate(job) if (error := self._failed_before(work))}
            if len(failed) < len(
                job
            ):  # of a batch that has started before it was known, the others would count as done
                return call(job)
            raise BatchError(failed) if job[1:] else failed[0]

        return supervised

    def _failed_before(self, work: RecordWork) -> BaseException | None:
        if not (suspect := self._find(work)) or not self._has_failed(work, suspect):
            return None
        if work.attempt <= suspect.attempts:
            work.failure = suspect.failure(time.monotonic() - time.time())
        return suspect.error()

    def expect_batches(self, slots: int, max_size: int) -> None:
        """Make room in the table for batches; call it before any record runs."""
        self._table.make_room(max(slots, min(slots * max_size, MOST_SUSPECTS)))

    # For the dispatch

    def set_apart(self, batch: Job) -> tuple[Job, Job]:
        """Return the part of a batch that may go on, and the part that has to wait again.

        Suspects whose attempt has failed before are called for without the others, and one that is to run alone is a
        batch of its own. What is before it in its lane goes first.
        """
        suspects = [(index, work, each) for index, work in enumerate(batch) if (each := self._find(work))]
        if not suspects:
            return batch, ()
        if failed := [work for _, work, suspect in suspects if self._has_failed(work, suspect)]:
            return failed, [work for work in batch if work not in failed]
        end = max(1, suspects[0][0])
        return batch[:end], batch[end:]

    def free(self, running: int) -> int:
        """Return how many jobs may start beside the suspect that is alone, while so many have a slot."""
        return int(self._is_waiting and running == 1)

    def start(self, job: Job, running: int, now: float) -> Job | None:
        """Note a job that has got a slot, as one of `running`; return it if it may start now."""
        work = job[0]
        if self._suspects and (suspect := self._find(work)):
            if self._has_failed(work, suspect):
                return job
            self.alone, self._since, self._is_waiting = work, now, running > 1
            if self._is_waiting:
                return None
        for each in job:
            self._table.enter(each)
        return job

    def start_waiting(self, now: float) -> Job | None:
        """Return the suspect that has waited to run alone, if there is one: it starts now."""
        if self.alone is None or not self._is_waiting:
            return None
        self._since, self._is_waiting = now, False
        self._table.enter(self.alone)
        return [self.alone]

    def end(self, work: RecordWork) -> bool:
        """Note that a work has ended, or gives its slot back; return whether others may start now."""
        self._table.leave(work)
        if work is not self.alone:
            return False
        if not self._is_waiting:  # the suspect has run alone, and the process lives
            self._suspects.pop(_address(work), None)
        self.alone = None
        return True

    def finish(self, work: RecordWork) -> bool:
        """Note that a record is done, or that its dead letter is stored; return whether it was a suspect.

        Its offset must be committed before another record kills the process, or all would happen again.
        """
        if not self._suspects or self._find(work) is None:
            return False
        self._suspects.pop(_address(work), None)
        self._condemned.discard(_address(work))
        self._request_commit()
        return True

    def give_up(self, now: float, ending: bool) -> tuple[RecordWork, float] | None:
        """End the turn of a suspect that has been alone, or has waited for that, for too long.

        Returns the work that must wait again and until when. A suspect that will not start any more does not wait.
        """
        work = self.alone
        if work is None:
            return None
        is_late = now - self._since >= PATIENCE
        if self._is_waiting:
            leaves = ending or work.assignment.state in (PartitionState.LEAVING, PartitionState.GONE)
            return (work, now + PATIENCE if is_late else now) if leaves or is_late else None
        if is_late:
            self.alone = None
        return None

    def condemn(self, work: RecordWork) -> None:
        """Note that a work has killed its processes and becomes a dead letter: it never runs again, even if refused.

        May be called without the lock.
        """
        self._condemned.add(_address(work))

    def clear(self) -> None:
        """Note that the run has ended: no record causes the process's later acts."""
        self._table.clear()

    def _find(self, work: RecordWork) -> Suspect | None:
        suspect = self._suspects.get(_address(work))
        return suspect if suspect and suspect.record.timestamp == work.record.timestamp else None

    def _has_failed(self, work: RecordWork, suspect: Suspect) -> bool:
        return work.attempt <= suspect.attempts or _address(work) in self._condemned


def _address(work: RecordWork) -> _Address:
    return work.record.kafka_topic, work.record.partition, work.offset

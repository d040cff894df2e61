"""The gate of a supervised process, which keeps the table of running records and makes suspects run alone.

A suspect is a record that was running in a process that died. The gate makes the attempt that was running then fail
without calling the handler, so that the retries handle it like any other failure. The next attempt at the record runs
alone.
"""

import time
from collections.abc import Callable, Iterable

from headway.core.engine.partition_states import PartitionState
from headway.core.engine.suspects import MOST_SUSPECTS, Suspect, as_death
from headway.core.retry import GiveUp, Verdict
from headway.errors import BatchError
from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordAttempt
from headway.execution.running_table import RunningTable

PATIENCE = 60.0
"""How long a suspect waits for other records to end, and how long other records wait for a suspect, in seconds.

The waits are limited because a handler can run forever.
"""

_SuspectPosition = tuple[str, int, int]


class Supervision(Gate):
    """Keeps the table of running records, and isolates suspects.

    Any thread can call `suspect`. `fail_as_before` is called by the thread that calls the handler.
    """

    def __init__(self, table: RunningTable, suspects: Iterable[Suspect], request_commit: Callable[[], None]) -> None:
        self._table = table
        self._request_commit = request_commit
        self._suspects: dict[_SuspectPosition, Suspect] = {}
        self._condemned: set[_SuspectPosition] = set()
        self.alone: RecordAttempt | None = None
        """The suspect that runs alone or waits to do so, or None. While it is set, no other attempt starts."""
        self._is_waiting = False
        self._since = 0.0
        self.suspect(suspects)

    def suspect(self, suspects: Iterable[Suspect]) -> None:
        """Treat these records as suspects."""
        for suspect in suspects:
            record = suspect.record
            self._suspects[record.topic, record.partition, record.offset] = suspect
        for address in list(self._suspects)[:-MOST_SUSPECTS]:
            self._suspects.pop(address, None)

    def fail_as_before(self, job: Job) -> None:
        """Raise `ProcessDiedError` if the job is a suspect whose process died during its last attempt.

        Must be called before the handler. If the job is a batch of such suspects, raises a `BatchError` with their
        errors.
        """
        if not self._suspects:
            return
        failed = {index: error for index, attempt in enumerate(job) if (error := self._failed_before(attempt))}
        # A batch that includes other records can have started before its suspects were known. The handler is then
        # called for the whole batch, because a `BatchError` for the suspects would count the other records as done.
        if len(failed) == len(job):
            raise BatchError(failed) if job[1:] else failed[0]

    def _failed_before(self, attempt: RecordAttempt) -> BaseException | None:
        if not (suspect := self._find(attempt)) or not self._has_failed(attempt, suspect):
            return None
        if attempt.number <= suspect.attempts:
            attempt.failure = suspect.failure(time.monotonic() - time.time())
        return suspect.error()

    def expect_batches(self, slots: int, max_size: int) -> None:
        """Enlarge the table so that it has a row for each record of the batches.

        Must be called before any record runs.
        """
        self._table.make_room(max(slots, min(slots * max_size, MOST_SUSPECTS)))

    # For the dispatch

    def admit(self, job: Job, now: float) -> Job:
        """Return the attempts of a batch that can start together.

        If the batch has suspects whose process died during their last attempt, only these suspects are returned, and
        they then fail. A suspect that must run alone starts later, as a batch of its own, after the attempts that
        precede it in the batch.
        """
        if not self._suspects or not job[1:]:
            return job
        suspects = [(index, attempt, each) for index, attempt in enumerate(job) if (each := self._find(attempt))]
        if not suspects:
            return job
        if failed := [attempt for _, attempt, suspect in suspects if self._has_failed(attempt, suspect)]:
            return failed
        return job[: max(1, suspects[0][0])]

    def may_start(self, running: int, now: float) -> bool:
        """Return False while a suspect is running alone or is waiting to do so."""
        return self.alone is None

    def started(self, job: Job, running: int, now: float) -> bool:
        """Write the job into the table.

        If the job is a suspect and other jobs are running, hold the job back instead.
        """
        attempt = job[0]
        if self._suspects and (suspect := self._find(attempt)):
            if self._has_failed(attempt, suspect):
                return False
            self.alone, self._since, self._is_waiting = attempt, now, running > 1
            if self._is_waiting:
                return True
        for each in job:
            self._table.enter(each)
        return False

    def kept_back(self, running: int) -> Job | None:
        """Return the suspect that was waiting to run alone, if all other jobs have ended."""
        if self.alone is None or not self._is_waiting or running > 1:
            return None
        self._since, self._is_waiting = time.monotonic(), False
        self._table.enter(self.alone)
        return [self.alone]

    def timed_out(self, now: float, *, ending: bool) -> tuple[RecordAttempt, float] | None:
        """Let other records start again if a suspect has run alone, or has waited to run alone, for too long.

        If a suspect has waited too long, returns the suspect, which must give back its slot, and the time at which it
        can be taken again. A waiting suspect is also returned if the run ends or its partition is being revoked or is
        lost.
        """
        attempt = self.alone
        if attempt is None:
            return None
        is_late = now - self._since >= PATIENCE
        if self._is_waiting:
            leaves = ending or attempt.assignment.state in (PartitionState.LEAVING, PartitionState.GONE)
            return (attempt, now + PATIENCE if is_late else now) if leaves or is_late else None
        if is_late:
            self.alone = None
        return None

    def judged(self, attempt: RecordAttempt, error: BaseException, verdict: Verdict, now: float) -> Verdict:
        """If a record becomes a dead letter because it killed processes, remember that its handler must not be called.

        This matters if Kafka refuses the dead letter, because the dispatch then takes the record again.
        """
        if isinstance(verdict, GiveUp) and as_death(error):
            self._condemned.add(_address(attempt))
        return verdict

    def done(self, attempt: RecordAttempt, now: float) -> bool:
        """If the record is a suspect, forget it, request a commit, and return True.

        The commit is requested at once because another record could kill this process. Without the commit, the next
        process would handle the suspect again, and could be killed by it.
        """
        if not self._suspects or self._find(attempt) is None:
            return False
        self._suspects.pop(_address(attempt), None)
        self._condemned.discard(_address(attempt))
        self._request_commit()
        return True

    def ended(self, attempt: RecordAttempt, running: int, now: float) -> bool:
        """Remove an attempt from the table. Return True if it was a suspect, because other records can start now."""
        self._table.leave(attempt)
        if attempt is not self.alone:
            return False
        # The suspect ran alone and the process is alive, so the record is not a suspect any more.
        if not self._is_waiting:
            self._suspects.pop(_address(attempt), None)
        self.alone = None
        return True

    def clear(self) -> None:
        """Clear the table at the end of the run, so that no record is a suspect if the process dies later."""
        self._table.clear()

    def _find(self, attempt: RecordAttempt) -> Suspect | None:
        suspect = self._suspects.get(_address(attempt))
        return suspect if suspect and suspect.record.timestamp == attempt.record.timestamp else None

    def _has_failed(self, attempt: RecordAttempt, suspect: Suspect) -> bool:
        return attempt.number <= suspect.attempts or _address(attempt) in self._condemned


def _address(attempt: RecordAttempt) -> _SuspectPosition:
    return attempt.record.kafka_topic, attempt.record.partition, attempt.offset

"""Stores the results of calls whose records failed for good, expired or were dropped."""

from collections import deque
from typing import Any

from headway.core.retry import GiveUp
from headway.errors import HeadwayError
from headway.execution.gate import Gate
from headway.execution.jobs import RecordAttempt
from headway.kafka.producer.client import ProducerClient
from headway.parallel.call_results import CallResults
from headway.parallel.handler_output import HandlerOutput
from headway.parallel.outputs import log_refused_result, why_not_delivered


class FailedCalls(Gate):
    """A gate that holds nothing back, and stores a result for each record that ends with an error.

    With `only_dropped` it does so only for dropped and expired records, because transactions store the results of dead
    letters. A dropped record would be dropped again if the process died now, so its result needs no transaction.
    """

    def __init__(self, results: CallResults, client: ProducerClient, *, only_dropped: bool) -> None:
        self._results = results
        self._client = client
        self._only_dropped = only_dropped
        self._failed: deque[tuple[RecordAttempt, BaseException]] = deque()

    def done(self, attempt: RecordAttempt, now: float) -> bool:
        """Note a record that has ended with an error. Its result is sent later, without the dispatch's lock."""
        outcome = attempt.outcome
        if outcome is None or not (outcome.verdict is None or isinstance(outcome.verdict, GiveUp)):
            return False
        if self._only_dropped and outcome.verdict is not None:
            return False
        self._failed.append((attempt, outcome.error))
        return True

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Send the results that were noted since the last call."""
        while self._failed:
            try:
                attempt, error = self._failed.popleft()
            except IndexError:  # another thread has taken the last one
                return
            if (output := self._results.of_failure(attempt, error)) is not None:
                self._send(output)

    def _send(self, output: HandlerOutput) -> None:
        def report(refused: Any, _: Any) -> None:
            if refused is not None:
                log_refused_result(output, why_not_delivered(self._client, output.topic, refused))

        try:
            self._client.send(output, report)
        except HeadwayError as error:
            log_refused_result(output, error)

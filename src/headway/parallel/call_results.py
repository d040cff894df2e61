"""Turns what handlers return, and the errors of records that failed for good, into the results of calls.

A result is stored like an output: with transactions it is stored together with the record's offset. But a result that
Kafka refuses does not make its record fail, because the record has been handled, whether or not its sender learns that.
"""

import logging
import time
from typing import Any

from msgspec import Raw

from headway.core.calls.call_id import CALL_HEADER, ResultRequest, read_header
from headway.core.calls.stored_result import NOTHING, StoredError, StoredResult, encode_value
from headway.errors import UnreadableError
from headway.execution.jobs import RecordAttempt
from headway.parallel.handler_output import HandlerOutput, OutputKind

log = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # the minimum time between two log lines about headers that cannot be used, in seconds


class CallResults:
    """Makes the results of a run's calls. `topic` is the topic in which they are stored. Thread-safe."""

    def __init__(self, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._log_at = 0.0

    def of(self, attempt: RecordAttempt, returned: Any) -> HandlerOutput | None:
        """Return the result of a record that was handled, or None if its sender does not want one.

        Raises `FatalError` if the returned value cannot be stored.
        """
        asked = self.asked(attempt)
        return None if asked is None else self._output(asked, attempt, encode_value(returned), None)

    def of_failure(self, attempt: RecordAttempt, error: BaseException) -> HandlerOutput | None:
        """Return the result of a record that failed for good, or None if its sender does not want one."""
        asked = self.asked(attempt)
        return None if asked is None else self._output(asked, attempt, NOTHING, StoredError.of(error))

    def asked(self, attempt: RecordAttempt) -> ResultRequest | None:
        """Return the request in a header of the record, or None if there is no such header or if it cannot be used."""
        for name, value in attempt.record.headers:
            if name == CALL_HEADER:
                return self._usable(attempt, value)
        return None

    def _usable(self, attempt: RecordAttempt, value: str | bytes | None) -> ResultRequest | None:
        try:
            asked = read_header(value)
        except UnreadableError as error:
            self._log(attempt, str(error))
            return None
        if asked.topic != self._topic:
            self._log(attempt, f"It asks for a result in {asked.topic!r}, but result_topic is {self._topic!r}.")
        elif asked.call.partition >= self._partitions:
            self._log(attempt, f"It asks for partition {asked.call.partition}, but there are {self._partitions}.")
        else:
            return asked
        return None

    def _log(self, attempt: RecordAttempt, reason: str) -> None:
        if (now := time.monotonic()) >= self._log_at:
            self._log_at = now + _LOG_EVERY
            log.warning("No result is stored for %r: %s", attempt.record, reason)

    def _output(
        self, asked: ResultRequest, attempt: RecordAttempt, value: Raw, error: StoredError | None
    ) -> HandlerOutput:
        stored = StoredResult(int(time.time() * 1000), attempt.number, value, error)
        return HandlerOutput(
            self._topic,
            stored.encode(),
            str(asked.call).encode(),
            asked.call.partition,
            job=(attempt,),
            returned=None,
            kind=OutputKind.RESULT,
        )

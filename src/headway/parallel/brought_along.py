"""Reads the failed attempts and the expiry of records from headers, and makes the header for a later retry."""

import math
import time
from collections.abc import Mapping, Sequence

from headway.core.engine.attempt import NOTHING_BROUGHT, Brought, FailedAttempts
from headway.core.record_size import size_of_headers
from headway.dead_letters import name_and_text
from headway.errors import EarlierAttemptError
from headway.execution.context import wall_time
from headway.execution.dispatch import Dispatch
from headway.execution.gates.expiry_gate import ExpiryGate
from headway.execution.jobs import RecordAttempt
from headway.records.expiry import expiry_of
from headway.records.history import History, after_attempt, counts_for, history_of, told
from headway.records.record_types import ConsumerRecord, with_headers


class BroughtAlong:
    """Reads the failed attempts and the expiry from the headers of records.

    Args:
        group: The consumer group. Attempts of other groups are ignored.
        dispatch: The dispatch. The gate for expiry is added to it when the first record arrives that can expire.
        expiry: The gate for expiry.
        expires_after: How long after its timestamp a record expires, in seconds. None if there is no such limit.
    """

    def __init__(self, group: str, dispatch: Dispatch, expiry: ExpiryGate, expires_after: float | None = None) -> None:
        self._group = group
        self._dispatch = dispatch
        self._expiry = expiry
        self._expires_after = expires_after

    def of(
        self, records: Sequence[ConsumerRecord], now: float, *, may_have_headers: bool = True
    ) -> Mapping[ConsumerRecord, Brought]:
        """Read the failed attempts and the expiry of each record. The result can omit records without such data.

        `now` is the current time of the monotonic clock.
        """
        if self._expires_after is None and not may_have_headers:
            return NOTHING_BROUGHT
        if self._expires_after is None:
            with_some = with_headers(records)
            found = {record: self._read(record, now) for record in with_some} if with_some else NOTHING_BROUGHT
        else:
            found = {record: self._read(record, now) for record in records}
        if any(brought.not_after < math.inf for brought in found.values()):
            self._dispatch.add(self._expiry)
        return found

    def _read(self, record: ConsumerRecord, now: float) -> Brought:
        headers = record.headers
        history = history_of(headers, record.kafka_topic)
        at = expiry_of(headers)
        since = history.since if history and history.since else record.timestamp
        if self._expires_after is not None and since > 0:
            latest = since + round(self._expires_after * 1000)
            at = latest if at is None else min(at, latest)
        failure = failure_of(history) if history and counts_for(history, self._group) else None
        not_after = math.inf if at is None else now + at / 1000 - time.time()
        return Brought(failure, not_after, size_of_headers(headers))


def failure_of(history: History) -> FailedAttempts | None:
    """Return the failed attempts that a history describes, or None if no attempt has failed."""
    first, last = history.first, history.last
    if first is None or last is None:
        return None
    to_monotonic = time.monotonic() - time.time()
    errors = [EarlierAttemptError(error.exception, error.message) for error in (last, first)]
    times = [error.at / 1000 + to_monotonic for error in (last, first)]
    return FailedAttempts(errors[0], times[0], times[1], history.attempts, history.untried, errors[1])


def history_after(attempt: RecordAttempt, error: BaseException, group: str) -> History:
    """Return the history of a record, including the attempt of this group that has just failed."""
    record, before = attempt.record, attempt.failure
    known = history_of(record.headers, record.kafka_topic)
    since = record.timestamp if known is None or known.since is None else known.since
    last = told(*name_and_text(error), time.time())
    first = told(*name_and_text(before.first_error), wall_time(before.first_at)) if before else last
    return after_attempt(record.kafka_topic, record.origin, since, attempt.number, attempt.untried, first, last, group)


def history_of_copy(attempt: RecordAttempt, topic: str, group: str) -> History:
    """Return the history of a record that is moved to another topic, with the attempts that have failed so far."""
    record, before = attempt.record, attempt.failure
    known = history_of(record.headers, record.kafka_topic)
    since = record.timestamp if known is None or known.since is None else known.since
    if before is None:
        return History(topic, record.origin, since=since if since > 0 else None)
    last = told(*name_and_text(before.error), wall_time(before.at))
    first = told(*name_and_text(before.first_error), wall_time(before.first_at))
    return after_attempt(topic, record.origin, since, before.attempts, before.untried, first, last, group)

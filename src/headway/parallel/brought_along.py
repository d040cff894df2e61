"""The histories of records: read when they are fetched, and written when they are to be tried again much later."""

import time
from collections.abc import Mapping, Sequence

from headway.core.engine.work import Failure
from headway.dead_letters import name_and_text
from headway.errors import EarlierAttemptError
from headway.execution.context import wall_time
from headway.execution.jobs import RecordWork
from headway.history import History, ToldError, after_attempt, history_of, told
from headway.records import ConsumerRecord, with_headers


def failures_before(records: Sequence[ConsumerRecord]) -> Mapping[ConsumerRecord, Failure]:
    """Return the failed attempts that records bring along, of those that do."""
    found = dict[ConsumerRecord, Failure]()
    for record in with_headers(records):
        history = history_of(record.headers, record.kafka_topic)
        if history and history.first and history.last:
            found[record] = _failure(history.first, history.last, history)
    return found


def _failure(first: ToldError, last: ToldError, history: History) -> Failure:
    to_monotonic = time.monotonic() - time.time()
    errors = [EarlierAttemptError(error.exception, error.message) for error in (last, first)]
    times = [error.at / 1000 + to_monotonic for error in (last, first)]
    return Failure(errors[0], times[0], times[1], history.attempts, history.untried, errors[1])


def history_after(work: RecordWork, error: BaseException) -> History:
    """Return the history of a record in its own topic after this attempt, which has failed with this error."""
    record, before = work.record, work.failure
    known = history_of(record.headers, record.kafka_topic)
    since = record.timestamp if known is None or known.since is None else known.since
    last = told(*name_and_text(error), time.time())
    first = told(*name_and_text(before.first_error), wall_time(before.first_at)) if before else last
    return after_attempt(record.kafka_topic, record.origin, since, work.attempt, work.untried, first, last)

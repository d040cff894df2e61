"""Reads the earlier attempts at a row from its record's headers, and makes the history header for its next record."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from headway.core.engine.attempt import NOTHING_BROUGHT, Attempt, Brought, FailedAttempts
from headway.core.retry import failure_behind
from headway.dead_letters import name_and_text
from headway.execution.context import wall_time
from headway.parallel.brought_along import failure_of
from headway.records.expiry import HEADER as EXPIRES
from headway.records.expiry import expiry_of
from headway.records.history import HEADER, History, after_attempt, history_of, told
from headway.spark.stage.input_batch import InputBatch, StageRow
from headway.spark.stage.input_row import InputRow, place_of
from headway.spark.stage.row_record import kafka_topic_of, origin_of, row_headers, timestamp_of

_OURS = pa.array([HEADER, EXPIRES])


def brought_along(batch: InputBatch, now: float, expires_after: float | None = None) -> Mapping[StageRow, Brought]:
    """Return the earlier attempts and the expiry time of a batch's rows, for those rows that have either.

    Both are read from the headers of the rows' records. If `expires_after` is given, a row also expires that many
    seconds after the timestamp that its record had when it was first sent. `now` is a time of the monotonic clock.
    """
    headers = batch.column("headers")
    if expires_after is None and (headers is None or not _may_have_ours(headers)):
        return NOTHING_BROUGHT
    found: dict[StageRow, Brought] = {}
    for row in batch.rows:
        columns, index = place_of(row.row)
        own = row_headers(columns, index)
        history = history_of(own, kafka_topic_of(columns, index) or "")
        failure = failure_of(history) if history else None
        at = expiry_of(own)
        since = history.since if history and history.since else timestamp_of(columns, index)
        if expires_after is not None and since > 0:
            latest = since + round(min(expires_after, _LONGEST) * 1000)
            at = latest if at is None else min(at, latest)
        if failure or at is not None:
            found[row] = Brought(failure, math.inf if at is None else now + at / 1000 - time.time())
    return found


def failure_after(attempt: Attempt[Any], error: BaseException, *, untried: bool = False) -> FailedAttempts | None:
    """Return the failed attempts at a row, including `attempt`, which has failed with this error."""
    return attempt.again(0.0, failure_behind(error), time.monotonic(), untried).failure


def row_history_after(row: InputRow, failure: FailedAttempts | None) -> str | None:
    """Return the value of the history header after these failed attempts, or None if the row is not from a record."""
    columns, index = place_of(row)
    topic, origin = kafka_topic_of(columns, index), origin_of(columns, index)
    if topic is None or origin is None:
        return None
    known = history_of(row_headers(columns, index), topic)
    since = known.since if known and known.since else timestamp_of(columns, index)
    if failure is None:
        history = History(topic, origin, since=since if since > 0 else None)
    else:
        first = told(*name_and_text(failure.first_error), wall_time(failure.first_at))
        last = told(*name_and_text(failure.error), wall_time(failure.at))
        history = after_attempt(topic, origin, since, failure.attempts, failure.untried, first, last)
    return history.header()[1].decode()


_LONGEST = 1e10  # in seconds: about three centuries; Python can still represent a timestamp that is this much later


def _may_have_ours(headers: pa.Array) -> bool:
    """Return whether the headers may include one of Headway's headers.

    The check must be fast, because most batches have no such header.
    """
    try:
        names: Sequence[Any] = headers.flatten().field("key")
        return bool(pc.any(pc.is_in(names, _OURS)).as_py())
    except Exception:  # the column is the user's own and has another type
        return True

"""Cancels all schedules that match a predicate, by sending a request to the relay of each schedule."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession

from headway.core.delay.changes import Settled
from headway.delay.change_request import ChangeRequest
from headway.delay.scheduler import Scheduler
from headway.delay.topic_names import DEFAULT_NAME
from headway.errors import NoRelayError
from headway.spark.delay.reading import pending
from headway.spark.session.error_messages import one_sentence
from headway.spark.session.plan_names import shown_as

_UNANSWERED = "unanswered"
_COUNTS = "outcome string, count long"
_ASKED_AT_A_TIME = 5_000


def cancel_where(
    spark: SparkSession,
    config: Mapping[str, Any],
    predicate: Column | str,
    name: str = DEFAULT_NAME,
    *,
    timeout: float = 60.0,
) -> dict[Settled, int]:
    """Cancel the pending schedules that match the predicate, and return how many had each outcome.

    Relays must be running. The predicate can use the columns of `pending`. A schedule that a relay delivered before it
    read the cancellation counts as `Settled.DELIVERED`. It is safe to call this function again, because a cancelled
    schedule is no longer pending.

    Raises:
        NoRelayError: Some cancellations were not answered within `timeout` seconds. They take effect once a relay runs.
        ConfigError: The scheduler has no topics.
    """
    # Handles must be distinct, because a record that moves while the delay topics are being read can be read twice.
    handles = pending(spark, config, name).where(predicate).select("handle").distinct()
    asking = shown_as("headway delay.cancel_where", _asking(dict(config), name, timeout))
    counts = _total(handles.mapInArrow(asking, _COUNTS))
    if unanswered := counts.pop(_UNANSWERED, 0):
        raise NoRelayError(
            f"Of {counts.total() + unanswered:,} cancellations, {unanswered:,} were not answered within {timeout:g} s. "
            "The unanswered ones are stored, and will be settled as soon as a relay runs (`headway relay`). To get "
            "their outcome, call cancel_where again after that."
        )
    return {Settled(outcome): count for outcome, count in counts.items()}


def _total(counts: DataFrame) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in counts.collect():
        total[row["outcome"]] += row["count"]
    return total


def _asking(config: Mapping[str, Any], name: str, timeout: float) -> Any:
    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handles = (handle for batch in batches for handle in batch.column(0).to_pylist())
        with one_sentence():
            counts = _cancel(handles, config, name, timeout)
            yield pa.RecordBatch.from_pydict({"outcome": list(counts), "count": list(counts.values())}, _SCHEMA)

    return ask


_SCHEMA = pa.schema([("outcome", pa.string()), ("count", pa.int64())])


def _cancel(handles: Iterator[str], config: Mapping[str, Any], name: str, timeout: float) -> Counter[str]:
    """Send the cancellations of one task. At most 5,000 of them are unanswered at any time."""
    counts: Counter[str] = Counter()
    asked: deque[ChangeRequest] = deque()
    first = next(handles, None)
    if first is None:
        return counts
    with Scheduler(config, name=name) as scheduler:
        asked.append(scheduler.cancel(first))
        for handle in handles:
            if len(asked) >= _ASKED_AT_A_TIME:
                _settle(asked.popleft(), counts, timeout)
            asked.append(scheduler.cancel(handle))
        for request in asked:
            _settle(request, counts, timeout)
    return counts


def _settle(request: ChangeRequest, counts: Counter[str], timeout: float) -> None:
    # If one answer is late, no relay is running, so do not wait for the other answers.
    try:
        outcome: str = request.settled(0 if counts[_UNANSWERED] else timeout)
    except NoRelayError:
        outcome = _UNANSWERED
    counts[outcome] += 1

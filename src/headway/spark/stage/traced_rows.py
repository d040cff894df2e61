"""Makes spans of the calls of a stage's handler. The rows have the context of their traces in the column `headers`."""

from typing import Any

from headway.execution.executor import HandlerCalls
from headway.execution.traced_calls import TracedCalls, earlier_failure
from headway.spark.stage import row_record
from headway.spark.stage.input_row import place_of
from headway.tracing.traced_record import TracedRecord
from headway.tracing.tracing import Tracing


def traced_calls(calls: HandlerCalls, tracing: Tracing) -> TracedCalls:
    """Return calls that make a span of each call of the handler."""
    return TracedCalls(calls, tracing.spans(), describe=_described)


def _described(attempt: Any) -> TracedRecord:
    """Describe the row of an attempt. Columns of the source `headway` that are missing leave gaps."""
    columns, index = place_of(attempt.record.row)
    origin = row_record.origin_of(columns, index)
    partition, offset = row_record.place_in_topic(columns, index)
    return TracedRecord(
        row_record.kafka_topic_of(columns, index),
        row_record.level_of_row(columns, index),
        partition,
        offset,
        row_record.timestamp_of(columns, index),
        row_record.row_headers(columns, index),
        None,
        None if origin is None else str(origin),
        attempt.number,
        earlier_failure(attempt),
    )

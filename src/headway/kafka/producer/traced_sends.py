"""Makes a span of each call that sends a record. It ends when Kafka has stored the record, or has refused it."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future as ThreadFuture
from typing import Any

from headway.kafka.producer.headers import header_list
from headway.records.record_types import Header, RecordMetadata
from headway.tracing.spans import RunningSpan, Spans

GivenHeaders = Sequence[Header] | Mapping[str, str | bytes | None] | None


def traced_send(
    spans: Spans,
    topic: str,
    key: object,
    headers: GivenHeaders,
    send: Callable[[Any], Any],
    due_in: float | None = None,
    future_of: Callable[[Any], Any] = lambda sent: sent,
) -> Any:
    """Call `send` with the headers that carry the context of a new span, and return its result.

    Args:
        spans: Makes the span.
        topic: The topic's name in Kafka.
        key: The key of the record.
        headers: The headers of the record.
        send: Sends the record.
        due_in: The delay of the record in seconds, or None if it is sent for now.
        future_of: Returns the future in the result of `send`, or None if nothing was sent.
    """
    fields = None if headers is None else header_list(headers)
    begun = spans.send(topic, key, fields, due_in)
    if begun is None:
        return send(fields)
    span, carried = begun
    try:
        sent = send(carried)
    except BaseException as error:
        span.end(error)
        raise
    if (future := future_of(sent)) is None:
        span.end(attributes={"headway.sent": False})
    else:
        future.add_done_callback(_Ending(spans, span, has_place=due_in is None))
    return sent


class _Ending:
    """Ends the span of a record when the record's future is done.

    A record that is due later has no place in its topic yet.
    """

    def __init__(self, spans: Spans, span: RunningSpan, *, has_place: bool) -> None:
        self._spans = spans
        self._span = span
        self._has_place = has_place

    def __call__(self, future: "ThreadFuture[RecordMetadata]") -> None:
        if future.cancelled():  # only a future of asyncio can be cancelled; its record is sent nevertheless
            self._span.end()
        elif error := future.exception():
            self._span.end(error)
        elif self._has_place:
            stored = future.result()
            self._spans.stored(self._span, stored.partition, stored.offset)
        else:
            self._span.end()

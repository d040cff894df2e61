"""Makes a producer trace the records that it sends.

The traced methods replace those of one object, as its attributes, so that `send` of other producers does nothing new.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from headway.kafka.producer.traced_sends import GivenHeaders, traced_send
from headway.priority.destinations import Destinations
from headway.tracing.spans import Spans


def trace_sends(producer: Any, destinations: Destinations, spans: Spans) -> None:
    """Make `send` and `try_send` of a producer, for threads or for asyncio, trace their records."""
    producer.send = _traced(producer.send, destinations, spans, takes_due=True)
    producer.try_send = _traced(producer.try_send, destinations, spans, takes_due=False)


def _traced(
    send: Callable[..., Any], destinations: Destinations, spans: Spans, *, takes_due: bool
) -> Callable[..., Any]:
    @wraps(send)
    def traced(
        topic: Any,
        value: Any = None,
        key: Any = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: int | None = None,
        level: int | None = None,
        *more: Any,
        **fields: Any,
    ) -> Any:
        def send_with(carried: Any) -> Any:
            return send(topic, value, key, carried, partition, timestamp, level, *more, **fields)

        due = more[0] if takes_due and more else fields.get("due")
        # The method calls itself with the fields of a `ProducerRecord`, and the scheduler traces the others.
        if not isinstance(topic, str) or due is not None or fields.get("id") is not None:
            return send_with(headers)
        return traced_send(spans, _kafka_topic(destinations, topic, level), key, headers, send_with)

    return traced


def _kafka_topic(destinations: Destinations, topic: str, level: int | None) -> str:
    try:
        return destinations.kafka_topic(topic, level or 0)
    except Exception:  # `send` raises the error
        return topic

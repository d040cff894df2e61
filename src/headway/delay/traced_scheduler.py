"""Makes a scheduler trace the records that it schedules.

The traced method replaces that of one object, as its attribute, so that other schedulers do nothing new.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from headway.core.levels.naming import level_topic
from headway.delay.due_time import due_at
from headway.kafka.producer.traced_sends import GivenHeaders, traced_send
from headway.tracing.spans import Spans


def trace_scheduler(scheduler: Any, spans: Spans) -> None:
    """Make `send_later` of a scheduler trace its records.

    `every` is not traced. Its headers are part of the identity of a schedule, so a context in them, which differs each
    time, would make another schedule whenever a program starts again. And its records have no single sender.
    """
    send_later = scheduler.send_later

    @wraps(send_later)
    def traced_send_later(
        key: Any, value: Any, topic: Any, when: Any, *, headers: GivenHeaders = (), **fields: Any
    ) -> Any:
        def send_with(carried: Any) -> Any:
            return send_later(key, value, topic, when, headers=carried, **fields)

        return _traced(spans, topic, fields.get("level"), key, headers, send_with, _delay(when))

    scheduler.send_later = traced_send_later


def _traced(
    spans: Spans, topic: Any, level: Any, key: Any, headers: GivenHeaders, send: Callable[[Any], Any], delay: float
) -> Any:
    return traced_send(spans, _name(topic, level), key, headers, send, delay, future_of=lambda handle: handle.future)


def _name(topic: Any, level: Any) -> str:
    try:
        return level_topic(topic, level) if isinstance(level, int) else str(topic)
    except Exception:  # `send_later` raises the error
        return "?"


def _delay(when: Any) -> float:
    """Return the delay in seconds, by this machine's clock. For a time that is not valid, `send_later` raises."""
    now = time.time()
    try:
        return max(0.0, due_at(when, now) / 1000 - now)
    except Exception:
        return 0.0

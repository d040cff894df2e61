"""Makes the spans of clients, with the API of OpenTelemetry.

Invariants:
- No method raises an `Exception`, because tracing must never fail a record. Exporters and samplers are the user's code.
- No span has a value of a record, and none has a key unless the user asks for keys.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from headway.core.retry import failure_behind
from headway.core.user_errors import class_name, description_of, text_of
from headway.metrics.conventions import AttributeValue, conventions_in_use
from headway.records.history import history_of
from headway.records.record_types import Header
from headway.tracing.carriers import carrying, context_in
from headway.tracing.durations import in_words
from headway.tracing.traced_record import TracedRecord

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_NAME: Final = "headway"
_MS: Final = 1_000_000  # in nanoseconds
_LOG_EVERY: Final = 60.0  # the least time between two log lines about failures, in seconds


def harmless(call: Callable[P, T]) -> Callable[P, T | None]:
    """Wrap a function so that it logs errors and returns None instead of raising them."""

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            _failures.note(error)
            return None

    return guarded


class _TracingFailures:
    """Logs failures of the tracing, but not each of them."""

    def __init__(self) -> None:
        self._logged_at = -_LOG_EVERY

    def note(self, error: Exception) -> None:
        """Log this failure if none was logged for a while."""
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            log.warning("A span is missing or incomplete: %s. Records are not affected.", description_of(error))


_failures = _TracingFailures()


class RunningSpan:
    """A span that has begun, with the context in which it is the current span."""

    __slots__ = ("_span", "context")

    def __init__(self, span: Span, context: Context) -> None:
        self._span = span
        self.context = context

    def enter(self) -> Token[Context]:
        """Make this the current span of the calling thread or task. Pass the result to `leave`."""
        return attach(self.context)

    @staticmethod
    def leave(token: Token[Context]) -> None:
        """Make the span current again that was current before `enter`."""
        detach(token)

    @harmless
    def end(self, error: BaseException | None = None, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """End the span, with these further attributes. With an error, the span has failed.

        A span that has ended, or is not sampled, stays as it is.
        """
        if not self._span.is_recording():
            return
        try:
            if attributes:
                self._span.set_attributes(attributes)
            if error is not None:
                behind = failure_behind(error)
                self._span.set_attribute("error.type", class_name(type(behind)))
                self._span.set_status(Status(StatusCode.ERROR, text_of(behind)))
        finally:
            self._span.end()


class Spans:
    """Makes the spans of a client.

    Args:
        provider: The provider of the tracer, or None for the global one.
        is_parent: True if the span that has sent a record is the parent of the span of its handler.
        has_keys: True if spans have the keys of records.
    """

    def __init__(self, provider: TracerProvider | None, *, is_parent: bool, has_keys: bool) -> None:
        self._conventions = conventions_in_use()
        self._tracer = get_tracer(_NAME, None, provider, self._conventions.schema_url)
        self._is_parent = is_parent
        self._has_keys = has_keys

    # Sending

    @harmless
    def send(
        self, topic: str, key: object, headers: Sequence[Header] | None, due_in: float | None = None
    ) -> tuple[RunningSpan, list[Header]]:
        """Begin the span of a record that is sent, and return the headers that carry its context.

        `due_in` is the delay in seconds, or None if the record is sent for now. Returns None if that fails.
        """
        more: dict[str, AttributeValue] = {} if due_in is None else {"headway.due_in": due_in}
        attributes = self._attributes("send", "send", topic, {**more, **self._key(key)})
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        context = set_span_in_context(span)
        return RunningSpan(span, context), carrying(headers, context)

    def stored(self, span: RunningSpan, partition: int | None, offset: int | None) -> None:
        """End the span of a record that Kafka has stored there."""
        place: dict[str, AttributeValue] = {}
        if partition is not None:
            place["messaging.destination.partition.id"] = str(partition)
        if offset is not None and offset >= 0:  # Kafka reports no offset with acks=0
            place["kafka.offset"] = offset
        span.end(attributes=self._conventions.named(place))

    @harmless
    def dead_letter(self, record: TracedRecord, reason: str) -> RunningSpan:
        """Begin the span of a dead letter that is sent.

        The letter keeps the headers of its record, and with them the context of the span that has sent the record. So
        this span is linked to that one, and no later span refers to this one.
        """
        attributes = self._attributes("send", "send", None, {**_of_record(record), "headway.reason": reason})
        span = self._tracer.start_span(
            "send dead letter", kind=SpanKind.CLIENT, attributes=attributes, links=_links([context_in(record.headers)])
        )
        return RunningSpan(span, set_span_in_context(span))

    # Handling

    @harmless
    def process(
        self,
        records: Sequence[TracedRecord],
        group: str | None = None,
        around: Context | None = None,
        *,
        with_waits: bool = True,
    ) -> RunningSpan:
        """Begin the span of a call with one record, or with a batch. The waits of its records have spans of their own.

        Args:
            records: The records. There is at least one.
            group: The consumer group.
            around: The context of the parent span. By default there is none.
            with_waits: False if the waits of these records are spans already.
        """
        now = time.time_ns()
        contexts = [context_in(record.headers) for record in records]
        around = Context() if around is None else around
        is_child = self._is_parent and len(records) == 1 and _is_traced(contexts[0])
        more: dict[str, AttributeValue] = {} if group is None else {"messaging.consumer.group.name": group}
        if len(records) == 1:
            more |= self._of_single(records[0])
        else:
            more["messaging.batch.message_count"] = len(records)
        topics = {record.kafka_topic for record in records}
        topic = topics.pop() if len(topics) == 1 else None  # the topic of a batch, if its records have only one
        span = self._tracer.start_span(
            f"process {topic}" if topic else "process",
            contexts[0] if is_child else around,
            SpanKind.CONSUMER,
            self._attributes("process", "process", topic, more),
            _links([around] if is_child else contexts),
            start_time=now,
        )
        # The handler also sees the baggage that its record brings along.
        context = set_span_in_context(span, contexts[0] if len(records) == 1 else around)
        if with_waits:
            for record, sent in zip(records, contexts, strict=True):
                self._waited(record, sent if _is_traced(sent) else context, now)
        return RunningSpan(span, context)

    @contextmanager
    def processing(self, records: Sequence[TracedRecord], group: str | None) -> Iterator[None]:
        """Make the span of a `with` block that handles these records. It is the current span in the block."""
        running = self.process(records, group, get_current())
        if running is None:
            yield
            return
        token = running.enter()
        try:
            yield
        except BaseException as error:
            running.end(error)
            raise
        else:
            running.end()
        finally:
            running.leave(token)

    def _of_single(self, record: TracedRecord) -> dict[str, AttributeValue]:
        described = {"headway.attempt": record.attempt, **_of_record(record), **self._key(record.key)}
        if record.partition is not None:
            described["messaging.destination.partition.id"] = str(record.partition)
        if record.offset is not None:
            described["kafka.offset"] = record.offset
        return described

    # Waiting

    def _waited(self, record: TracedRecord, parent: Context, now: int) -> None:
        """Make the span of the time that a record has waited before its handler was called."""
        if record.failure is None:
            if record.timestamp <= 0:
                return
            since = record.timestamp * _MS
            name, text = f"queued at level {record.level}", f"queued {{}} at level {record.level}"
        else:
            since = int(record.failure.at * 1000) * _MS
            name = f"retry after {record.failure.error}"
            text = f"retry {record.attempt - 1} after {record.failure.error}, {{}} later"
        self._wait(name, text, record.kafka_topic, _of_record(record), parent, since, now)

    @harmless
    def delayed(self, topic: str, headers: Sequence[Header], since: int, until: int) -> None:
        """Make the span of the time that a record has waited in delay topics.

        Records that were sent without a context have no such span. The times are in milliseconds since the epoch.
        """
        sent = context_in(headers)
        if not _is_traced(sent):
            return
        history = history_of(headers, topic)
        origin: dict[str, AttributeValue] = {"headway.record.origin": str(history.origin)} if history else {}
        text = "waited {} in a delay topic"
        self._wait("waited in a delay topic", text, topic, origin, sent, since * _MS, until * _MS)

    def _wait(
        self,
        name: str,
        text: str,
        topic: str | None,
        more: Mapping[str, AttributeValue],
        parent: Context,
        since: int,
        until: int,
    ) -> None:
        since = min(since, until)  # clocks differ
        described = text.format(in_words((until - since) / 1e9))
        place = {} if topic is None else {"messaging.destination.name": topic}
        attributes = self._conventions.named(
            {"messaging.system.name": "kafka", "headway.wait": described, **place, **more}
        )
        self._tracer.start_span(name, parent, attributes=attributes, start_time=since).end(until)

    # Commits

    @harmless
    def commit(self, group: str, partitions: int, *, is_transaction: bool) -> RunningSpan:
        """Begin the span of a commit of the offsets of this many partitions."""
        more: dict[str, AttributeValue] = {
            "messaging.consumer.group.name": group,
            "headway.partitions": partitions,
            "headway.transaction": is_transaction,
        }
        attributes = self._attributes("commit", "settle", None, more)
        span = self._tracer.start_span("commit", Context(), SpanKind.CLIENT, attributes)
        return RunningSpan(span, set_span_in_context(span, Context()))

    def _attributes(
        self, operation: str, kind: str, topic: str | None, more: Mapping[str, AttributeValue]
    ) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            "messaging.system.name": "kafka",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            **more,
        }
        if topic is not None:
            attributes["messaging.destination.name"] = topic
        return self._conventions.named(attributes)

    def _key(self, key: object) -> dict[str, AttributeValue]:
        """Return the key as an attribute if the user asks for keys and the key is text."""
        if not self._has_keys or not isinstance(key, str | bytes):
            return {}
        try:
            return {"kafka.message.key": key if isinstance(key, str) else key.decode()}
        except UnicodeDecodeError:
            return {}


def _of_record(record: TracedRecord) -> dict[str, AttributeValue]:
    level: dict[str, AttributeValue] = {"headway.level": record.level}
    return level if record.origin is None else {**level, "headway.record.origin": record.origin}


def _is_traced(context: Context) -> bool:
    return get_current_span(context).get_span_context().is_valid


def _links(contexts: Sequence[Context]) -> list[Link]:
    return [Link(get_current_span(context).get_span_context()) for context in contexts if _is_traced(context)]

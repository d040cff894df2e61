"""The spans that were exported, as a tree that tests can compare."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from headway.tracing import Tracing


class Exported:
    """A provider that keeps all spans, and questions about them."""

    def __init__(self, *processors: SpanProcessor) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        for processor in processors:
            self.provider.add_span_processor(processor)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def tracing(self, **options: Any) -> Tracing:
        """Tracing with this provider."""
        return Tracing(provider=self.provider, **options)

    @property
    def tracer(self) -> Tracer:
        """A tracer of the test's own."""
        return self.provider.get_tracer("test")

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """The spans that have ended, with this name or with any."""
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def one(self, name: str) -> ReadableSpan:
        """The only span with this name."""
        [span] = self.spans(name)
        return span

    def name_of(self, id_: int | None) -> str | None:
        """The name of the span with this id."""
        return next((span.name for span in self.spans() if span.context and span.context.span_id == id_), None)

    def parent(self, span: ReadableSpan) -> str | None:
        """The name of a span's parent."""
        return self.name_of(span.parent.span_id) if span.parent else None

    def links(self, span: ReadableSpan) -> list[str | None]:
        """The names of the spans that a span is linked to."""
        return [self.name_of(link.context.span_id) for link in span.links]

    def tree(self) -> list[tuple[str, str | None, list[str | None]]]:
        """The name, the parent and the links of each span except commits, by name."""
        spans = [(span.name, self.parent(span), self.links(span)) for span in self.spans() if span.name != "commit"]
        return sorted(spans, key=str)


def ids(span: ReadableSpan) -> tuple[str, str]:
    """The trace and the span, as handlers note them."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """A span's attributes."""
    return dict(span.attributes or {})


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    """The names of spans."""
    return [span.name for span in spans]

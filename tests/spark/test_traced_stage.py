"""Spans of a stage's handler in Spark's own Python workers."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import get_current_span, set_tracer_provider
from pyspark.sql import SparkSession

from headway.spark import InputRow, parallel_map
from headway.tracing import Tracing

pytestmark = pytest.mark.spark


def test_the_span_of_a_row_is_current_in_its_handler_and_goes_to_the_provider_of_the_worker(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "spans"

    class InFile(SpanExporter):
        """Writes the ids of spans into a file."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            with file.open("a") as lines:
                for span in spans:
                    context = span.get_span_context()
                    assert context is not None
                    links = [f"{link.context.trace_id:032x}" for link in span.links]
                    lines.write(json.dumps([span.name, f"{context.span_id:016x}", links]) + "\n")
            return SpanExportResult.SUCCESS

    @contextmanager
    def tracer() -> Iterator[None]:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(InFile()))
        set_tracer_provider(provider)
        yield
        provider.shutdown()

    def current(row: InputRow) -> str:
        return f"{get_current_span().get_span_context().span_id:016x}"

    rows = spark.sql(
        "SELECT 'orders' AS topic, 0 AS partition, id AS offset, array(named_struct('key', 'traceparent', 'value', "
        "CAST(format_string('00-%032x-00000000000000aa-01', id + 1) AS BINARY))) AS headers FROM range(0, 5, 1, 1)"
    )
    came = parallel_map(rows, current, "string", key=None, tracing=Tracing(), lifespan=tracer).collect()
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    processed = {span: links for name, span, links in spans if name == "process orders"}
    assert {row.result: [f"{row.offset + 1:032x}"] for row in came} == processed

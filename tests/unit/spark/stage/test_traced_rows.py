"""The spans of a stage's handler: current in each call, and linked to what has sent the row's record."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from opentelemetry.trace import get_current_span, set_span_in_context
from pyspark.sql.types import StringType

from headway import Context
from headway.core.retry import Retries, fixed_backoff
from headway.errors import ConfigError
from headway.parallel.batches import Batches
from headway.spark import parallel_map
from headway.spark.stage import running_calls
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.outcomes import outcome_columns
from headway.spark.stage.settings import RowHandler, Settings
from headway.spark.stage.task import Stage
from headway.tracing.carriers import carrying
from tests.exported_spans import Exported, attributes, ids

SETTINGS = Settings(
    key=(),
    max_concurrency=8,
    time_limit=None,
    retries=Retries(fixed_backoff(0.01), max_attempts=2),
    columns=outcome_columns(StringType(), later=False),
)
SCHEMA = pa.schema(
    {
        "value": pa.int32(),
        "topic": pa.string(),
        "level": pa.int32(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)


@pytest.fixture(autouse=True)
def no_call_is_left_behind() -> Iterator[None]:
    """Calls that were given up end with the test."""
    yield
    deadline = time.monotonic() + 30
    while running_calls.given_up or running_calls.left_behind:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows(exported: Exported, count: int) -> Iterator[pa.RecordBatch]:
    """Rows of records that were sent in spans of their own."""
    found = []
    for number in range(count):
        with exported.tracer.start_as_current_span(f"request {number}") as span:
            headers = carrying(None, set_span_in_context(span))
        found.append(
            {
                "value": number,
                "topic": "orders",
                "level": 2,
                "partition": 1,
                "offset": 100 + number,
                "timestamp": datetime.now(UTC),
                "headers": [{"key": name, "value": value} for name, value in headers],
            }
        )
    yield pa.RecordBatch.from_pylist(found, SCHEMA)


def results(handler: RowHandler, exported: Exported, count: int, **options: Any) -> dict[int, Any]:
    settings = replace(SETTINGS, tracing=exported.tracing(), **options)
    return {row["value"]: row for out in Stage(handler, settings).run(rows(exported, count)) for row in out.to_pylist()}


def current() -> str:
    span = get_current_span().get_span_context()
    return f"{span.trace_id:032x} {span.span_id:016x}"


def note(row: InputRow) -> str:
    time.sleep(0.001)
    return current()


async def note_async(row: InputRow) -> str:
    await asyncio.sleep(0.001)
    return current()


@pytest.mark.parametrize("handler", [note, note_async], ids=["threads", "async"])
def test_each_row_has_a_span_that_is_current_in_its_handler_and_linked_to_its_sender(handler: RowHandler) -> None:
    exported = Exported()
    came = results(handler, exported, 20)
    spans = {attributes(span)["messaging.kafka.offset"]: span for span in exported.spans("process orders-2")}
    assert len(spans) == 20
    for number, row in came.items():
        span = spans[100 + number]
        assert row["result"] == " ".join(ids(span))
        assert exported.links(span) == [f"request {number}"]
        assert attributes(span)["headway.record.origin"] == f"orders-2-1-{100 + number}"
    assert len(exported.spans("queued at level 2")) == 20


def test_failed_attempts_have_failed_spans_and_the_wait_for_the_next_attempt_has_one() -> None:
    exported = Exported()

    def fail_once(row: InputRow, context: Context) -> str:
        if context.attempt == 1:
            raise KeyError("no such customer")
        return "billed"

    assert results(fail_once, exported, 1)[0]["outcome"] == "ok"
    first, second = exported.spans("process orders-2")
    assert [attributes(span).get("error.type") for span in (first, second)] == ["KeyError", None]
    assert exported.parent(exported.one("retry after KeyError")) == "request 0"


def test_a_batch_of_rows_has_one_span_with_a_link_for_each() -> None:
    exported = Exported()

    def bill(batch: Sequence[InputRow]) -> list[str]:
        return [current()] * len(batch)

    came = results(bill, exported, 4, batches=Batches(4))
    [span] = exported.spans("process orders-2")
    assert {row["result"] for row in came.values()} == {" ".join(ids(span))}
    assert sorted(exported.links(span), key=str) == [f"request {number}" for number in range(4)]


def test_rows_that_come_from_no_topic_have_spans_too() -> None:
    exported = Exported()
    batch = pa.RecordBatch.from_pydict({"value": pa.array([1], pa.int32())})
    settings = replace(SETTINGS, tracing=exported.tracing())
    [[row]] = [out.to_pylist() for out in Stage(note, settings).run(iter([batch]))]
    assert row["outcome"] == "ok"
    assert "messaging.destination.name" not in attributes(exported.one("process"))


def test_a_provider_is_refused_because_it_cannot_be_sent_to_workers() -> None:
    class Frame:
        """Never looked at."""

    with pytest.raises(ConfigError, match="global provider of each worker in the lifespan"):
        parallel_map(Frame(), note, "string", key=None, tracing=Exported().tracing())  # type: ignore[arg-type]

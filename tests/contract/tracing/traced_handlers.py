"""Handlers that processes can import. Each note is the trace and the span that are current in the handler."""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from opentelemetry.trace import get_current_span

from headway import ConsumerRecord, Context, FatalError, ProducerRecord, RetryLater

NOTES = "HEADWAY_TEST_SPANS"
OUTPUTS = "HEADWAY_TEST_OUTPUTS"


def note(text: str) -> None:
    """Note the current span."""
    span = get_current_span().get_span_context()
    with open(os.environ[NOTES], "a", encoding="utf-8") as notes:
        notes.write(f"{text} {span.trace_id:032x} {span.span_id:016x}\n")


def fail_twice_then_produce(record: ConsumerRecord, context: Context) -> ProducerRecord:
    """Fail, fail for good, and when the record is sent again as a dead letter, succeed."""
    note(f"attempt-{context.attempt}")
    if record.origin.offset == record.offset and record.origin.partition == record.partition:
        raise TimeoutError("the bank is slow") if context.attempt == 1 else FatalError("the bank refuses")
    return ProducerRecord(os.environ[OUTPUTS], b"done")


async def fail_twice_then_produce_async(record: ConsumerRecord, context: Context) -> ProducerRecord:
    """Do the same on an event loop."""
    await asyncio.sleep(0)
    return fail_twice_then_produce(record, context)


def later_once(record: ConsumerRecord, context: Context) -> None:
    """Ask to come again later, once."""
    note(f"attempt-{context.attempt}")
    if context.attempt == 1:
        try:
            raise ConnectionError("lost")
        except ConnectionError:
            raise RetryLater(0.2)  # noqa: B904 - it is said of the error that is handled


def by_value(record: ConsumerRecord) -> Any:
    """Note the value, and do what it says."""
    value = (record.raw_value or b"").decode()
    note(value)
    if value == "raise":
        raise KeyError(value)
    if value == "sleep":
        time.sleep(30)
    if value == "die":
        os._exit(3)


async def by_value_async(record: ConsumerRecord) -> None:
    """Do the same on an event loop, where all handlers wait for each other's turns."""
    value = (record.raw_value or b"").decode()
    note(value)
    for _ in range(5):
        await asyncio.sleep(0.001)
    note(value)
    if value == "raise":
        raise KeyError(value)
    if value == "sleep":
        await asyncio.sleep(30)


def batch(records: Sequence[ConsumerRecord]) -> None:
    """Note a batch."""
    note(",".join((record.raw_value or b"").decode() for record in records))


def notes_in(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the text, the trace and the span of each note."""
    with open(path, encoding="utf-8") as notes:
        for line in notes:
            text, trace, span = line.split()
            yield text, trace, span

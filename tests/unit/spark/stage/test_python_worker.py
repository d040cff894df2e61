"""What a Python worker keeps over its tasks: handlers, and what a lifespan makes for them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from headway import Context
from headway.errors import LifespanError
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.python_worker import MOST_KEPT, end_all, kept, pickled
from headway.spark.stage.task import Stage
from tests.unit.spark.stage.test_later import SCHEMA, SETTINGS, record

told: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    told.clear()
    yield
    end_all()


def say(what: str) -> None:
    told.append(what)


def open_database() -> str:
    raise ConnectionError("there is no database")


@contextmanager
def plain() -> Iterator[str]:
    say("start")
    yield "shared"
    say("end")


@asynccontextmanager
async def on_the_loop() -> AsyncIterator[asyncio.AbstractEventLoop]:
    say("start")
    yield asyncio.get_running_loop()
    say("end")


def on_threads(row: InputRow, context: Context) -> int:
    assert context.state == "shared"
    return 1


async def awaited(row: InputRow, context: Context) -> int:
    assert context.state is asyncio.get_running_loop()
    return 1


def outcomes_of(form: bytes) -> set[str]:
    """Run a task as Spark does."""
    here = kept(form)
    rows = pa.RecordBatch.from_pylist([record(number, None) for number in range(20)], SCHEMA)
    done = Stage(here.handler, SETTINGS, here.shared).run(iter([rows]))
    return {row["outcome"] for batch in done for row in batch.to_pylist()}


@pytest.mark.parametrize(("handler", "lifespan"), [(on_threads, plain), (awaited, on_the_loop)])
def test_what_a_lifespan_yields_is_the_state_of_all_tasks_of_a_process_until_it_ends(
    handler: Any, lifespan: Any
) -> None:
    form = pickled(handler, lifespan)
    for _ in range(3):
        assert outcomes_of(form) == {"ok"}
    assert told == ["start"]
    end_all()
    end_all()
    assert told == ["start", "end"]


def test_a_lifespan_that_cannot_start_fails_its_task_with_a_sentence_and_starts_anew_with_the_next() -> None:
    @contextmanager
    def broken() -> Iterator[str]:
        say("start")
        yield open_database()

    form = pickled(on_threads, broken)
    for _ in range(2):
        with pytest.raises(LifespanError, match=r"broken failed at its start.*no database.*No row was handled\."):
            kept(form)
    assert told == ["start", "start"]


def test_a_lifespan_that_ends_by_itself_fails_the_task_that_runs() -> None:
    @asynccontextmanager
    async def short() -> AsyncIterator[asyncio.AbstractEventLoop]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            yield asyncio.get_running_loop()

    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise ConnectionError("the pool is gone")

    async def waits(row: InputRow, context: Context) -> int:
        await asyncio.sleep(30)
        return 1

    form = pickled(waits, short)
    with pytest.raises(LifespanError, match=r"short ended while records were handled.*Its task fails"):
        outcomes_of(form)
    with pytest.raises(LifespanError, match="short ended while records were handled"):
        outcomes_of(form)


def test_a_lifespan_that_fails_at_its_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @contextmanager
    def ends_badly() -> Iterator[str]:
        yield "shared"
        raise ConnectionError("it was closed already")

    assert outcomes_of(pickled(on_threads, ends_badly)) == {"ok"}
    end_all()
    assert "ends_badly failed at its end" in caplog.text
    assert "The results of all rows that are done have reached Spark." in caplog.text


def test_a_process_keeps_few_handlers_and_ends_what_the_oldest_shared() -> None:
    first = pickled(on_threads, plain)
    kept(first)
    for number in range(MOST_KEPT):
        kept(pickled(lambda row, number=number: number, None))
    assert told == ["start", "end"]

"""The async scheduler's own part: one scheduler is made for all tasks that need it, whoever of them is cancelled."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headway.delay import async_scheduler
from headway.delay.async_scheduler import AsyncScheduler
from headway.errors import KafkaError


class Made:
    """What stands for a scheduler, and counts: it takes until `goes_on` to make one."""

    goes_on: threading.Event
    all: list["Made"]
    refuses = False

    def __init__(self, config: Any, name: str, tracing: Any = None) -> None:
        self.is_closed = False
        self.all.append(self)
        assert self.goes_on.wait(30)
        if self.refuses:
            raise KafkaError("no broker")

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Made]]:
    monkeypatch.setattr(Made, "goes_on", threading.Event(), raising=False)
    monkeypatch.setattr(Made, "all", [], raising=False)
    monkeypatch.setattr(async_scheduler, "Scheduler", Made)
    yield Made
    Made.goes_on.set()


async def enter_and_be_cancelled(scheduler: AsyncScheduler, count: int) -> None:
    tasks = [asyncio.create_task(scheduler.__aenter__()) for _ in range(count)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
        assert (await asyncio.wait([task], timeout=30))[0]


async def test_a_scheduler_whose_making_was_cancelled_is_the_next_tasks_own(made: type[Made]) -> None:
    scheduler = AsyncScheduler({})
    await enter_and_be_cancelled(scheduler, 3)
    made.goes_on.set()
    async with scheduler:
        pass
    assert [each.is_closed for each in made.all] == [True]


async def test_a_scheduler_that_is_still_being_made_is_closed_too(made: type[Made]) -> None:
    scheduler = AsyncScheduler({})
    await enter_and_be_cancelled(scheduler, 1)
    made.goes_on.set()
    await scheduler.close()
    assert [each.is_closed for each in made.all] == [True]


async def test_a_scheduler_that_could_not_be_made_is_made_by_the_next_call(
    made: type[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.goes_on.set()
    monkeypatch.setattr(Made, "refuses", True)
    scheduler = AsyncScheduler({})
    for _ in range(2):
        with pytest.raises(KafkaError, match="no broker"):
            await scheduler.__aenter__()
    monkeypatch.setattr(Made, "refuses", False)
    async with scheduler:
        pass
    assert [each.is_closed for each in made.all] == [False, False, True]

"""The event loops of handlers: asyncio's with exact timers, and uvloop's where it is installed."""

import asyncio
import importlib
import sys
import time
from collections.abc import Callable

import pytest

from headway.runtime.handler_loops import handler_event_loop, precise_event_loop


async def shortest_sleep(seconds: float) -> float:
    async def sleep() -> float:
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        return time.perf_counter() - began

    return min([await sleep() for _ in range(1000)])


def test_a_handlers_sleep_is_not_rounded_up_to_a_millisecond() -> None:
    with asyncio.Runner(loop_factory=precise_event_loop) as runner:
        assert 0.0003 <= runner.run(shortest_sleep(0.0003)) < 0.001


@pytest.mark.parametrize("make", [precise_event_loop, handler_event_loop])
def test_what_other_threads_ask_for_still_wakes_the_loop_at_once(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def wait() -> float:
        loop = asyncio.get_running_loop()
        called = loop.create_future()
        await asyncio.to_thread(lambda: loop.call_soon_threadsafe(called.set_result, None))
        began = time.perf_counter()
        await asyncio.wait_for(called, 60)
        return time.perf_counter() - began

    with asyncio.Runner(loop_factory=make) as runner:
        assert runner.run(wait()) < 30


def test_handlers_run_in_uvloop_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.modules.get("uvloop") is None:  # tests/conftest.py has hidden it
        monkeypatch.delitem(sys.modules, "uvloop", raising=False)
    uvloop = importlib.import_module("uvloop")
    loop = handler_event_loop()
    loop.close()
    assert isinstance(loop, uvloop.Loop)
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as where it is not installed
    loop = handler_event_loop()
    loop.close()
    assert type(loop).__module__ == "asyncio.unix_events"

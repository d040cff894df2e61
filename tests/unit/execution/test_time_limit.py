"""Time limits of calls, without Kafka."""

import asyncio
import contextlib
import math
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway.errors import TimeLimitError
from headway.execution import time_limit
from headway.execution.time_limit import LimitedCall, ThreadLimit, limit_coroutine


@contextlib.contextmanager
def limited(call: Callable[[Any], Any], seconds: float = 0.05) -> Iterator[Callable[[Any], Any]]:
    limit = ThreadLimit(seconds)
    try:
        yield limit.limit(call)
    finally:
        limit.close()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def never_end(job: Any) -> None:
    while True:
        time.sleep(0.001)


# In threads


def test_a_call_that_ends_in_time_returns_and_raises_what_it_does() -> None:
    with limited(lambda job: job[0], 10) as call:
        assert call([1]) == 1
        with pytest.raises(IndexError):
            call([])


def test_python_code_is_interrupted_soon_after_its_limit() -> None:
    with limited(never_end) as call:
        begin = time.monotonic()
        with pytest.raises(TimeLimitError, match=r"did not end within its time limit of 0\.05 s"):
            call(())
        assert 0.05 <= time.monotonic() - begin < 5


def test_a_handler_that_takes_every_exception_for_its_own_is_interrupted_all_the_same() -> None:
    def swallow(job: Any) -> None:
        while True:
            with contextlib.suppress(Exception):
                never_end(job)

    with limited(swallow) as call, pytest.raises(TimeLimitError):
        call(())


def test_a_handler_that_swallows_the_interruption_itself_has_failed_when_it_returns() -> None:
    def swallow(job: Any) -> str:
        with contextlib.suppress(BaseException):
            never_end(job)
        return "all is well"

    with limited(swallow) as call:
        with pytest.raises(TimeLimitError):
            call(())
        with pytest.raises(TimeLimitError):  # the thread is as good as new
            call(())


def test_a_handler_that_goes_on_after_it_swallowed_an_interruption_is_interrupted_again() -> None:
    swallowed = []

    def swallow_twice(job: Any) -> None:
        for number in range(2):
            try:
                never_end(job)
            except BaseException:
                swallowed.append(number)
        never_end(job)

    with limited(swallow_twice) as call, pytest.raises(TimeLimitError):
        call(())
    assert swallowed == [0, 1]


def test_an_interruption_that_python_itself_drops_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: dropped.append(unraisable.exc_type))

    class Endless:
        def __del__(self) -> None:
            never_end(())

    def delete_and_never_end(job: Any) -> None:
        Endless()
        never_end(job)

    with limited(delete_and_never_end) as call, pytest.raises(TimeLimitError):
        call(())
    assert len(dropped) == 1


def test_what_the_handler_has_to_clean_up_is_cleaned_up() -> None:
    cleaned = []

    def clean_up(job: Any) -> None:
        try:
            never_end(job)
        finally:
            time.sleep(0.1)  # longer than the limit: once is enough
            cleaned.append(job)

    with limited(clean_up) as call, pytest.raises(TimeLimitError):
        call("a")
    assert cleaned == ["a"]


def test_a_call_that_does_not_come_back_to_python_fails_when_it_does() -> None:
    with limited(lambda job: time.sleep(0.5)) as call:
        begin = time.monotonic()
        with pytest.raises(TimeLimitError):
            call(())
        assert time.monotonic() - begin >= 0.5


def test_after_close_nothing_is_interrupted_and_nobody_watches() -> None:
    before = set(threading.enumerate())
    limit = ThreadLimit(0.05)
    [watcher] = set(threading.enumerate()) - before
    call = limit.limit(lambda job: [time.sleep(0.2), "done"])  # type: ignore[func-returns-value]
    limit.close()
    watcher.join(5)
    assert call(()) == [None, "done"]
    assert not watcher.is_alive()


def test_a_call_that_ends_while_it_is_about_to_be_interrupted_ends_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    raise_in_thread = time_limit.raise_in_thread

    def hesitate(thread: int, error: Any) -> None:
        if thread != threading.get_ident():
            while not limit.calls[thread].ended:
                time.sleep(0.001)
            time.sleep(0.02)
        raise_in_thread(thread, error)

    monkeypatch.setattr(time_limit, "raise_in_thread", hesitate)
    before = set(threading.enumerate())
    limit = ThreadLimit(0.05)
    [watcher] = set(threading.enumerate()) - before
    with pytest.raises(TimeLimitError):
        limit.limit(lambda job: time.sleep(0.1))(())
    limit.close()
    watcher.join(5)


def test_a_call_interrupted_just_before_it_says_that_it_has_ended_is_not_interrupted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = LimitedCall.end

    def interrupted_first(running: LimitedCall) -> None:
        running.interrupt(threading.get_ident())
        end(running)

    monkeypatch.setattr(LimitedCall, "end", interrupted_first)
    limit = ThreadLimit(1000)
    with pytest.raises(TimeLimitError):
        limit.limit(str)(())
    for thread, running in limit.calls.items():
        running.interrupt(thread)
        assert running.ended
    limit.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one may strike in a callback of `gc`
def test_thousands_of_calls_that_end_just_as_they_are_interrupted_never_are_outside_of_the_call(
    frequent_switches: None,
) -> None:
    calls = 5000
    limit, stop = ThreadLimit(1000), threading.Event()
    outcomes: list[Counter[str]] = []
    escaped: list[BaseException] = []
    chance = random.Random(1)

    def handle(job: Any) -> str:
        if job % 4 == 0:
            time.sleep(job % 100 / 1_000_000)
        with contextlib.suppress(Exception):
            for _ in range(job % 500):
                str(job)
        return "returned"

    def serve(seed: int) -> None:
        call: Callable[[Any], str] = limit.limit(handle)
        jobs = random.Random(seed)
        counts: Counter[str] = Counter()
        outcomes.append(counts)
        try:
            for _ in range(calls):
                try:
                    counts[call(jobs.randrange(10_000))] += 1
                except TimeLimitError:
                    counts["interrupted"] += 1
                for _ in range(20):  # where it must not strike
                    str(seed)
        except BaseException as error:
            escaped.append(error)

    def interrupt() -> None:  # as the watcher does, but at any time
        while not stop.is_set():
            for thread, running in list(limit.calls.items()):
                if running.deadline < math.inf:
                    running.interrupt(thread)
            time.sleep(chance.random() / 5000)

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    interrupter = threading.Thread(target=interrupt)
    for thread in (interrupter, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    interrupter.join()
    limit.close()
    assert not escaped
    assert [counts.total() for counts in outcomes] == [calls] * 4
    total = sum(outcomes, Counter())
    assert total["interrupted"] > 100
    assert total["returned"] > 100


# In an event loop


def in_loop(call: Callable[[Any], Any], seconds: float) -> Callable[[Any], Any]:
    return limit_coroutine(call, seconds)


async def test_a_coroutine_is_cancelled() -> None:
    cancelled = []

    async def wait(job: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(job)
            raise

    with pytest.raises(TimeLimitError, match=r"time limit of 0\.05 s"):
        await in_loop(wait, 0.05)("a")
    assert cancelled == ["a"]


async def test_a_coroutine_that_ends_in_time_returns_and_raises_what_it_does() -> None:
    async def give(job: Any) -> Any:
        if job is None:
            raise TimeoutError("its own")
        return job

    call = in_loop(give, 10)
    assert await call(1) == 1
    with pytest.raises(TimeoutError, match="its own"):
        await call(None)


@pytest.mark.parametrize("answer", ["returns", "raises"])
async def test_a_coroutine_that_swallows_the_cancellation_has_failed_all_the_same(answer: str) -> None:
    async def swallow(job: Any) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if answer == "raises":
                raise OSError("in its clean-up") from None
        return "all is well"

    with pytest.raises(TimeLimitError):
        await in_loop(swallow, 0.05)(())
    await asyncio.sleep(0)  # nothing is left of it


async def test_a_cancellation_from_elsewhere_is_not_a_time_limit() -> None:
    task = asyncio.create_task(in_loop(lambda job: asyncio.sleep(60), 30)(()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("waits", [0, 60])
async def test_a_coroutine_that_swallows_its_cancellation_and_goes_on_is_cancelled_again_and_again(waits: int) -> None:
    swallowed = list[Any]()

    async def swallow(job: Any) -> str:
        while len(swallowed) < 3:
            try:
                while True:
                    await asyncio.sleep(waits)
            except asyncio.CancelledError:
                swallowed.append(job)
        return "all is well"

    with pytest.raises(TimeLimitError):
        await asyncio.wait_for(in_loop(swallow, 0.02)("a"), 30)
    assert swallowed == ["a"] * 3
    assert not current_task().cancelling()


@pytest.mark.parametrize("how", ["except", "finally"])
async def test_a_coroutine_that_cleans_up_for_longer_than_its_limit_is_not_cancelled_again(how: str) -> None:
    cleaned_up = []

    async def clean_up() -> None:
        await asyncio.sleep(0.2)
        cleaned_up.append(how)

    async def wait(job: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if how == "except":
                await clean_up()
            raise
        finally:
            if how == "finally":
                await clean_up()

    with pytest.raises(TimeLimitError):
        await in_loop(wait, 0.02)(())
    assert cleaned_up == [how]


async def test_a_call_that_others_cancel_amid_its_time_limit_is_cancelled() -> None:
    cleaning_up = asyncio.Event()

    async def wait(job: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaning_up.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(in_loop(wait, 0.02)(()))
    await cleaning_up.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_time_outs_and_groups_of_a_handlers_own_work_within_its_time_limit() -> None:
    async def handle(job: Any) -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 0.01)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        return "done"

    assert await in_loop(handle, 30)(()) == "done"

    async def wait_in_a_group(job: Any) -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))

    with pytest.raises(TimeLimitError):
        await in_loop(wait_in_a_group, 0.02)(())


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task
    return task

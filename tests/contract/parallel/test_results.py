"""Results as a stream, plain and async, and runs within an event loop, on a real Apache Kafka."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headway import ConsumerRecord, Context, FatalError
from headway.errors import ClosedError, HandlerError
from headway.parallel.result_stream import Result, ResultStream
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import committed, consumer, plain_topic, send, wait_for
from tests.made import made_by

pytestmark = pytest.mark.kafka


def double(record: ConsumerRecord, context: Context) -> int:
    return 2 * int(record.value)


async def double_later(record: ConsumerRecord, context: Context) -> int:
    await asyncio.sleep(0.001)
    return 2 * int(record.value)


async def taken_async(results: ResultStream[Result], enough: Callable[[Result], bool]) -> list[Result]:
    """The results, up to the one that is enough, where it leaves."""
    taken = []
    async with contextlib.aclosing(aiter(results)) as each_result:  # type: ignore[type-var]
        async for result in each_result:
            taken.append(result)
            if enough(result):
                break
    return taken


def taken_plain(results: ResultStream[Result], enough: Callable[[Result], bool]) -> list[Result]:
    """As `taken_async`."""
    taken = []
    for result in results:
        taken.append(result)
        if enough(result):
            break
    return taken


def taken(
    way: str, results: ResultStream[Result], enough: Callable[[Result], bool] = lambda result: False
) -> list[Result]:
    if way == "for":
        return taken_plain(results, enough)
    return asyncio.run(taken_async(results, enough))


@pytest.mark.parametrize("handler", [double, double_later])
@pytest.mark.parametrize("way", ["for", "async for"])
def test_all_results_come_and_stopping_ends_the_iteration_after_the_last(
    kafka_cluster: Cluster, way: str, handler: Callable[..., Any]
) -> None:
    topic, count = plain_topic(kafka_cluster), 500
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    parallel = consumer(kafka_cluster, topic)
    seen: set[bytes] = set()

    def stop_after_all(result: Result) -> bool:
        assert result.value == 2 * int(result.record.value)
        seen.add(result.record.value)
        if len(seen) == count:
            parallel.stop()
        return False

    assert len(taken(way, parallel.results(handler), stop_after_all)) == count
    assert len(seen) == count
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count


@pytest.mark.parametrize("way", ["for", "async for"])
def test_what_waits_when_it_drains_is_still_handed_out(kafka_cluster: Cluster, way: str) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(20)], partition=0)
    parallel = consumer(kafka_cluster, topic, {"max_concurrency": 4})
    stopped = threading.Event()

    def stop_with_results_waiting(result: Result) -> bool:
        if not stopped.is_set():
            wait_for(lambda: parallel.metrics().running == 4)
            parallel.stop()
            stopped.set()
        return False

    assert len(taken(way, parallel.results(double), stop_with_results_waiting)) == 4
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == 4


@pytest.mark.parametrize("way", ["for", "async for"])
def test_while_nobody_takes_results_no_more_handlers_are_called_than_there_are_slots(
    kafka_cluster: Cluster, way: str
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(200)])
    called: list[bytes] = []
    with made_by("headway.parallel.control_loop.Commits") as made:
        parallel = consumer(kafka_cluster, topic, {"max_concurrency": 5})
    [commits] = made
    at_each: list[int] = []

    def note(record: ConsumerRecord, context: Context) -> None:
        called.append(record.value)

    def look(result: Result) -> bool:
        wait_for(lambda: len(called) >= len(at_each) + 5)
        parallel.request_commit()
        wait_for(lambda: commits.next_time(0.0) > 0)  # the control thread has run a round
        at_each.append(len(called))
        return len(at_each) == 10

    taken(way, parallel.results(note), look)
    assert at_each == [5 + i for i in range(10)]


@pytest.mark.quick("for")
@pytest.mark.parametrize("way", ["for", "async for"])
def test_leaving_the_iteration_commits_what_was_taken_before_and_the_others_come_again(
    kafka_cluster: Cluster, way: str
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(10)], partition=0)
    first = consumer(kafka_cluster, topic)
    values = [result.value for result in taken(way, first.results(double), lambda result: result.value == 8)]
    assert values == [0, 2, 4, 6, 8]
    assert committed(kafka_cluster, topic) == {0: (4, b"")}
    with pytest.raises(ClosedError):
        first.pause()
    second = consumer(kafka_cluster, topic)
    values = [result.value for result in taken(way, second.results(double), lambda result: result.value == 18)]
    assert values == [8, 10, 12, 14, 16, 18]


@pytest.mark.parametrize("way", ["for", "async for"])
def test_what_ends_the_run_comes_out_of_the_iteration(kafka_cluster: Cluster, way: str) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(10)], partition=0)

    def refuse(record: ConsumerRecord, context: Context) -> int:
        if record.offset == 5:
            raise FatalError("no use")
        return record.offset

    parallel = consumer(kafka_cluster, topic)
    offsets = []
    with pytest.raises(HandlerError, match="no use"):
        taken(way, parallel.results(refuse), lambda result: bool(offsets.append(result.value)))  # type: ignore[func-returns-value]
    assert offsets == [0, 1, 2, 3, 4]
    assert isinstance(parallel.failure, HandlerError)
    assert committed(kafka_cluster, topic) == {0: (5, b"")}


def test_an_error_of_the_callers_own_leaves_its_record_undone(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(10)], partition=0)
    with pytest.raises(OSError, match="no disk"):  # noqa: SIM117, PT012
        with consumer(kafka_cluster, topic) as parallel:
            for result in parallel.results(double):
                if result.value == 6:
                    raise OSError("no disk")
    assert committed(kafka_cluster, topic) == {0: (3, b"")}


def test_without_draining_what_was_not_taken_is_not_handed_out_any_more(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(10)], partition=0)
    parallel = consumer(kafka_cluster, topic)

    def close_now(result: Result) -> bool:
        wait_for(lambda: parallel.metrics().running == 10)
        parallel.close(drain=False)
        return False

    assert len(taken("for", parallel.results(double), close_now)) == 1
    assert committed(kafka_cluster, topic) == {}


# Within an event loop


async def test_run_async_is_a_task_of_the_running_loop_and_ends_when_it_is_stopped(kafka_cluster: Cluster) -> None:
    topic, count = plain_topic(kafka_cluster), 200
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    loops, handled = set(), []
    async with consumer(kafka_cluster, topic) as parallel:

        async def handle(record: ConsumerRecord, context: Context) -> None:
            await asyncio.sleep(0.001)
            loops.add(asyncio.get_running_loop())
            handled.append(record.value)
            if len(handled) == count:
                parallel.stop()

        await parallel.run_async(handle)
    assert loops == {asyncio.get_running_loop()}
    assert len(handled) == len(set(handled)) == count
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count


async def test_cancelling_run_async_cancels_its_handlers_and_commits_what_is_done(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "quick"), ("b", "stuck")], partition=0)
    quick, stuck = asyncio.Event(), asyncio.Event()
    cancelled: list[bytes] = []
    parallel = consumer(kafka_cluster, topic)

    async def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"quick":
            quick.set()
            return
        try:
            stuck.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # cleaning up takes its time
            cancelled.append(record.value)

    running = asyncio.create_task(parallel.run_async(handle))
    await quick.wait()
    await stuck.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled == [b"stuck"]
    assert committed(kafka_cluster, topic) == {0: (1, b"")}
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_an_async_with_block_that_is_left_ends_a_run_in_a_task(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")], partition=0)
    handled = asyncio.Event()

    async def handle(record: ConsumerRecord, context: Context) -> None:
        handled.set()

    async with consumer(kafka_cluster, topic) as parallel:
        running = asyncio.create_task(parallel.run_async(handle))
        await handled.wait()
    await running
    assert committed(kafka_cluster, topic) == {0: (1, b"")}


async def test_run_async_takes_no_thread_of_the_loops_own(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    parallel = consumer(kafka_cluster, topic)

    async def handle(record: ConsumerRecord, context: Context) -> None:
        await asyncio.to_thread(parallel.stop)

    await asyncio.wait_for(parallel.run_async(handle), 15)


async def test_run_async_raises_what_ended_the_run(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")], partition=0)

    async def refuse(record: ConsumerRecord, context: Context) -> None:
        raise FatalError("no use")

    with pytest.raises(HandlerError):
        await consumer(kafka_cluster, topic).run_async(refuse)


# Signals


PROGRAM = """
import sys
from headway import ParallelConsumer

servers, topic = sys.argv[1:]

def handle(record, context):
    return record.offset

config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
with ParallelConsumer(config) as consumer:
    consumer.subscribe(topic)
    for record, value in consumer.results(handle):
        print(value, flush=True)
"""


@contextlib.contextmanager
def started(cluster: Cluster, topic: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, cluster.bootstrap_servers, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT], ids=["terminate", "ctrl-c"])
def test_a_signal_ends_the_iteration_and_what_was_taken_is_committed(kafka_cluster: Cluster, end: int) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(10)], partition=0)
    with started(kafka_cluster, topic) as process:
        assert process.stdout
        assert [int(process.stdout.readline()) for _ in range(10)] == list(range(10))
        process.send_signal(end)
        _, error = process.communicate(timeout=20)
    assert (process.returncode == 0) == (end == signal.SIGTERM)
    assert ("KeyboardInterrupt" in error) == (end == signal.SIGINT)
    # The caller asks for the next one, and with that the last is done, a moment after it is printed.
    assert committed(kafka_cluster, topic) in ({0: (10, b"")}, {0: (9, b"")})

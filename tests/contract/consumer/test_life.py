"""A consumer that is closed, or that was made before its process was forked, says so at once, whatever it is asked."""

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headway import ParallelConsumer, PriorityConsumer, TopicPartition
from headway.errors import ClosedError, ConfigError
from headway.kafka.binding import capi
from headway.priority.async_consumer import AsyncPriorityConsumer

CONFIG: dict[str, Any] = {
    "bootstrap.servers": "127.0.0.1:1",
    "log_level": 0,
    "group.id": "g",
    "levels": 1,
    "max.poll.records": 10,
}
PLACE = TopicPartition("orders", partition=0, level=0)

CALLS: dict[str, Callable[[Any], Any]] = {
    "subscribe": lambda reads: reads.subscribe("orders"),
    "unsubscribe": lambda reads: reads.unsubscribe(),
    "poll": lambda reads: reads.poll(0),
    "consume_arrow": lambda reads: reads.consume_arrow(1, 0),
    "next": next,
    "commit": lambda reads: reads.commit(),
    "committed": lambda reads: reads.committed([PLACE]),
    "position": lambda reads: reads.position(PLACE),
    "seek": lambda reads: reads.seek(PLACE, 0),
    "seek_to_beginning": lambda reads: reads.seek_to_beginning(),
    "seek_to_end": lambda reads: reads.seek_to_end(),
    "pause": lambda reads: reads.pause(),
    "resume": lambda reads: reads.resume(),
    "offsets_for_times": lambda reads: reads.offsets_for_times({PLACE: 0}),
    "beginning_offsets": lambda reads: reads.beginning_offsets([PLACE]),
    "end_offsets": lambda reads: reads.end_offsets([PLACE]),
    "partitions_for": lambda reads: reads.partitions_for("orders"),
    "list_topics": lambda reads: reads.list_topics(),
    "transaction_offsets": lambda reads: reads.transaction_offsets(),
    "with": lambda reads: reads.__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_consumer_says_so_whatever_it_is_asked(call: str) -> None:
    closed = PriorityConsumer(CONFIG)
    closed.close()
    with pytest.raises(ClosedError, match="The consumer is closed"):
        CALLS[call](closed)
    closed.close()


FORK = """
    import os, signal
    from headway import PriorityConsumer
    from headway.errors import ClosedError
    from tests.contract.consumer.test_life import CALLS, CONFIG

    signal.alarm(60)
    reads = PriorityConsumer(CONFIG)
    reads.subscribe("orders")
    child = os.fork()
    if not child:
        signal.alarm(30)
        for name, call in CALLS.items():
            try:
                call(reads)
            except ClosedError as error:
                assert "created before the process was forked" in str(error), name
            else:
                raise AssertionError(name)
        reads.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    reads.poll(0)
    reads.close()
    print("it went on")
"""


def test_in_a_forked_process_a_consumer_is_an_error_at_once() -> None:
    program = [sys.executable, "-c", textwrap.dedent(FORK)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=90, check=False)
    assert ended.stdout == "it went on\n", ended.stderr


def test_what_wakes_a_consumer_that_was_let_go_of_unclosed_is_not_closed_before_librdkafka_has_let_go_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go, real = list[int](), capi.wake_on_events

    def wake_on_events(client: Any, fd: int | None) -> None:
        real(client, fd)
        if fd is None:
            let_go.extend(fds)
            for each in fds:
                os.fstat(each)  # still open

    monkeypatch.setattr(capi, "wake_on_events", wake_on_events)
    reads = PriorityConsumer(CONFIG)
    reads.subscribe("orders")
    reads.poll(0)
    fds = [reads.wake.fd]
    del reads
    gc.collect()
    assert let_go == fds
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fds[0])


async def _awaited(answer: Awaitable[None]) -> None:
    await answer


@pytest.mark.parametrize("make", [lambda: PriorityConsumer(CONFIG), lambda: AsyncPriorityConsumer(CONFIG)])
def test_topics_may_come_from_a_generator_or_a_set_and_are_read_once(make: Callable[[], Any]) -> None:
    reads = make()
    reads.subscribe(topic for topic in ("orders", "clicks"))
    assert reads.subscription() == ["orders", "clicks"]
    given = {"orders-0": 0}
    reads.subscribe(given)
    given["clicks"] = 0
    assert reads.subscription() == {"orders-0": 0}
    for nonsense in (7, None, ["orders", 7], {None: 0}):
        with pytest.raises(ConfigError, match="subscribe to"):
            reads.subscribe(nonsense)
    closing = reads.close()
    if inspect.isawaitable(closing):
        asyncio.run(_awaited(closing))


def test_a_parallel_consumers_topics_may_come_from_a_generator() -> None:
    with ParallelConsumer({name: value for name, value in CONFIG.items() if name != "max.poll.records"}) as parallel:
        parallel.subscribe(topic for topic in ("orders",))
        with pytest.raises(ConfigError, match="A topic must be a name, given as a string"):
            parallel.subscribe([b"orders"])  # type: ignore[list-item]

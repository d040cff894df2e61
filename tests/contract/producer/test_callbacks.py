"""What callbacks and serialisers of a producer may do without ending more than their own record."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headway import Producer
from headway.errors import HeadwayError, SerializationError
from tests.contract.conftest import Cluster

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
ENDS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit]


@contextmanager
def producer(**settings: Any) -> Iterator[Producer]:
    """A producer that reaches nobody."""
    sends = Producer(NOWHERE | settings)
    try:
        yield sends
    finally:
        sends.close(0)


def give_up(sends: Producer) -> None:
    """Have all that librdkafka has reported as failed."""
    sends.sender.client.producer.purge()


def leave_reports_to_callers(sends: Producer) -> None:
    """Have no thread of its own take reports any more."""

    async def enter_and_leave() -> None:
        sends.sender.client.reports.serve_in(asyncio.get_running_loop())
        sends.sender.client.reports.leave_loop()

    asyncio.run(enter_and_leave())


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("where", ["on_delivery", "add_done_callback", "after_reports"])
def test_what_a_callback_raises_ends_no_thread(
    where: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def end(*_: object) -> None:
        if not ended.is_set():
            ended.set()
            raise kind("of the callback")

    ended, told = threading.Event(), threading.Event()
    before = set(threading.enumerate())
    sends = Producer(NOWHERE, after_reports=end if where == "after_reports" else lambda: None)
    [takes_reports] = [each for each in set(threading.enumerate()) - before if "delivery-reports" in each.name]
    try:
        first = sends.send("orders", b"x", on_delivery=end if where == "on_delivery" else lambda *_: None)
        if where == "add_done_callback":
            first.add_done_callback(end)
        give_up(sends)
        assert ended.wait(10)
        sends.send("orders", b"x", on_delivery=lambda *_: told.set())
        give_up(sends)
        assert told.wait(10)
        assert takes_reports.is_alive()
    finally:
        sends.close(0)
    assert "raised" in caplog.text


@pytest.mark.parametrize("kind", ENDS)
def test_what_a_serialiser_raises_fails_its_own_record_only(mock_cluster: Cluster, kind: type[BaseException]) -> None:
    topic = mock_cluster.topic()

    def serialise(value: bytes) -> bytes:
        if value == b"bad":
            raise kind("of the serialiser")
        return value

    with mock_cluster.producer(**{"value.serializer": serialise}) as sends:
        bad = [sends.send(topic, b"bad", on_delivery=lambda *_: None) for _ in range(2)]
        good = sends.send(topic, b"good")
        for each in bad:
            with pytest.raises(SerializationError, match="could not be serialised"):
                each.result(30)
        good.result(30)
        assert sends.flush(30) == 0


def close_within(sends: Producer, outcomes: list[object], done: threading.Event) -> Callable[..., None]:
    """A callback that closes, and keeps what comes of it."""

    def close(*_: object) -> None:
        try:
            outcomes.append(sends.close(5))
        except BaseException as error:
            outcomes.append(error)
        done.set()

    return close


@pytest.mark.parametrize("by", ["its thread", "flush"])
def test_a_close_within_a_report_is_refused_and_the_producer_stays_open(by: str) -> None:
    outcomes, done = list[object](), threading.Event()
    with producer() as sends:
        sends.send("orders", b"x", on_delivery=close_within(sends, outcomes, done))
        if by == "flush":
            leave_reports_to_callers(sends)
            give_up(sends)
            sends.sender.client.reports.serve(1)
        else:
            give_up(sends)
        assert done.wait(10)
        [refused] = outcomes
        assert isinstance(refused, HeadwayError)
        assert "close() was called in a callback of this producer" in str(refused)
        sends.send("orders", b"x", on_delivery=lambda *_: None)
        give_up(sends)
        assert sends.flush(10) == 0


def test_a_callback_on_the_senders_thread_neither_closes_nor_waits(mock_cluster: Cluster) -> None:
    topic, outcomes, done = mock_cluster.topic(), list[object](), threading.Event()

    def fail(value: bytes) -> bytes:
        if value == b"bad":
            raise ValueError(value)
        return value

    with mock_cluster.producer(**{"value.serializer": fail}) as sends:
        close = close_within(sends, outcomes, done)

        def flush_and_close(*_: object) -> None:
            sends.send(topic, b"waits for this thread", on_delivery=lambda *_: None)
            outcomes.append(sends.flush())
            close()

        sends.send(topic, b"bad", on_delivery=flush_and_close)
        assert done.wait(30)
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], HeadwayError)


def test_a_callback_of_a_close_may_close_again() -> None:
    outcomes, done = list[object](), threading.Event()
    sends = Producer(NOWHERE)
    sends.send("orders", b"x", on_delivery=close_within(sends, outcomes, done))
    assert sends.close(0) == 1
    assert outcomes == [0]

import asyncio
import concurrent.futures
import threading
from typing import Any

import confluent_kafka as ck
import pytest

from headway.errors import DeliveryError
from headway.kafka.producer.delivery import DeliveryFuture, Destination
from headway.records.record_types import RecordMetadata


class Delivered:
    def partition(self) -> int:
        return 4

    def offset(self) -> int:
        return 42

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def latency(self) -> float:
        return 0.25


def _result_after(start: threading.Barrier, future: DeliveryFuture) -> RecordMetadata:
    start.wait()
    return future.result(10)


TIMED_OUT = ck.KafkaError(ck.KafkaError._MSG_TIMED_OUT, "message timed out")
METADATA = RecordMetadata("orders", partition=4, level=2, offset=42, timestamp=1_000)


class Client:
    """A client that knows nothing; another thread takes its reports."""

    is_idempotent = False

    def serve_until(self, done: object, timeout: float | None) -> None: ...

    def missing_permission(self, error: ck.KafkaError, topic: str) -> None: ...

    def is_missing(self, topic: str) -> bool:
        return False

    def because(self) -> str:
        return ""

    def reason_of(self, error: ck.KafkaError) -> str:
        return error.str()


CLIENT: Any = Client()


def a_future() -> DeliveryFuture:
    return DeliveryFuture.of(Destination("orders", 2, "orders-2", CLIENT), None)


def test_it_resolves_to_where_the_record_is() -> None:
    future = a_future()
    assert not future.done()
    future(None, Delivered())
    assert future.done()
    assert future.result() == METADATA
    assert future.exception() is None


def test_it_raises_what_kafka_said(caplog: pytest.LogCaptureFixture) -> None:
    future = a_future()
    future(TIMED_OUT, Delivered())
    with pytest.raises(DeliveryError, match="orders at level 2 was not delivered: message timed out"):
        future.result()
    assert "message timed out" in caplog.text


def test_a_waiter_that_came_first_is_woken() -> None:
    future = a_future()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(future.result, 10)
        future(None, Delivered())
        assert waiting.result(10) == METADATA


def test_no_waiter_misses_the_result_however_the_threads_interleave() -> None:
    for _ in range(2_000):
        future = a_future()
        start = threading.Barrier(2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(_result_after, start, future)
            start.wait()
            future(None, Delivered())
            assert waiting.result(10) == METADATA


def test_a_time_out_is_the_standard_one() -> None:
    with pytest.raises(TimeoutError):
        a_future().result(0)


def test_callbacks_run_once_whether_added_before_or_after() -> None:
    future, calls = a_future(), list[str]()
    future.add_done_callback(lambda _: calls.append("before"))
    future(None, Delivered())
    future.add_done_callback(lambda _: calls.append("after"))
    assert calls == ["before", "after"]


def test_the_standard_waits_work() -> None:
    futures = [a_future() for _ in range(3)]
    futures[0](None, Delivered())
    done, pending = concurrent.futures.wait(futures, timeout=0)
    assert (len(done), len(pending)) == (1, 2)
    for future in futures[1:]:
        future(None, Delivered())
    assert {future.result() for future in concurrent.futures.as_completed(futures)} == {METADATA}


async def test_it_can_be_awaited_through_asyncio() -> None:
    future = a_future()
    wrapped = asyncio.wrap_future(future)
    threading.Thread(target=future, args=(None, Delivered())).start()
    assert await wrapped == METADATA


def test_it_cannot_be_cancelled() -> None:
    future = a_future()
    assert not future.cancel()
    assert not future.cancelled()


def test_a_callback_that_raises_is_logged_and_the_future_resolves(caplog: pytest.LogCaptureFixture) -> None:
    def on_delivery(error: Exception | None, metadata: RecordMetadata | None) -> None:
        raise ValueError("a mistake")

    future = DeliveryFuture.of(Destination("orders", 0, "orders-0", CLIENT), on_delivery)
    future(None, Delivered())
    assert future.result().offset == 42
    assert "a mistake" in caplog.text


def test_the_callback_is_told_where_the_record_is() -> None:
    told: list[object] = []
    future = DeliveryFuture.of(Destination("orders", 2, "orders-2", CLIENT), lambda *args: told.append(args))
    future(None, Delivered())
    assert told == [(None, METADATA)]


def test_who_waits_for_what_was_sent_is_not_kept_by_what_is_sent_meanwhile() -> None:
    destination = Destination("orders", 2, "orders-2", CLIENT)
    assert destination.unfinished() == []
    before = destination.tally
    before.sent += 2
    [waited_for] = destination.unfinished()
    assert waited_for is before
    destination.tally.sent += 1
    assert waited_for.under_way == 2
    before.delivered += 1
    before.count_failure(DeliveryError("no"))
    assert waited_for.under_way == 0


def test_no_count_is_lost_when_a_new_tally_begins() -> None:
    destination = Destination("orders", 2, "orders-2", CLIENT)
    for number in range(1, 4):
        tally = destination.tally
        tally.sent += number
        assert destination.unfinished()[-1] is tally
        tally.delivered += number - 1
        tally.count_failure(DeliveryError("no"))
    destination.count_unsent()
    counts = destination.counts()
    assert (counts.sent, counts.delivered, counts.failed) == (7, 3, 3)
    assert [each.under_way for each in destination.unfinished()] == [1]

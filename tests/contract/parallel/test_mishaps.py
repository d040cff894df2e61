"""What goes wrong around a parallel consumer costs those whom it befalls and nobody else. On librdkafka's mock."""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, Context, FatalError, Ordering, Origin, ParallelConsumer, Retries, RetryLater
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.errors import HandlerError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.kafka.consumer.membership import Membership
from headway.kafka.consumer.start_questions import StartOffset
from headway.parallel.delayed_retries import DelayedRetries, ScheduleReports
from headway.records.record_types import TopicPartition
from tests.contract.mock_brokers import MockBrokers, mock_brokers
from tests.contract.parallel.members import wait_for
from tests.made import made_by
from tests.odd_headers import LATIN_1, send_with_headers
from tests.plain_python import plain_python


@pytest.fixture
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as brokers:
        brokers.create("orders")
        yield brokers


def send(brokers: MockBrokers, count: int, partitions: int = 4) -> None:
    producer = ck.Producer({"log_level": 0, "bootstrap.servers": brokers.bootstrap_servers})
    for number in range(count):
        producer.produce("orders", str(number), str(number), partition=number % partitions)
    assert producer.flush(30) == 0
    producer.close()


def consumer(brokers: MockBrokers, **options: Any) -> ParallelConsumer:
    config = {"bootstrap.servers": brokers.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    parallel = ParallelConsumer(config | {"log_level": 0}, **options)
    parallel.subscribe("orders")
    return parallel


def dead_letters(brokers: MockBrokers, seconds: float) -> list[ck.Message]:
    reader = ck.Consumer({"log_level": 0, "bootstrap.servers": brokers.bootstrap_servers, "group.id": "dead"})
    reader.assign([ck.TopicPartition("dead", partition, 0) for partition in range(4)])
    found = [message for message in reader.consume(9, seconds) if not message.error()]
    reader.close()
    return found


def test_a_partition_without_a_leader_begins_when_it_has_one_and_holds_up_no_other(brokers: MockBrokers) -> None:
    send(brokers, 40)
    client = ck.Consumer({"log_level": 0, "bootstrap.servers": brokers.bootstrap_servers, "group.id": "g"})
    done_above_a_gap = encode(OffsetMap(0, (1, 2))).encode()
    assert not capi.PendingCommit(client, {("orders", 0): (0, done_above_a_gap)}).refused(30)
    client.close()
    brokers.lead("orders", 0)
    handled = Counter[int]()
    with consumer(brokers) as parallel:
        running = threading.Thread(target=parallel.run, args=(lambda record, _: handled.update([record.partition]),))
        running.start()
        wait_for(lambda: [handled[partition] for partition in range(4)] == [0, 10, 10, 10])
        brokers.lead("orders", 0, 1)
        wait_for(lambda: handled[0] == 10 - 2 or handled[0] == 10)  # from the map, or where its end was not known
        parallel.stop()
        running.join()


@plain_python
@pytest.mark.slow
def test_while_one_level_is_handed_over_the_others_go_on(brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [f"orders-{level}" for level in range(2)]
    for topic in topics:
        brokers.create(topic)
    producer = ck.Producer({"log_level": 0, "bootstrap.servers": brokers.bootstrap_servers, "linger.ms": 0})
    for partition in range(4):
        producer.produce("orders-0", b"v", partition=partition)
    began, goes_on, high = threading.Barrier(5), threading.Event(), list[int]()

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.level == 0 and not goes_on.is_set():
            began.wait(30)
            goes_on.wait(60)
        elif record.level == 1:
            high.append(record.offset)

    config = {"bootstrap.servers": brokers.bootstrap_servers, "auto.offset.reset": "earliest", "log_level": 0}
    with made_by("headway.parallel.consumer.Dispatch") as made:
        parallel = ParallelConsumer(config | {"group.id": "g", "levels": 2}, hand_over_timeout=60.0)
    with parallel:
        parallel.subscribe("orders")
        running = threading.Thread(target=parallel.run, args=(handle,))
        running.start()
        began.wait(30)
        joining = ck.Consumer({"log_level": 0, **config | {"group.id": "g-0"}})
        joining.subscribe(["orders-0"])
        engine, handing_over = made[0].engine, threading.Event()
        retire = engine.retire

        def note(partitions: Any) -> None:
            handing_over.set()
            retire(partitions)

        monkeypatch.setattr(engine, "retire", note)
        while not handing_over.is_set():
            joining.poll(0.1)
        while len(high) < 5:  # one after the other: each has to be fetched
            there = len(high)
            producer.produce("orders-1", b"v", partition=there % 4)
            producer.flush(10)
            wait_for(lambda: len(high) > there)  # noqa: B023
        goes_on.set()
        parallel.stop(drain=False)
        running.join()
        joining.close()
    producer.close()


def test_handlers_that_end_with_their_loop_have_not_failed(brokers: MockBrokers) -> None:
    brokers.create("dead")
    send(brokers, 8)
    parallel = consumer(brokers, retries=Retries(max_attempts=1), dead_letter_topic="dead", max_concurrency=4)
    started = list[int]()

    async def handle(record: ConsumerRecord, context: Context) -> None:
        started.append(record.offset)
        await asyncio.Event().wait()

    async def main() -> None:
        running = asyncio.create_task(parallel.run_async(handle))
        while len(started) < 4:
            await asyncio.sleep(0.01)
        assert not running.done()  # and `asyncio.run` cancels it along with its handlers

    asyncio.run(main())
    assert parallel.metrics().failed == 0
    assert dead_letters(brokers, 1) == []


def test_a_handler_that_cancels_itself_has_failed_and_the_others_go_on(brokers: MockBrokers) -> None:
    send(brokers, 8)
    done = list[int]()

    async def handle(record: ConsumerRecord, context: Context) -> None:
        if context.attempt == 1:
            raise asyncio.CancelledError
        done.append(record.offset)

    with consumer(brokers, retries=Retries(lambda *_: 0.01)) as parallel:
        running = threading.Thread(target=parallel.run, args=(handle,))
        running.start()
        wait_for(lambda: len(done) == 8)
        parallel.stop()
        running.join()


def test_the_last_record_that_fails_for_good_ends_a_run_that_is_stopping_too(brokers: MockBrokers) -> None:
    send(brokers, 1)
    began, goes_on = threading.Event(), threading.Event()

    def handle(record: ConsumerRecord, context: Context) -> None:
        began.set()
        goes_on.wait(30)
        raise FatalError("never")

    with consumer(brokers) as parallel:

        def stop() -> None:
            began.wait(30)
            parallel.stop(drain=True)
            goes_on.set()

        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(HandlerError, match="never"):
            parallel.run(handle)
        stopping.join()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_header_whose_name_is_not_utf_8_is_left_out_and_its_record_handled(
    brokers: MockBrokers, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.create("dead")
    for _ in range(3):
        send_with_headers(brokers.bootstrap_servers, "orders", [(LATIN_1, b"x")], b"bad")
    send(brokers, 40, partitions=1)
    handled = list[Any]()

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"bad":
            raise FatalError("no")
        handled.append(record.headers)

    async def handle_in_a_loop(record: ConsumerRecord, context: Context) -> None:
        handle(record, context)

    options: dict[str, Any] = {"ordering": Ordering.UNORDERED, "max_concurrency": 2, "dead_letter_topic": "dead"}
    with consumer(brokers, **options) as parallel:
        running = threading.Thread(target=parallel.run, args=(handle if kind == "thread" else handle_in_a_loop,))
        running.start()
        wait_for(lambda: len(handled) == 40 and parallel.metrics().dead_letters == 3)
        parallel.stop()
        running.join()
    assert len(dead_letters(brokers, 5)) == 3
    assert sum("has a header whose name is not UTF-8" in message for message in caplog.messages) == 3


def test_records_to_be_tried_later_wait_no_longer_than_closing_may_take(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}", "log_level": 0}
        later = DelayedRetries(address, "group", "headway-delay", create_autospec(ScheduleReports, instance=True))
        record = SimpleNamespace(
            raw_key=b"k", raw_value=b"v", kafka_topic="orders", headers=(), partition=0, timestamp=1
        )
        record.origin = Origin("orders", 0, 0)
        work: Any = SimpleNamespace(record=record, failure=None, number=1, untried=0)
        for _ in range(5):
            later.send(work, RetryLater(60.0), 60.0)
        began = time.monotonic()
        later.close(0.1)
        assert time.monotonic() - began < 2


Refusal = tuple[dict[str, Any], str]

REFUSED: list[Refusal] = [
    ({"ordering": "keys"}, "ordering is 'keys'; choose one of"),
    ({"max_concurrency": 2.5}, "max_concurrency is 2.5; it must be a whole number"),
    ({"hand_over_timeout": -5}, "hand_over_timeout is -5; it must be at least 0"),
    ({"rate_limit": float("inf")}, "rate_limit is inf; it must be above 0 and finite"),
    ({"expires_after": 1e306}, "expires_after is 1e\\+306; it must be a number of seconds"),
    ({"policy": "capacity_burst", "adaptive": True}, "With adaptive=True, fewer than max_concurrency handlers"),
    ({"policy": "capacity_burst", "rate_limit": 9.0}, "With rate_limit=9.0, fewer than max_concurrency handlers"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_an_option_that_cannot_be_kept_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        ParallelConsumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "levels": 3}, **options)


RUNS: list[Callable[[ParallelConsumer], Any]] = [
    lambda parallel: parallel.run(lambda record, context: None),
    lambda parallel: list(parallel.results(lambda record, context: None)),
]


@pytest.mark.parametrize("run", RUNS)
def test_without_a_topic_nothing_runs(run: Callable[[ParallelConsumer], Any]) -> None:
    with (
        ParallelConsumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}) as parallel,
        pytest.raises(Exception, match="has no topics to read"),
    ):
        run(parallel)


def test_a_partition_that_cannot_be_sought_when_it_begins_begins_later_and_loses_nothing(
    brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(brokers, 40)
    handled, failures, came, came_before = Counter[tuple[int, int]](), Counter[str](), set[int](), set[int]()
    start_of, seek = Membership.start_of, LevelConsumer.seek

    def noting(fetch: Callable[[LevelConsumer, int, int, float], Any]) -> Any:
        def note(self: LevelConsumer, level: int, count: int, now: float) -> Any:
            came_before.update(came)
            records = fetch(self, level, count, now)
            came.update(record.partition for record in records)
            return records

        return note

    def answer_for_one_at_first(self: Membership, partition: TopicPartition) -> StartOffset | None:
        # Records of the others come before it is known where to begin.
        return start_of(self, partition) if partition.partition == 0 or came_before >= {1, 2, 3} else None

    def refuse(self: LevelConsumer, partition: TopicPartition, offset: int) -> None:
        failures[f"seek {partition.partition}"] += 1
        if failures[f"seek {partition.partition}"] == 1:
            raise KafkaError("the topic is being deleted")
        seek(self, partition, offset)

    monkeypatch.setattr(Membership, "start_of", answer_for_one_at_first)
    monkeypatch.setattr(LevelConsumer, "fetch", noting(LevelConsumer.fetch))
    monkeypatch.setattr(LevelConsumer, "fetch_quiet", noting(LevelConsumer.fetch_quiet))
    monkeypatch.setattr(LevelConsumer, "seek", refuse)
    with consumer(brokers) as parallel:
        running = threading.Thread(
            target=parallel.run, args=(lambda record, _: handled.update([(record.partition, record.offset)]),)
        )
        running.start()
        wait_for(lambda: len(handled) == 40 or parallel.failure)
        parallel.stop()
        running.join()
    assert parallel.failure is None
    assert handled == Counter((partition, offset) for partition in range(4) for offset in range(10))
    assert [failures[f"seek {partition}"] for partition in range(4)] == [0, 2, 2, 2]

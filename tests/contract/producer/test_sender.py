"""What keeps topics, levels and partitions out of each other's way."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
import pytest

from headway import Producer, Scheduler
from headway.errors import BufferFullError, ClosedError, ConfigError, DeliveryError, SerializationError
from headway.kafka.producer.delivery import DeliveryFuture
from headway.kafka.producer.partitioner import KeyPartitioner
from headway.kafka.producer.sender import Sender
from tests.contract.conftest import Cluster
from tests.contract.mock_brokers import MockBrokers, mock_brokers
from tests.contract.producer.test_callbacks import leave_reports_to_callers

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "max.block.ms": 50}
# A key for each of four partitions.
KEYS = {KeyPartitioner({}).partition_of(str(number), 4): str(number) for number in range(100)}


@pytest.fixture
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as brokers:
        yield brokers


@contextmanager
def producer(brokers: MockBrokers, **settings: Any) -> Iterator[Producer]:
    quick = {"linger.ms": 0, "topic.metadata.refresh.fast.interval.ms": 50, "retry.backoff.ms": 50, "log_level": 0}
    sends = Producer({"bootstrap.servers": brokers.bootstrap_servers, **quick, **settings})
    try:
        yield sends
    finally:
        sends.close(0)


def flood(try_send: Callable[[], DeliveryFuture | None]) -> list[DeliveryFuture]:
    """Send until there is no room."""
    sent: list[DeliveryFuture] = []
    while (future := try_send()) is not None:
        sent.append(future)
    return sent


def test_a_partition_without_a_leader_holds_up_only_itself_and_is_sent_as_soon_as_it_has_one(
    brokers: MockBrokers,
) -> None:
    leaders = brokers.create("orders")
    brokers.lead("orders", 1)
    with producer(brokers, **{"buffer.memory": 4_000_000, "partition.window.bytes": 100_000}) as sends:
        stuck = flood(lambda: sends.try_send("orders", b"x" * 1000, KEYS[1]))
        assert len(stuck) > 1000
        for _ in range(100):  # beyond what is left if these were not let go of
            others = [sends.send("orders", b"x" * 1000, KEYS[partition]) for partition in (0, 2, 3)]
            anywhere = sends.send("orders", b"x" * 1000)
            assert {each.result(10).partition for each in others} == {0, 2, 3}
            assert anywhere.result(10).partition != 1
        assert not any(future.done() for future in stuck)
        brokers.lead("orders", 1, leaders[1])
        assert [future.result(30).offset for future in stuck] == list(range(len(stuck)))


def test_a_silent_broker_holds_up_only_its_own_partitions(brokers: MockBrokers) -> None:
    leaders = brokers.create("orders")
    silent = {partition for partition, leader in leaders.items() if leader == leaders[0]}
    with producer(brokers, **{"buffer.memory": 4_000_000, "partition.window.bytes": 100_000}) as sends:
        wait([sends.send("orders", b"first", partition=partition) for partition in range(4)], 10)
        brokers.answer_after(leaders[0], 30_000)
        stuck = flood(lambda: sends.try_send("orders", b"x" * 1000, KEYS[0]))
        for _ in range(100):
            others = [sends.send("orders", b"x" * 1000, KEYS[each]) for each in range(4) if each not in silent]
            assert all(each.result(10).partition not in silent for each in others)
        assert not any(future.done() for future in stuck)


def test_a_new_leader_loses_and_reorders_nothing(brokers: MockBrokers) -> None:
    brokers.create("orders")
    with producer(brokers, **{"buffer.memory": 200_000_000}) as sends:
        futures: list[DeliveryFuture] = []
        for leader in (1, 2, 3, 1, 2, 3):
            brokers.lead("orders", 0, leader)
            futures += [sends.send("orders", str(number).encode(), KEYS[0]) for number in range(2_000)]
            futures[-1000].result(30)
        assert [future.result(30).offset for future in futures] == list(range(12_000))


def test_a_flood_by_key_is_placed_by_librdkafka_also_when_its_room_is_used_up(
    brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition_of, placed_here = KeyPartitioner.partition_of, list[Any]()

    def counting(partitioner: KeyPartitioner, key: Any, count: int) -> int:
        placed_here.append(key)
        return partition_of(partitioner, key, count)

    monkeypatch.setattr(KeyPartitioner, "partition_of", counting)
    # A busy machine's broker is silent for longer than the half second after which the room counts as stuck.
    monkeypatch.setattr("headway.core.producer.accumulator.STUCK_AFTER", 60.0)
    brokers.create("orders")
    for broker in (1, 2, 3):
        brokers.answer_after(broker, 50)  # so that the room is used up on any machine
    with producer(brokers, **{"buffer.memory": 16_000_000}) as sends:
        sends.send("orders", b"first").result(30)
        for number in range(40_000):
            sends.send("orders", b"x" * 1000, str(number))
        sends.flush(60)
    assert len(set(placed_here)) < 1_000
    assert sends.metrics().delivered == [40_001]


@pytest.mark.parametrize("levels", [1, 3])
def test_a_flood_leaves_room_to_another_topic_and_another_level(levels: int) -> None:
    sends = Producer({**NOWHERE, "levels": levels, "buffer.memory": 3_000_000})
    sent = len(flood(lambda: sends.try_send("flood", b"x" * 1000)))
    for level in range(levels):
        assert sends.try_send("audit", b"x" * 1000, level=level) is not None
    for _ in range(100):
        assert sends.send("flood", b"x" * 1000, level=levels - 1) if levels > 1 else sends.send("audit", b"")
    assert sends.metrics().sent[0] >= sent
    assert sends.close(0)


def test_a_bound_on_records_is_kept() -> None:
    sends = Producer({**NOWHERE, "queue.buffering.max.messages": 1000})
    assert 500 < len(flood(lambda: sends.try_send("orders", b""))) <= 1000
    assert sends.close(0) > 500


@pytest.mark.parametrize("own", [{}, {"value.serializer": lambda value: value}])
@pytest.mark.parametrize("on_full", ["block", "raise"])
def test_a_record_that_no_room_would_do_for_is_refused_at_once(
    brokers: MockBrokers, own: dict[str, Any], on_full: Any
) -> None:
    began = time.monotonic()
    with Producer({"bootstrap.servers": brokers.bootstrap_servers, **own}, on_full=on_full) as sends:
        for size in (2_000_000, 80_000_000):  # the second is more than the buffer's memory
            with pytest.raises(DeliveryError, match=r"Message size too large.* bytes, and message\.max\.bytes allows"):
                sends.send("orders", bytes(size)).result(20)
        sends.send("orders", b"small").result(20)
    assert time.monotonic() - began < 20


def test_a_level_that_is_no_number_does_not_exist() -> None:
    with (
        Producer({**NOWHERE, "levels": 2}) as sends,
        pytest.raises(ConfigError, match="The level '1' does not exist"),
    ):
        sends.send("orders", b"", level="1")  # type: ignore[arg-type]


def test_without_room_there_are_three_ways(caplog: pytest.LogCaptureFixture) -> None:
    settings = {**NOWHERE, "queue.buffering.max.messages": 1}
    raises, blocks = Producer(settings, on_full="raise"), Producer(settings)
    for sends in (raises, blocks):
        assert sends.try_send("orders", b"1") is not None
        assert sends.try_send("orders", b"2") is None
    with pytest.raises(
        BufferFullError, match="no space for a record for orders: 1 records have no delivery report yet"
    ):
        raises.send("orders", b"2")
    with pytest.raises(BufferFullError, match=r"within max\.block\.ms=50"):
        blocks.send("orders", b"2").result(0)
    assert raises.metrics().sent == [1]
    assert [sends.close(0) for sends in (raises, blocks)] == [1, 1]
    with pytest.raises(ConfigError, match="on_full is 'wait'; it must be 'block' or 'raise'"):
        Producer(settings, on_full="wait")  # type: ignore[arg-type]


def test_a_callback_may_send_and_where_there_is_no_room_it_is_not_left_hanging(mock_cluster: Cluster) -> None:
    settings = {"queue.buffering.max.messages": 1, "linger.ms": 0}
    told: list[DeliveryFuture] = []
    with Producer(mock_cluster.config(settings)) as sends:
        topic = mock_cluster.topic(1) + "-0"
        sends.send(topic, b"1", on_delivery=lambda *_: told.append(sends.send(topic, b"2"))).result(10)
        with pytest.raises(BufferFullError):
            told[0].result(10)
        assert sends.send(topic, b"3").result(10)


def test_who_waits_for_a_record_keeps_no_other_thread_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sends = Producer({**NOWHERE, "message.max.bytes": 100_000_000})
    serve_until, has_turn = sends.sender.client.serve_until, threading.Event()

    def note_turn(done: Callable[[], bool], timeout: float | None) -> None:
        serve_until(lambda: has_turn.set() or done(), timeout)  # type: ignore[func-returns-value]

    monkeypatch.setattr(sends.sender.client, "serve_until", note_turn)
    stuck = sends.send("stuck", b"x", on_delivery=lambda *_: None)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(stuck.exception, 20)
        while not has_turn.wait(0.001):
            assert not waiting.done()
        began = time.monotonic()
        assert sends.flush(0.05) == 1
        flooded = sends.send("other", b"x" * 70_000_000, on_delivery=lambda *_: None)
        assert isinstance(flooded.exception(0), BufferFullError)
        assert time.monotonic() - began < 5
        sends.sender.client.producer.purge()
        assert isinstance(waiting.result(10), DeliveryError)
    assert sends.close(0) == 0


@pytest.mark.parametrize("where", ["on_delivery", "after_reports"])
def test_within_a_report_nothing_waits_for_reports(where: str) -> None:
    told, outcomes = threading.Event(), list[object]()

    def wait_for_others(*_: object) -> None:
        if not told.is_set() and sends.metrics().failed[0]:
            told.set()
            other = sends.send("other", b"x", on_delivery=lambda *_: None)
            outcomes.append(sends.flush(0.05))
            with contextlib.suppress(TimeoutError):
                other.exception(0.05)
            outcomes.append(sends.send("other", b"x" * 70_000_000, on_delivery=lambda *_: None).exception(0))
            done.set()

    done = threading.Event()
    settings = {**NOWHERE, "message.max.bytes": 100_000_000}
    sends = Producer(settings, after_reports=wait_for_others if where == "after_reports" else lambda: None)
    sends.send("orders", b"x", on_delivery=wait_for_others if where == "on_delivery" else lambda *_: None)
    sends.sender.client.producer.purge()
    assert done.wait(10)
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], BufferFullError)
    sends.sender.client.producer.purge()
    assert sends.close(5) == 0


def test_what_after_reports_raises_is_logged_and_ends_nothing(
    brokers: MockBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.create("orders")
    settings = {"bootstrap.servers": brokers.bootstrap_servers, "linger.ms": 0}
    with Producer(settings, after_reports=lambda: 1 / 0) as sends:  # type: ignore[arg-type]
        for _ in range(3):
            assert sends.send("orders", b"x").result(10)
    assert "The after_reports callback of a producer raised" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_a_signal_whose_handler_raises_loses_no_report(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    sends, count = Producer(NOWHERE), 20_000
    interrupting = threading.Timer(0.001, os.kill, (os.getpid(), number))  # while reports are taken

    def take_reports() -> None:
        sends.sender.client.producer.purge()
        while True:
            sends.sender.client.reports.serve(0.1)

    leave_reports_to_callers(sends)
    try:
        # Without a callback what fails is logged, which takes longer.
        sends.send("orders", b"x", on_delivery=lambda *_: interrupting.start())
        for _ in range(count):
            sends.send("orders", b"x", on_delivery=lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            take_reports()
    finally:
        signal.signal(number, before)
    interrupting.join()
    assert sends.flush(20) == 0
    assert sends.metrics().failed == [count + 1]
    sends.close(0)


def test_a_name_that_is_none_fails_its_own_record_and_all_others_go_on(brokers: MockBrokers) -> None:
    brokers.create("orders")
    with producer(brokers, **{"value.serializer": lambda value: value}) as sends:
        for number, name in enumerate(("a\0b", "x" * 600, "\udc80", 7)):
            nowhere = sends.send(name, b"x", on_delivery=lambda *_: None)  # type: ignore[arg-type]
            assert sends.send("orders", b"x", partition=0).result(10).offset == number
            assert isinstance(nowhere.exception(10), DeliveryError)


def test_topics_that_are_not_to_be_refreshed_are_asked_for_until_they_are_known(
    brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.create("orders")
    with producer(brokers, **{"topic.metadata.refresh.interval.ms": -1}) as sends:
        asked, ask = list[str](), sends.sender.client.leaders

        def note(topic: str, within: float) -> tuple[int, list[int]]:
            asked.append(topic)
            return ask(topic, within)

        monkeypatch.setattr(sends.sender.client, "leaders", note)
        for _ in range(1_000):
            sends.send("orders", b"x").result(10)
    assert 1 <= len(asked) < 10


def test_a_flush_waits_for_what_was_sent_before_and_not_for_what_others_send_meanwhile(brokers: MockBrokers) -> None:
    brokers.create("orders")
    stop = threading.Event()
    with producer(brokers) as sends:

        def send_another(*_: object) -> None:
            if not stop.is_set():
                sends.send("orders", b"another", on_delivery=send_another)

        for _ in range(100):  # so many are always under way
            send_another()
        for _ in range(20):
            sent = sends.send("orders", b"before")
            assert sends.flush(5) == 0
            assert sent.done()
        stop.set()
        assert sends.flush(30) == 0
        metrics = sends.metrics()
        assert (metrics.sent, metrics.queued) == (metrics.delivered, 0)


def test_a_flush_says_that_a_record_is_left_however_many_after_it_are_not(brokers: MockBrokers) -> None:
    brokers.create("orders")
    brokers.lead("orders", 1)
    with producer(brokers) as sends:
        stuck = sends.send("orders", b"before", KEYS[1])
        assert sends.flush(0.05) == 1
        for _ in range(20):
            sends.send("orders", b"after", KEYS[0]).result(30)
        assert sends.flush(0.05, topic="orders") == 1
        assert not stuck.done()


def test_a_flush_ends_with_the_last_report(brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers.create("orders")
    with producer(brokers) as sends:
        sends.send("orders", b"first").result(30)
        waited = list[float]()
        monkeypatch.setattr(sends.sender.client.reports, "serve", waited.append)
        sends.send("orders", b"second")
        assert sends.flush(30) == 0
        assert waited == []


@pytest.mark.slow
def test_what_waits_longer_than_it_may_fails_on_its_own(brokers: MockBrokers) -> None:
    brokers.create("orders")
    brokers.lead("orders", 1)
    limits = {"delivery.timeout.ms": 4_000, "partition.window.bytes": 2_000}
    with producer(brokers, **limits) as sends:
        late = [sends.send("orders", b"x" * 1000, partition=1, on_delivery=lambda *_: None) for _ in range(10)]
        while not all(future.done() for future in late):
            assert sends.send("orders", b"x", partition=0).result(10)
        reasons = [str(future.exception(0)) for future in late]
    assert sum("waited longer than delivery.timeout.ms" in reason for reason in reasons) >= 7
    assert all(isinstance(future.exception(0), DeliveryError) for future in late)


def test_purging_fails_what_waits_of_one_topic_only(brokers: MockBrokers) -> None:
    for topic in ("orders", "audit"):
        brokers.create(topic)
        brokers.lead(topic, 1)
    with producer(brokers, **{"partition.window.bytes": 2_000}) as sends:
        orders, audit = (
            [sends.send(topic, b"x" * 1000, partition=1, on_delivery=lambda *_: None) for _ in range(10)]
            for topic in ("orders", "audit")
        )
        assert sends.purge(topic="orders") >= 7
        assert sum(future.done() for future in orders) >= 7
        assert not any(future.done() for future in audit)
        assert sends.flush(0.05, topic="audit") == 10
        for topic in ("orders", "audit"):
            brokers.lead(topic, 1, 1)
        assert sends.flush(30, topic="orders") == 0
        assert [future.result(30).offset for future in audit] == list(range(10))


def test_a_record_with_a_partition_goes_there_however_many_go_anywhere(brokers: MockBrokers) -> None:
    brokers.create("orders")
    with producer(brokers, **{"buffer.memory": 200_000}) as sends:
        sends.send("orders", b"first").result(10)
        placed: list[tuple[int, DeliveryFuture]] = []
        for number in range(2_000):
            sends.send("orders", b"anywhere" * 50)
            placed.append((number % 4, sends.send("orders", b"there" * 50, partition=number % 4)))
        assert all(future.result(30).partition == partition for partition, future in placed)


@pytest.mark.parametrize("serializer", [{}, {"value.serializer": lambda value: value}], ids=["bytes", "serialised"])
@pytest.mark.parametrize("name", ["murmur2_random", "consistent_random", "fnv1a_random"])
def test_a_key_has_the_partition_of_the_set_partitioner_whether_its_record_waits_or_not(
    brokers: MockBrokers, name: str, serializer: dict[str, Any]
) -> None:
    """Of librdkafka's, of a plain producer with the same setting."""
    brokers.create("orders")
    keys = [f"customer {number}" for number in range(20)]
    wanted = dict[str, Any]()
    plain = ck.Producer({"log_level": 0, "bootstrap.servers": brokers.bootstrap_servers, "partitioner": name})
    for key in keys:
        plain.produce("orders", b"", key, on_delivery=lambda _, m, key=key: wanted.update({key: m.partition()}))  # type: ignore[misc]
    assert plain.flush(10) == 0
    plain.close()
    with producer(brokers, **{"buffer.memory": 200_000, "partitioner": name, **serializer}) as sends:
        sent = [(key, sends.send("orders", b"x" * 1000, key)) for _ in range(100) for key in keys]
        assert {(key, future.result(30).partition) for key, future in sent} == set(wanted.items())


def test_a_partitioner_that_would_send_keys_anywhere_or_all_else_to_one_place_is_refused() -> None:
    for name in ("random", "consistent", "murmur2", "mine"):
        with pytest.raises(ConfigError, match=f"The partitioner is '{name}'; it must be 'murmur2_random'"):
            Producer({**NOWHERE, "partitioner": name})


@pytest.mark.parametrize("serializer", [{}, {"value.serializer": bytes}], ids=["bytes", "serialised"])
def test_a_function_as_partitioner_gives_each_key_its_partition_and_its_errors_are_their_records_own(
    brokers: MockBrokers, serializer: dict[str, Any]
) -> None:
    brokers.create("orders")
    called = set[tuple[str, bytes, int]]()

    def place(topic: str, key: bytes, partition_count: int) -> Any:
        called.add((topic, key, partition_count))
        if key == b"exits":
            raise SystemExit
        wrong = {b"far": 4, b"negative": -1, b"none": None}
        return wrong[key] if key in wrong else int(key) % partition_count

    said = {
        "raises": r"its partitioner .*place raised ValueError",
        "exits": "raised SystemExit",
        "far": "returned 4; it must return a number from 0 to 3",
        "negative": "returned -1; it must return",
        "none": "returned None; it must return",
    }
    with producer(brokers, **{"partitioner": place, **serializer}) as sends:
        sent = []
        for number in range(200):
            sent.append((number % 4, sends.send("orders", b"%d" % number, str(number))))
            if number == 100:
                refused = {key: sends.send("orders", b"v", key) for key in said}
        for partition, future in sent:
            assert future.result(30).partition == partition
        for key, words in said.items():
            with pytest.raises(DeliveryError, match=words):
                refused[key].result(30)
        called.clear()
        assert sends.send("orders", b"v", "7", partition=2).result(30).partition == 2
        sends.send("orders", b"without a key").result(30)
        assert called == set()
        assert sends.send("orders", b"v", "7").result(30).partition == 3
        assert called == {("orders", b"7", 4)}
        if not serializer:
            with pytest.raises(SerializationError, match="a key that is int, not bytes or a string"):
                sends.send("orders", b"v", 7).result(30)


async def _to_be_awaited(topic: str, key: bytes, partition_count: int) -> int:
    return 0


def test_a_partitioner_that_cannot_be_called_so_is_refused_and_so_is_one_where_no_producer_would_call_it() -> None:
    for function in (lambda key: 0, _to_be_awaited):
        with pytest.raises(ConfigError, match="is not a plain function of three arguments"):
            Producer({**NOWHERE, "partitioner": function})
    with pytest.raises(ConfigError, match="partitioner is a function, which only Producer and AsyncProducer accept"):
        Scheduler({**NOWHERE, "partitioner": lambda topic, key, count: 0})


def test_what_is_being_serialised_is_purged_with_the_rest(brokers: MockBrokers) -> None:
    """Else a record of an aborted transaction would come with the next one."""
    brokers.create("orders")
    begun, go_on = threading.Event(), threading.Event()

    def write(value: bytes) -> bytes:
        begun.set()
        assert go_on.wait(10)
        return value

    with producer(brokers, **{"value.serializer": write}) as sends:
        purged = [sends.send("orders", b"x", on_delivery=lambda *_: None) for _ in range(10)]
        assert begun.wait(10)
        assert sends.purge() == 10
        assert all("it was purged" in str(future.exception(0)) for future in purged)
        later = sends.send("orders", b"x", partition=0)
        go_on.set()
        assert later.result(10).offset == 0
        assert sends.flush(10) == 0
        metrics = sends.metrics()
    assert (metrics.sent, metrics.delivered, metrics.failed) == ([11], [1], [10])


@pytest.mark.parametrize("serializer", [{}, {"value.serializer": lambda value: value}], ids=["bytes", "serialised"])
def test_who_waits_for_room_while_the_producer_is_closed_is_not_left_hanging(
    serializer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = Producer({**NOWHERE, "max.block.ms": 60_000, "queue.buffering.max.messages": 1, **serializer})
    sends.send("orders", b"1", on_delivery=lambda *_: None)
    lining_up = threading.Event()
    patiently = Sender.offer_patiently

    def offer_patiently(sender: Sender, *record: Any) -> bool:
        lining_up.set()
        return patiently(sender, *record)

    monkeypatch.setattr(Sender, "offer_patiently", offer_patiently)

    def send() -> BaseException | None:
        try:
            return sends.send("orders", b"2", on_delivery=lambda *_: None).exception(10)
        except ClosedError as error:
            return error

    with ThreadPoolExecutor() as threads:
        outcome = threads.submit(send)
        assert lining_up.wait(10)
        sends.close(0)
        assert isinstance(outcome.result(10), ClosedError | DeliveryError)


def test_nothing_is_handed_over_once_a_producer_is_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    sends = Producer(NOWHERE)
    sends.send("orders", b"in time", on_delivery=lambda *_: None)  # which leaves credit
    destination, close = sends.destination("orders", None), sends.sender.client.close

    def close_late(timeout: float | None) -> int:
        with pytest.raises(ClosedError):
            sends.sender.offer(DeliveryFuture.of(destination, None), destination, b"late", None, None, None, None)
        return close(timeout)

    monkeypatch.setattr(sends.sender.client, "close", close_late)
    assert sends.close(0) == 1


def test_with_a_serialiser_partitions_and_headers_mean_what_they_do_without(brokers: MockBrokers) -> None:
    brokers.create("orders")
    with producer(brokers, **{"value.serializer": lambda value: value}) as sends:
        own = sends.send("orders", b"x", KEYS[2], headers={"a": b"b"})  # type: ignore[arg-type]
        missing = sends.send("orders", b"x", partition=7, on_delivery=lambda *_: None)
        assert own.result(10).partition == 2
        with pytest.raises(DeliveryError, match="it is for partition 7, but the topic has only 4"):
            missing.result(10)


def test_serialisers_run_on_the_senders_thread_and_keep_the_order(cluster: Cluster) -> None:
    threads = set[str]()

    def write(value: int) -> bytes:
        threads.add(threading.current_thread().name)
        if value == 7:
            raise ValueError("seven")
        return b"%d" % value

    topic = cluster.topic(1) + "-0"
    with Producer(cluster.config({"value.serializer": write, "linger.ms": 0})) as sends:
        futures = [sends.send(topic, number, "key", on_delivery=lambda *_: None) for number in range(3_000)]
        with pytest.raises(SerializationError, match="seven"):
            futures.pop(7).result(30)
        assert [future.result(30).offset for future in futures] == list(range(2_999))
    assert threads == {"headway-sender"}


def test_close_says_how_many_were_not_delivered_and_fails_them(caplog: pytest.LogCaptureFixture) -> None:
    sends = Producer(NOWHERE)
    futures = [sends.send("orders", b"x", number) for number in ("1", "2", "3")]
    assert sends.close(0.05) == 3
    assert all(isinstance(future.exception(0), DeliveryError) for future in futures)
    assert sends.metrics().queued == 0


def test_ctrl_c_while_closing_waits_fails_what_is_left_and_stops_all_the_same() -> None:
    before = set(threading.enumerate())
    sends = Producer(NOWHERE)
    future, alarm = sends.send("orders", b"x"), signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            sends.close()
    finally:
        signal.signal(signal.SIGALRM, alarm)
    assert isinstance(future.exception(0), DeliveryError)
    assert set(threading.enumerate()) <= before


def test_a_plain_producer_sends_to_topics_as_they_are(cluster: Cluster) -> None:
    topic = cluster.topic(1) + "-0"
    with Producer(cluster.config({"linger.ms": 0})) as sends:
        sent = sends.send(topic, b"v", b"k", headers=[("a", b"b")], partition=2).result(30)
        with pytest.raises(ConfigError, match="has level=1, but this producer has no levels"):
            sends.send(topic, b"v", level=1)
    assert (sent.topic, sent.partition, sent.offset) == (topic, 2, 0)

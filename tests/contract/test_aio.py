import asyncio
import contextlib
import threading
import time

import pytest

from headway import PriorityConsumer
from headway.errors import BufferFullError, ConfigError, DeliveryError, KafkaError, WakeupError
from headway.priority.async_consumer import AsyncPriorityConsumer
from headway.priority.async_producer import AsyncProducer
from headway.priority.producer import Producer
from headway.records.record_types import ConsumerRecord
from tests.contract.conftest import LEVELS, Cluster


def producer(cluster: Cluster, **settings: object) -> AsyncProducer:
    return AsyncProducer(cluster.config({"levels": LEVELS, "linger.ms": 0} | settings))


def consumer(cluster: Cluster, group: str, **settings: object) -> AsyncPriorityConsumer:
    return AsyncPriorityConsumer(cluster.consumer_config(group) | settings, policy="fair")


async def take(records: AsyncPriorityConsumer, count: int) -> list[ConsumerRecord]:
    taken: list[ConsumerRecord] = []
    async for record in records:
        taken.append(record)
        if len(taken) == count:
            break
    return taken


async def test_records_are_sent_in_the_order_of_the_calls_whoever_awaits_them(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster) as sends:
        futures = [sends.send(topic, b"x", partition=0) for _ in range(500)]
        last = await futures[-1]
        assert [(await future).offset for future in futures] == list(range(500))
    assert last.offset == 499


async def test_what_was_flushed_is_resolved_and_the_loop_takes_the_next_reports(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster, **{"key.serializer": str.encode, "value.serializer": str.encode}) as sends:
        for _ in range(3):
            futures = [sends.send(topic, "v", "k") for _ in range(300)]
            assert await sends.flush(30) == 0
            assert {future.exception() for future in futures} == {None}  # raises an error for one that is not done
            assert (await sends.send(topic, "v", "k")).offset % 301 == 300


async def test_a_send_that_nobody_waits_for_any_more_is_delivered_all_the_same(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster) as sends:
        sends.send(topic, b"1", partition=0).cancel()
        assert (await sends.send(topic, b"2", partition=0)).offset == 1


def test_one_event_loop_may_follow_another(cluster: Cluster) -> None:
    topic = cluster.topic()
    sends = producer(cluster)

    async def send() -> int:
        return (await sends.send(topic, b"x", partition=0)).offset

    assert [asyncio.run(send()) for _ in range(2)] == [0, 1]
    asyncio.run(sends.close())


@pytest.mark.quick("kafka")
async def test_awaiting_a_send_means_delivered(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster) as sends:
        metadata = await sends.send(topic, b"v", b"k", level=2, partition=1, headers=[("a", b"b")])
        assert metadata[:4] == (topic, 1, 2, 0)
        assert sends.metrics().delivered == [0, 0, 1]
    async with consumer(cluster, topic) as reads:
        reads.subscribe(topic)
        [record] = await reads.poll(30)
    assert (record.key, record.value, record.level, list(record.headers)) == (b"k", b"v", 2, [("a", b"b")])


@pytest.mark.quick("mock")
async def test_thousands_of_sends_can_be_under_way_and_a_small_queue_only_makes_them_wait(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster, **{"queue.buffering.max.messages": 500}) as sends:
        places = await asyncio.gather(*(sends.send(topic, b"v", str(i), level=i % 3) for i in range(5000)))
    assert len({(place.level, place.partition, place.offset) for place in places}) == 5000


@pytest.mark.quick("kafka")
async def test_async_for_gives_every_record_once(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster) as sends:
        await asyncio.gather(*(sends.send(topic, str(i), str(i), level=i % 3) for i in range(300)))
    async with consumer(cluster, topic) as reads:
        reads.subscribe(topic)
        records = await take(reads, 300)
    assert len({(record.level, record.partition, record.offset) for record in records}) == 300


@pytest.mark.quick("kafka")
async def test_only_what_was_handed_out_is_committed(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster) as sends:
        await asyncio.gather(*(sends.send(topic, str(i), str(i), level=i % 3) for i in range(60)))
    seen: list[tuple[int, int, int]] = []
    for count in (20, 40):
        async with consumer(cluster, topic, **{"enable.auto.commit": True}) as reads:
            reads.subscribe(topic)
            seen += [(record.level, record.partition, record.offset) for record in await take(reads, count)]
    assert len(seen) == len(set(seen)) == 60


async def test_the_loop_is_free_while_a_poll_waits(cluster: Cluster) -> None:
    async with consumer(cluster, "nobody") as reads:
        reads.subscribe(cluster.topic())
        polling = asyncio.create_task(reads.poll(30))
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert not polling.done()  # a loop that is held up comes back when the poll has ended
        reads.wakeup()
        with pytest.raises(WakeupError):
            await polling


async def test_a_poll_that_is_cancelled_loses_nothing(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with consumer(cluster, topic) as reads, producer(cluster) as sends:
        reads.subscribe(topic)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reads.poll(30), 0.2)
        await asyncio.gather(*(sends.send(topic, b"v", level=i % 3) for i in range(30)))
        assert len(await take(reads, 30)) == 30


async def test_wakeup_ends_a_waiting_poll(cluster: Cluster) -> None:
    async with consumer(cluster, "nobody") as reads:
        reads.subscribe(cluster.topic())
        asyncio.get_running_loop().call_later(0.1, reads.wakeup)
        with pytest.raises(WakeupError):
            await reads.poll(30)


async def test_commits_and_questions_can_run_beside_a_poll(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster) as sends:
        await asyncio.gather(*(sends.send(topic, b"v", str(i), level=i % 3) for i in range(90)))
    async with consumer(cluster, topic) as reads:
        reads.subscribe(topic)
        await take(reads, 90)
        _, _, committed = await asyncio.gather(reads.poll(0.3), reads.commit(), reads.committed(reads.assignment()))
        committed = await reads.committed(reads.assignment())
        assert sum(offset or 0 for offset in committed.values()) == 90
        ends = await reads.end_offsets(reads.assignment())
        assert sum(ends.values()) == 90
        partition = next(iter(ends))
        await reads.seek_to_end([partition])
        assert await reads.position(partition) == ends[partition]


async def test_a_refused_level_and_a_refused_record_raise_where_they_are_awaited(cluster: Cluster) -> None:
    async with producer(cluster, **{"message.max.bytes": 2000}) as sends:
        with pytest.raises(ConfigError, match="must be from 0 to 2"):
            await sends.send("orders", b"v", level=3)
        with pytest.raises(DeliveryError, match="was refused"):
            await sends.send(cluster.topic(), b"x" * 3000)
        assert sum(sends.metrics().failed) == 1


async def test_a_queue_that_stays_full_raises_after_max_block_ms() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "levels": 1, "max.block.ms": 50, "log_level": 0}
    sends = AsyncProducer(config | {"queue.buffering.max.messages": 1})
    waiting = sends.send("orders", b"1")
    start = time.monotonic()
    with pytest.raises(DeliveryError, match="no space"):
        await sends.send("orders", b"2")
    assert time.monotonic() - start < 5
    assert await sends.close(timeout=0) == 1
    with pytest.raises(DeliveryError):
        await waiting


async def test_who_does_not_want_to_wait_for_room_is_told_at_once() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "levels": 1, "log_level": 0, "queue.buffering.max.messages": 1}
    sends = AsyncProducer(config, on_full="raise")
    waiting = sends.send("orders", b"1")
    with pytest.raises(BufferFullError, match="1 records have no delivery report yet"):
        sends.send("orders", b"2")
    assert await sends.close(timeout=0) == 1
    assert isinstance(await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 5), list)


async def test_who_waits_for_room_may_be_cancelled_and_is_not_sent() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "levels": 1, "log_level": 0, "queue.buffering.max.messages": 1}
    sends = AsyncProducer(config)
    first, *others = [sends.send("orders", b"x") for _ in range(3)]
    for other in others:
        other.cancel()
    await asyncio.wait(others, timeout=5)
    assert all(other.cancelled() for other in others)
    assert sends.metrics().sent == [1]
    assert await sends.close(timeout=0) == 1
    with pytest.raises(DeliveryError):
        await first


@pytest.mark.kafka
async def test_transactions_are_whole_or_not_at_all(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    async with producer(kafka_cluster, **{"transactional.id": topic}) as sends:
        await sends.init_transactions()
        with contextlib.suppress(ZeroDivisionError):
            async with sends.transaction():
                await sends.send(topic, b"no")
                raise ZeroDivisionError
        async with sends.transaction():
            await asyncio.gather(*(sends.send(topic, b"yes", level=level) for level in range(3)))
    async with consumer(kafka_cluster, topic) as reads:
        reads.subscribe(topic)
        assert [record.value for record in await take(reads, 3)] == [b"yes"] * 3


@pytest.mark.slow
@pytest.mark.kafka
async def test_who_is_fenced_off_is_told_of_every_record(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    ours = {"transactional.id": topic}
    async with producer(kafka_cluster, **ours) as first, producer(kafka_cluster, **ours) as second:
        await first.init_transactions()
        with contextlib.suppress(DeliveryError, KafkaError):
            async with first.transaction():
                await first.send(topic, b"before")
                await second.init_transactions()
                after = [first.send(topic, b"after") for _ in range(20)]
                async with asyncio.timeout(30):
                    ends = await asyncio.gather(*after, return_exceptions=True)
    assert {type(end) for end in ends} == {DeliveryError}


async def test_what_has_to_wait_for_room_is_part_of_its_transaction(kafka_cluster: Cluster) -> None:
    topic, small = kafka_cluster.topic(), {"buffer.memory": 300_000}
    async with producer(kafka_cluster, **{"transactional.id": topic, **small}) as sends:
        await sends.init_transactions()
        with contextlib.suppress(ZeroDivisionError):
            async with sends.transaction():
                dropped = [sends.send(topic, b"no" * 1_000) for _ in range(500)]
                raise ZeroDivisionError
        async with sends.transaction():
            sent = [sends.send(topic, b"yes" * 1_000) for _ in range(500)]
        ends = await asyncio.gather(*dropped, return_exceptions=True)
        assert sum(isinstance(end, DeliveryError) for end in ends) >= 350  # the others had room, and may have arrived
        assert len(await asyncio.gather(*sent)) == 500
    async with consumer(kafka_cluster, topic) as reads:
        reads.subscribe(topic)
        assert {record.value for record in await take(reads, 500)} == {b"yes" * 1_000}


@pytest.mark.slow
async def test_flushing_and_closing_wait_for_what_has_no_room_yet(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    async with producer(kafka_cluster, **{"buffer.memory": 300_000}) as sends:
        first = [sends.send(topic, b"x" * 1_000) for _ in range(1_000)]
        assert await sends.flush() == 0
        assert all(each.done() for each in first)
        last = [sends.send(topic, b"x" * 1_000) for _ in range(1_000)]
    assert len(await asyncio.gather(*first, *last)) == 2_000


class Commit:
    """A producer's calls in a transaction, of which the commit takes until it may `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
        self.calls: list[str] = []
        self.begun = threading.Event()
        self.end = threading.Event()
        self._error = error
        monkeypatch.setattr(Producer, "begin_transaction", lambda _: None)
        monkeypatch.setattr(Producer, "commit_transaction", self._commit)  # which takes no producer
        monkeypatch.setattr(Producer, "abort_transaction", self._abort)

    def _commit(self, timeout: float) -> None:
        self.begun.set()
        assert self.end.wait(30)
        self.calls.append("commit")
        if self._error:
            raise self._error

    def _abort(self, timeout: float) -> None:
        self.calls.append("abort")


@pytest.mark.parametrize("error", [None, KafkaError("No.")])
async def test_a_transaction_that_is_cancelled_during_its_commit_is_aborted_only_when_that_was_refused(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    async with AsyncProducer({"bootstrap.servers": "127.0.0.1:1", "levels": 1, "log_level": 0}) as sends:
        commit = Commit(monkeypatch, error)

        async def transact() -> None:
            async with sends.transaction():
                pass

        task = asyncio.create_task(transact())
        assert await asyncio.to_thread(commit.begun.wait, 30)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        commit.end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert commit.calls == ["commit", "abort"][: 2 if error else 1]


async def test_a_poll_that_ends_leaves_others_waiting_that_are_woken_at_once(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster) as sends, consumer(cluster, topic) as reads:
        reads.subscribe(topic)
        await sends.send(topic, b"first")
        assert len(await reads.poll(30)) == 1
        for level in range(LEVELS):
            waits = asyncio.create_task(reads.poll(30))
            await asyncio.sleep(0)
            assert await reads.poll(0.05) == []
            cancelled = asyncio.create_task(reads.poll(30))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            await sends.send(topic, b"next", level=level)
            delivered = time.monotonic()
            assert [record.value for record in await waits] == [b"next"]
            assert time.monotonic() - delivered < 0.7  # of the second after which a poll looks anyway


@pytest.mark.quick("kafka")
async def test_tasks_that_poll_and_iterate_at_once_share_the_records(cluster: Cluster) -> None:
    topic, taken = cluster.topic(), list[tuple[int, int, int]]()
    async with producer(cluster) as sends, consumer(cluster, topic, **{"max.poll.records": 10}) as reads:
        reads.subscribe(topic)

        def take(record: ConsumerRecord) -> None:
            taken.append((record.level, record.partition, record.offset))

        async def poll(timeout: float) -> None:
            while len(taken) < 400:
                for record in await reads.poll(timeout):
                    take(record)

        async def iterate() -> None:
            async for record in reads:
                take(record)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(each) for each in (poll(0.01), poll(1), iterate(), iterate())]
        for i in range(400):
            sends.send(topic, b"v", str(i), level=i % LEVELS)
            await asyncio.sleep(0.001)
        async with asyncio.timeout(30):
            while len(taken) < 400:
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert len(taken) == len(set(taken)) == 400


async def test_an_iterator_goes_on_after_a_wait_for_its_next_record_has_timed_out(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with producer(cluster) as sends, consumer(cluster, topic) as reads:
        reads.subscribe(topic)
        stream = aiter(reads)
        for number in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.05)
            await sends.send(topic, str(number).encode())
            assert (await asyncio.wait_for(anext(stream), 30)).value == str(number).encode()


async def test_a_poll_waits_no_longer_than_it_may_while_another_call_is_under_way(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, goes_on = cluster.topic(), threading.Event()
    monkeypatch.setattr(PriorityConsumer, "list_topics", lambda self, timeout: goes_on.wait(30) and {})
    async with producer(cluster) as sends, consumer(cluster, topic) as reads:
        reads.subscribe(topic)
        asks = asyncio.create_task(reads.list_topics())
        await asyncio.sleep(0)
        began = time.monotonic()
        assert await reads.poll(0.1) == []
        assert await reads.poll(0) == []
        assert time.monotonic() - began < 5
        goes_on.set()
        assert await asks == {}
        await sends.send(topic, b"v")
        assert [record.value for record in await reads.poll(30)] == [b"v"]

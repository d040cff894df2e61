"""`AsyncProducer` without levels; its levels are tested in tests/contract/test_aio.py."""

import asyncio
from contextlib import suppress

import pytest

from headway import AsyncPriorityConsumer, AsyncProducer
from headway.errors import BufferFullError, ConfigError, DeliveryError
from tests.contract.conftest import Cluster


def producer(cluster: Cluster, **settings: object) -> AsyncProducer:
    return AsyncProducer(cluster.config({"linger.ms": 0} | settings))


@pytest.mark.quick("kafka")
async def test_a_record_goes_to_the_topic_as_it_is(cluster: Cluster) -> None:
    topic = f"{cluster.topic()}-1"
    async with producer(cluster) as sends:
        metadata = await sends.send(topic, b"v", b"k", headers=[("a", b"b")], partition=1)
        assert metadata[:4] == (topic, 1, 0, 0)
        assert sends.metrics().delivered == [1]
        assert [each.topic for each in await sends.partitions_for(topic)] == [topic] * 4


async def test_thousands_of_sends_are_under_way_at_once_and_in_the_order_of_the_calls(cluster: Cluster) -> None:
    topic = f"{cluster.topic()}-0"
    async with producer(cluster) as sends:
        futures = [sends.send(topic, b"v", partition=0) for _ in range(3000)]
        assert await sends.flush(30) == 0
        assert [(await future).offset for future in futures] == list(range(3000))


async def test_a_transaction_holds_its_records_together(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    async with producer(kafka_cluster, **{"transactional.id": topic}) as sends:
        await sends.init_transactions()
        with suppress(ZeroDivisionError):
            async with sends.transaction():
                sends.send(f"{topic}-0", b"no")
                raise ZeroDivisionError
        async with sends.transaction():
            sends.send(f"{topic}-0", b"yes")
    async with AsyncPriorityConsumer(kafka_cluster.consumer_config(topic)) as consumer:
        consumer.subscribe(topic)
        assert [record.value for record in await consumer.poll(30)] == [b"yes"]


async def test_without_room_a_send_waits_or_is_refused_as_on_full_says() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.messages": 1}
    refuses, waits = AsyncProducer(config, on_full="raise"), AsyncProducer({**config, "max.block.ms": 50})
    sent = [each.send("orders", b"1") for each in (refuses, waits)]
    with pytest.raises(BufferFullError, match="1 records have no delivery report yet"):
        refuses.send("orders", b"2")
    with pytest.raises(DeliveryError, match="no space"):
        await waits.send("orders", b"2")
    assert [await each.close(timeout=0) for each in (refuses, waits)] == [1, 1]
    await asyncio.wait(sent, timeout=5)
    assert all(isinstance(each.exception(), DeliveryError) for each in sent)
    with pytest.raises(ConfigError, match="on_full is 'block'; it must be 'await' or 'raise'"):
        AsyncProducer(config, on_full="block")  # type: ignore[arg-type]


async def test_without_levels_a_level_is_refused(cluster: Cluster) -> None:
    async with producer(cluster) as sends:
        for send in (sends.send, sends.try_send):
            with pytest.raises(ConfigError, match="has level=0, but this producer has no levels"):
                send("orders", b"v", level=0)

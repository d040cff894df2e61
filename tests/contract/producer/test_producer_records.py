"""`send(ProducerRecord)`, with all producers: the record says all of it."""

import asyncio
from typing import Any

import pytest

from headway import AsyncProducer, Producer, ProducerRecord
from headway.errors import ConfigError
from tests.contract.conftest import LEVELS, Cluster


def config_of(cluster: Cluster, levels: int | None = None) -> dict[str, Any]:
    own = {} if levels is None else {"levels": levels}
    return cluster.config({"linger.ms": 0, "value.serializer": lambda value: repr(value).encode()} | own)


def settings_of(*, has_levels: bool) -> dict[str, Any]:
    return {"bootstrap.servers": "127.0.0.1:1", "log_level": 0} | ({"levels": 3} if has_levels else {})


class Unhashable:
    """A value whose hash raises an error of its own."""

    def __hash__(self) -> int:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        return "odd"


@pytest.mark.kafka
@pytest.mark.parametrize("value", ["plain", [1, 2], Unhashable()], ids=["plain", "list", "odd"])
@pytest.mark.parametrize("headers", [(), [("a", b"b")]], ids=["no headers", "headers"])
def test_a_record_is_sent_as_it_says(kafka_cluster: Cluster, value: object, headers: Any) -> None:
    cluster, reported = kafka_cluster, []
    topic = cluster.topic()
    record = ProducerRecord(topic, value, "k", level=2, headers=headers, partition=1, timestamp=1_700_000_000_000)
    with Producer(config_of(cluster, LEVELS)) as producer:
        for send in (producer.send, producer.try_send):
            future = send(record, on_delivery=lambda error, metadata: reported.append(metadata))
            assert future is not None
            metadata = future.result(30)
            assert metadata[:3] == (topic, 1, 2)
            assert metadata.timestamp == 1_700_000_000_000
        producer.flush()
        assert len(reported) == 2
        assert producer.metrics().sent == [0, 0, 2]
    plain = ProducerRecord(f"{topic}-1", value, "k", headers=headers, partition=3)
    with Producer(config_of(cluster)) as sender:
        for each in (sender.send, sender.try_send):
            sent = each(plain)
            assert sent is not None
            assert sent.result(30)[:3] == (f"{topic}-1", 3, 0)


async def test_a_record_is_sent_as_it_says_in_an_event_loop(cluster: Cluster) -> None:
    topic = cluster.topic()
    async with AsyncProducer(config_of(cluster, LEVELS)) as producer:
        metadata = await producer.send(ProducerRecord(topic, [1], level=1, partition=2, headers=[("a", b"b")]))
        assert metadata[:3] == (topic, 2, 1)
    async with AsyncProducer(config_of(cluster)) as sender:
        assert (await sender.send(ProducerRecord(f"{topic}-0", [1], partition=2)))[:3] == (f"{topic}-0", 2, 0)


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize(
    "more",
    [{"value": b"v"}, {"key": ""}, {"headers": []}, {"partition": 0}, {"timestamp": 0}, {"due": 60}, {"level": 1}],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.parametrize("has_levels", [True, False], ids=["levels", "no levels"])
async def test_a_field_beside_a_record_is_refused(kind: Any, has_levels: bool, more: dict[str, Any]) -> None:
    producer = kind(settings_of(has_levels=has_levels))
    with pytest.raises(ConfigError, match="A ProducerRecord for orders was given together with other fields"):
        producer.send(ProducerRecord("orders", level=0 if has_levels else None), **more)
    assert sum(producer.metrics().sent) == 0
    if asyncio.iscoroutine(closing := producer.close()):
        await closing


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize("has_levels", [True, False], ids=["levels", "no levels"])
async def test_a_level_that_the_producer_cannot_send_to_is_refused(kind: Any, has_levels: bool) -> None:
    producer = kind(settings_of(has_levels=has_levels))
    wrong = {None: "has no level", 3: "level 3 does not exist"} if has_levels else {0: "this producer has no levels"}
    for level, why in wrong.items():
        with pytest.raises(ConfigError, match=why):
            producer.send(ProducerRecord("orders", level=level))
        if level is not None:
            for send in (producer.send, producer.try_send):
                with pytest.raises(ConfigError, match=why.removeprefix("this P")):
                    send("orders", b"v", level=level)
    assert sum(producer.metrics().sent) == 0
    if asyncio.iscoroutine(closing := producer.close()):
        await closing

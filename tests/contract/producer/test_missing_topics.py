"""What a producer says of a topic that is missing, or that has other levels than it was given."""

import asyncio
from typing import Any

import pytest

from headway import AsyncProducer, Producer, create_topic
from headway.errors import DeliveryError

Settings = dict[str, Any]


@pytest.fixture
def settings(kafka_cluster: Any) -> Settings:
    return {**kafka_cluster.config({}), "delivery.timeout.ms": 2000}


@pytest.mark.parametrize("serialises", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_missing_topic_is_named_however_short_the_time_to_deliver(
    settings: Settings, headway_topic: str, serialises: bool, key: str | None
) -> None:
    more: Settings = {"value.serializer": lambda value: value} if serialises else {}
    with (
        Producer(settings | more) as producer,
        pytest.raises(DeliveryError, match=rf"Kafka has no topic {headway_topic}\. Create it with `headway topics"),
    ):
        producer.send(headway_topic, b"", key=key).result(30)


def test_an_awaited_record_for_a_missing_topic_fails_with_its_name(settings: Settings, headway_topic: str) -> None:
    async def send() -> None:
        async with AsyncProducer(settings) as producer:
            await producer.send(headway_topic, b"", "k")

    with pytest.raises(DeliveryError, match=f"Kafka has no topic {headway_topic}"):
        asyncio.run(send())


def test_a_producer_without_levels_names_those_that_the_topic_has(settings: Settings, headway_topic: str) -> None:
    create_topic(settings, headway_topic, levels=3)
    said = rf"no topic {headway_topic}\. The levels {headway_topic}-0 to {headway_topic}-2 exist: use a Producer with"
    with Producer(settings) as producer, pytest.raises(DeliveryError, match=said):
        producer.send(headway_topic, b"").result(30)


@pytest.mark.slow
def test_a_producer_of_levels_names_the_topic_that_has_none(settings: Settings, headway_topic: str) -> None:
    create_topic(settings, headway_topic)
    said = rf"no topic {headway_topic}-1\. A topic {headway_topic} without levels exists: send to it with a Producer"
    with Producer({**settings, "levels": 2}) as producer, pytest.raises(DeliveryError, match=said):
        producer.send(headway_topic, b"", level=1).result(30)


async def time_to_fail(config: Settings) -> float:
    """The seconds for which an awaited record waits for a cluster that is away."""
    async with AsyncProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **config}) as producer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DeliveryError):
            await producer.send("orders", b"")
        return loop.time() - began


@pytest.mark.parametrize("name", ["delivery.timeout.ms", "message.timeout.ms"])
def test_what_is_awaited_waits_as_long_as_one_setting_says_under_either_of_its_names(name: str) -> None:
    assert 0.9 < asyncio.run(time_to_fail({name: 1000})) < 20


@pytest.mark.slow
def test_what_is_awaited_waits_for_a_minute_by_default() -> None:
    assert 59 < asyncio.run(time_to_fail({})) < 90

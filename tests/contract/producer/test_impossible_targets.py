"""Topics and partitions that cannot be meant are refused, in every way a record goes out."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import create_autospec

import pytest

from headway import AsyncProducer, Producer, ProducerRecord
from headway.errors import ConfigError, DeliveryError
from headway.kafka.producer.client import ProducerClient
from headway.parallel.outputs import HandlerOutputs
from headway.settings.config import OutputSettings

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
LEVELS = {**NOWHERE, "levels": 3}
IMPOSSIBLE_PARTITIONS = pytest.mark.parametrize("partition", [-1, -5])


@IMPOSSIBLE_PARTITIONS
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("more", [{}, {"value.serializer": str.encode}])
@pytest.mark.parametrize(("kind", "config"), [(Producer, NOWHERE), (Producer, LEVELS)])
def test_a_partition_below_0_is_refused_and_not_taken_for_any(
    kind: Any, config: dict[str, Any], more: dict[str, Any], key: str | None, partition: int
) -> None:
    producer = kind({**config, **more})
    try:
        with pytest.raises(DeliveryError, match=rf"has partition={partition}; partitions are numbered from 0"):
            producer.send("orders", "v", key=key, partition=partition).result(10)
    finally:
        producer.close(timeout=0)


@IMPOSSIBLE_PARTITIONS
def test_an_awaited_send_refuses_it_too(partition: int) -> None:
    async def send() -> None:
        producer = AsyncProducer(NOWHERE)
        try:
            with pytest.raises(DeliveryError, match=rf"has partition={partition}; partitions are numbered from 0"):
                await producer.send("orders", "v", partition=partition)
        finally:
            await producer.close(timeout=0)

    asyncio.run(send())


def outputs() -> HandlerOutputs:
    client = create_autospec(ProducerClient, instance=True)
    client.partitions.return_value = 4
    return HandlerOutputs(OutputSettings.parse({}), client, None, NOWHERE, "headway-delay")


@IMPOSSIBLE_PARTITIONS
def test_an_output_for_it_has_failed(partition: int) -> None:
    with pytest.raises(DeliveryError, match=rf"has partition={partition}; partitions are numbered from 0"):
        outputs().of((), ProducerRecord("orders", "v", partition=partition))


@pytest.mark.parametrize("topic", [None, 5, b"orders", ""])
@pytest.mark.parametrize("how", ["by name", "as a record"])
def test_what_names_no_topic_is_refused_and_not_taken_for_the_level_of_one(topic: Any, how: str) -> None:
    sends: dict[str, Callable[[Any], object]] = {
        "by name": lambda producer: producer.send(topic, "v", level=0),
        "as a record": lambda producer: producer.send(ProducerRecord(topic, "v", level=0)),
    }
    producer = Producer(LEVELS)
    try:
        with pytest.raises(ConfigError, match="its name must be a string"):
            sends[how](producer)
    finally:
        producer.close(timeout=0)


def test_an_output_for_what_names_no_topic_has_failed() -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match="The topic is None; its name must be a string"):
        outputs().of((), ProducerRecord(nothing, "v", level=0))

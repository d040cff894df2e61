"""librdkafka's producer in our hands: what becomes of a call that never returns."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headway.errors import KafkaError
from headway.kafka import producer_client
from headway.kafka.producer_client import ProducerClient


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until then librdkafka does not return from taking a transaction's offsets."""
    event = threading.Event()

    def hang(*_: Any) -> None:
        event.wait(30)

    monkeypatch.setattr(producer_client, "send_offsets_to_transaction", hang)
    monkeypatch.setattr(producer_client, "HANGS_AFTER", 0.05)
    monkeypatch.setattr(producer_client, "SLICE", 0.05)
    yield event
    event.set()


def client() -> ProducerClient:
    return ProducerClient({"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t", "log_level": 0})


def test_offsets_that_librdkafka_does_not_take_are_refused_in_time_and_closing_does_not_wait(
    go_on: threading.Event,
) -> None:
    hanging = client()
    assert not hanging.hangs()
    began = time.monotonic()
    with pytest.raises(KafkaError, match=r"could not be added to the transaction within 0\.1 s"):
        hanging.send_offsets({("t", 0): (1, b"")}, b"", 0.1)
    assert hanging.hangs()
    hanging.close(0)
    assert time.monotonic() - began < 10


def test_a_renewed_producer_goes_on_and_the_one_that_hung_is_closed_when_it_returns(go_on: threading.Event) -> None:
    hanging = client()
    before = hanging._producer
    with pytest.raises(KafkaError):
        hanging.send_offsets({}, b"", 0)
    hanging.renew()
    assert not hanging.hangs()
    go_on.set()
    until = time.monotonic() + 10
    while not _is_closed(before):
        assert time.monotonic() < until
        threading.Event().wait(0.01)
    assert hanging._producer is not before
    hanging.close(0)


def _is_closed(producer: Any) -> bool:
    try:
        producer.poll(0)
    except RuntimeError:
        return True
    return False

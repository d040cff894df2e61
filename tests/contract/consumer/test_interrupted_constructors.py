"""A constructor of a consumer or relay that fails, or is interrupted, leaves neither clients nor threads behind."""

import pkgutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import confluent_kafka as ck
import pytest

from headway import AsyncPriorityConsumer, ParallelConsumer, PriorityConsumer, Relay, Scheduler
from headway.errors import KafkaError
from tests.interrupts import nothing_left

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
TWO_LEVELS = {**NOWHERE, "group.id": "g", "levels": 2}
MAKERS = [
    "headway.kafka.consumer.group_client.make_client",
    "headway.kafka.consumer.relay_consumer.make_client",
    "headway.kafka.reading.compacted.unjoined_consumer",
]


PRIORITY = pytest.param(lambda: PriorityConsumer(TWO_LEVELS), id="priority")
PARALLEL = pytest.param(lambda: ParallelConsumer(TWO_LEVELS), id="parallel")
ASYNC = pytest.param(lambda: AsyncPriorityConsumer(TWO_LEVELS), id="async")
RELAY = pytest.param(lambda: Relay(NOWHERE), id="relay")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def fail() -> None:
    raise KafkaError("unexpected")


class Clients:
    """The clients of librdkafka that are made. `happens` is called after the client with the number `at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[ck.Consumer] = []
        self.at = 0
        self.happens: Callable[[], None] = fail
        for name in MAKERS:
            monkeypatch.setattr(name, self._noting(pkgutil.resolve_name(name)))

    def _noting(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            self.made.append(make(*args))
            client = self.made[-1]
            if len(self.made) == self.at:
                self.happens()
            return client

        return noting

    def are_closed(self) -> bool:
        return all(map(_is_closed, self.made))


def _is_closed(client: ck.Consumer) -> bool:
    try:
        client.assignment()
    except RuntimeError:
        return True
    return False


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    with nothing_left():
        clients = Clients(monkeypatch)
        yield clients
        deadline = time.monotonic() + 5
        while not clients.are_closed():
            assert time.monotonic() < deadline, "a client is still open"
            time.sleep(0.01)


@pytest.mark.parametrize("make", [PRIORITY, ASYNC, PARALLEL, RELAY])
@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_after_a_client_was_made(make: Callable[[], object], at: int, clients: Clients) -> None:
    clients.at, clients.happens = at, interrupt
    with pytest.raises(KeyboardInterrupt):
        make()
    assert clients.made


@pytest.mark.parametrize("make", [PRIORITY, ASYNC, PARALLEL])
def test_an_error_when_a_later_client_is_made(make: Callable[[], object], clients: Clients) -> None:
    clients.at = 2
    with pytest.raises(KafkaError, match="unexpected"):
        make()
    clients.made.pop()  # the caller of the maker never got this one, and a real maker closes it


def test_an_error_after_a_parallel_consumers_clients_were_made(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.parallel.consumer.ControlLoop", lambda *_: fail())
    with pytest.raises(KafkaError, match="unexpected"):
        ParallelConsumer(TWO_LEVELS)
    assert len(clients.made) == 2


@pytest.mark.parametrize(("happens", "error"), [(interrupt, KeyboardInterrupt), (fail, KafkaError)])
def test_an_interrupt_or_error_when_a_relay_asks_for_its_topics(
    happens: Callable[[], None], error: type[BaseException], clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def layout_seen_by(*_: object) -> None:
        happens()

    monkeypatch.setattr("headway.delay.relay.delay_topics_in_use.layout_seen_by", layout_seen_by)
    with pytest.raises(error):
        Relay(NOWHERE)
    assert len(clients.made) == 2


def test_an_interrupt_late_in_a_relays_constructor(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.delay.relay.delay_topics_in_use.layout_seen_by", lambda *_: None)
    monkeypatch.setattr("headway.delay.relay.relay.Predecessors", lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt):
        Relay(NOWHERE)
    assert len(clients.made) == 2


def test_an_interrupt_after_a_scheduler_has_made_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    def commands(*_: object) -> MagicMock:
        interrupt()
        return MagicMock()

    monkeypatch.setattr("headway.delay.scheduler.DelayTopicChoice", MagicMock())
    monkeypatch.setattr("headway.delay.scheduler.Commands", commands)
    with nothing_left(), pytest.raises(KeyboardInterrupt):
        Scheduler(NOWHERE)

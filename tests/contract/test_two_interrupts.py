"""Ctrl-C at any step, twice: a producer and a scheduler always end, and leave nothing behind."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway import Producer, Scheduler
from headway.testing import MockCluster
from tests.interrupts import nothing_left, two_interrupts

COUNT = 20


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create(["orders", "orders-0", "orders-1"], 1)
        with Scheduler(mock.settings) as scheduler:
            scheduler.send_later(None, "first", "orders", 0).wait(30)
        yield mock


# Python tells of an interrupt that came where it cannot raise one, as while an object goes.
pytestmark = [
    pytest.mark.interrupts,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def produce(mock: MockCluster, anchor: Callable[..., Any], seed: int) -> None:
    """Send, flush and close, interrupted twice from somewhere on: each future that was given out is done."""
    producer: Any = Producer({**mock.settings, "levels": 2}) if seed % 2 else Producer(mock.settings)
    level = {"level": 1} if seed % 2 else {}
    futures: list[Any] = []
    try:
        with two_interrupts(anchor, seed), producer:
            for number in range(COUNT):
                futures += [producer.send("orders", f"{number}", **level)]
            if seed % 3 == 0:
                producer.send("orders", "later", due=0, **level)
            producer.flush()
    except KeyboardInterrupt:
        pass
    producer.close()
    for each in futures:
        each.exception(10)


def schedule(mock: MockCluster, anchor: Callable[..., Any], seed: int) -> None:
    """Schedule and close, interrupted twice from somewhere on: each handle that was given out is settled."""
    scheduler = Scheduler(mock.settings)
    handles: list[Any] = []
    try:
        with two_interrupts(anchor, seed), scheduler:
            for number in range(COUNT):
                handles += [scheduler.send_later(None, f"{number}", "orders", 0)]
            if seed % 2:
                scheduler.cancel(handles[0])
    except KeyboardInterrupt:
        pass
    scheduler.close()
    for each in handles:
        each.future.exception(10)


STEPS: list[tuple[Callable[..., None], Callable[..., Any]]] = [
    (produce, Producer.__enter__),
    (produce, Producer.flush),
    (produce, Producer.close),
    (schedule, Scheduler.__enter__),
    (schedule, Scheduler.close),
]
NAMES = [f"{call.__name__} {anchor.__name__.strip('_')}" for call, anchor in STEPS]


@pytest.mark.parametrize(("call", "anchor"), STEPS, ids=NAMES)
def test_a_client_that_is_interrupted_twice_at_any_step_ends(mock: MockCluster, call: Any, anchor: Any) -> None:
    for seed in range(4):
        with nothing_left():
            call(mock, anchor, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("call", "anchor"), STEPS, ids=NAMES)
def test_a_client_that_is_interrupted_twice_at_each_of_many_steps_ends(
    mock: MockCluster, call: Any, anchor: Any
) -> None:
    for seed in range(100, 140):
        with nothing_left():
            call(mock, anchor, seed)

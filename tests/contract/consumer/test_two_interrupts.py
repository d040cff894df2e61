"""Ctrl-C at any step, twice: a consumer of levels in a `with` block always ends, and leaves nothing behind."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway import PriorityConsumer, Producer
from headway.testing import MockCluster
from tests.interrupts import nothing_left, two_interrupts

COUNT = 20
LEVELS = range(2)
ANCHORS: list[Callable[..., Any]] = [
    PriorityConsumer.subscribe,
    PriorityConsumer.poll,
    PriorityConsumer.__next__,
    PriorityConsumer.commit,
    PriorityConsumer.unsubscribe,
    PriorityConsumer.close,
]

# Python reports an interrupt where it cannot raise one, for example while it frees an object.
pytestmark = [
    pytest.mark.interrupts,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create(["orders-0", "orders-1"], 1)
        with Producer({**mock.settings, "levels": len(LEVELS)}) as producer:
            for number in range(COUNT):
                producer.send("orders", f"{number}", level=number % len(LEVELS))
        yield mock


def read(consumer: PriorityConsumer, *, iterates: bool) -> int:
    count = 0
    while count < COUNT:
        if iterates:
            next(consumer)
            count += 1
        else:
            count += len(consumer.poll())
    return count


def interrupted(mock: MockCluster, anchor: Callable[..., Any], seed: int) -> None:
    """Read all records and commit, interrupted twice after the call of `anchor`."""
    settings = {"group.id": f"{anchor.__name__}-{seed}", "auto.offset.reset": "earliest", "levels": len(LEVELS)}
    consumer = PriorityConsumer({**mock.settings, **settings})
    callback = (lambda _: None) if seed % 3 else None
    try:
        with two_interrupts(anchor, seed), consumer:
            consumer.subscribe("orders", on_assign=callback, on_revoke=callback)
            read(consumer, iterates=anchor is PriorityConsumer.__next__)
            consumer.commit()
            if anchor is PriorityConsumer.unsubscribe:
                consumer.unsubscribe()
    except KeyboardInterrupt:
        pass
    consumer.close()  # the second interrupt may have ended the `with` block's own close
    with pytest.raises(Exception, match="The consumer is closed"):
        consumer.poll(0)


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.__name__)
@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_of_levels_that_is_interrupted_twice_at_any_step_ends(
    mock: MockCluster, anchor: Callable[..., Any], seed: int
) -> None:
    with nothing_left():
        interrupted(mock, anchor, seed)


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.__name__)
def test_a_consumer_of_levels_that_is_interrupted_twice_at_each_of_many_steps_ends(
    mock: MockCluster, anchor: Callable[..., Any]
) -> None:
    for seed in range(100, 140):
        with nothing_left():
            interrupted(mock, anchor, seed)

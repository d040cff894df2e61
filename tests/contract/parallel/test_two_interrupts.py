"""Ctrl-C at any step, twice: a consumer in a `with` block always ends, and leaves nothing behind."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway import ParallelConsumer, Producer, ProducerRecord
from headway.parallel.control_loop import ControlLoop
from headway.testing import MockCluster
from tests.interrupts import nothing_left, two_interrupts

COUNT = 3
ANCHORS: dict[str, Callable[..., Any]] = {
    "start": ParallelConsumer.__enter__,
    "run": ControlLoop.run_round,
    "end": ControlLoop.leave,
    "close": ParallelConsumer.close,
}


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create(["orders", "out"], 1)
        with Producer(mock.settings) as producer:
            for number in range(COUNT):
                producer.send("orders", str(number), str(number))
        yield mock


# Python tells of an interrupt that came where it cannot raise one, as while an object goes.
pytestmark = [
    pytest.mark.interrupts,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def interrupted(mock: MockCluster, anchor: str, seed: int) -> None:
    """A run, to its end, which is interrupted twice from somewhere on."""
    settings = {"group.id": f"{anchor}-{seed}", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 20}
    done = threading.Semaphore(0)

    def handle(record: Any) -> ProducerRecord | None:
        done.release()
        if record.offset == COUNT - 1:
            consumer.stop()
        return ProducerRecord("out", b"copy") if seed % 2 else None

    consumer = ParallelConsumer({**mock.settings, **settings}, hand_over_timeout=2)
    consumer.subscribe("orders", on_revoke=(lambda _: None) if seed % 3 else None)
    try:
        with two_interrupts(ANCHORS[anchor], seed), consumer:
            (consumer.run_and_produce if seed % 2 else consumer.run)(handle)
    except KeyboardInterrupt:
        pass
    # Its second one may have ended the `with` block's own close.
    consumer.close(drain=False)
    with pytest.raises(Exception, match="The consumer is closed"):
        consumer.pause()


@pytest.mark.parametrize("anchor", ANCHORS)
@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_that_is_interrupted_twice_at_any_step_ends(mock: MockCluster, anchor: str, seed: int) -> None:
    with nothing_left():
        interrupted(mock, anchor, seed)


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ANCHORS)
def test_a_consumer_that_is_interrupted_twice_at_each_of_many_steps_ends(mock: MockCluster, anchor: str) -> None:
    for seed in range(100, 140):
        with nothing_left():
            interrupted(mock, anchor, seed)

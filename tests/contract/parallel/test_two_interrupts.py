"""Ctrl-C at any step, twice: a consumer in a `with` block always ends."""

import random
import signal
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from headway import ParallelConsumer, Producer, ProducerRecord
from headway.parallel.control_loop import ControlLoop
from headway.testing import MockCluster

COUNT = 3
ANCHORS = {
    "start": ParallelConsumer._run.__code__,
    "run": ControlLoop.turn.__code__,
    "hand-over": ControlLoop._hand_over.__code__,
    "end": ParallelConsumer._end.__code__,
    "close": ParallelConsumer.close.__code__,
}


class Interrupts:
    """Raises `KeyboardInterrupt` at a step after a function was entered, and again some steps later.

    A step is where Python itself looks for signals: as a function of Headway's begins, and behind a call of a C
    function in one. Where Headway puts Ctrl-C off, none is raised.
    """

    def __init__(self, anchor: CodeType, first: int, second: int) -> None:
        self._anchor = anchor
        self._first, self._second = first, second
        self._has_begun = False
        self.raised = 0

    def __enter__(self) -> None:
        sys.setprofile(self._profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        self._has_begun |= frame.f_code is self._anchor
        if self._has_begun and event in ("call", "c_return") and _is_ours(frame) and _is_possible():
            self._first -= 1
            if self._first < 0:
                self.raised += 1
                sys.settrace(self._trace)
                raise KeyboardInterrupt  # Python ends the profiling then

    def _trace(self, frame: FrameType, event: str, arg: Any) -> None:
        if _is_ours(frame) and _is_possible():
            self._second -= 1
            if self._second < 0:
                self.raised += 1
                raise KeyboardInterrupt  # and the tracing


def _is_ours(frame: FrameType) -> bool:
    code = frame.f_code
    return "/src/headway/" in code.co_filename and code.co_name not in ("__del__", "<genexpr>", "fileno")


def _is_possible() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create(["orders", "out"], 1)
        with Producer(mock.settings) as producer:
            for number in range(COUNT):
                producer.send("orders", str(number), str(number))
        yield mock


# Python tells of an interrupt that came where it cannot raise one, as while an object goes.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def interrupted(mock: MockCluster, anchor: str, seed: int) -> None:
    """A run, to its end, which is interrupted twice from somewhere on."""
    draw = random.Random(f"{anchor} {seed}")
    first, second = int(2 ** draw.uniform(0, 9)) - 1, int(2 ** draw.uniform(0, 7)) - 1
    print(f"{anchor}, seed {seed}: interrupts after {first} steps, and after {second} calls")
    settings = {"group.id": f"{anchor}-{seed}", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 20}
    done = threading.Semaphore(0)

    def handle(record: Any) -> ProducerRecord | None:
        done.release()
        if record.offset == COUNT - 1:
            consumer.stop()
        return ProducerRecord("out", b"copy") if seed % 2 else None

    consumer = ParallelConsumer({**mock.settings, **settings}, hand_over_timeout=2)
    consumer.subscribe("orders", on_revoke=(lambda _: None) if seed % 3 else None)
    interrupts = Interrupts(ANCHORS[anchor], first, second)
    try:
        with interrupts, consumer:
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
    interrupted(mock, anchor, seed)


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ANCHORS)
def test_a_consumer_that_is_interrupted_twice_at_each_of_many_steps_ends(mock: MockCluster, anchor: str) -> None:
    for seed in range(100, 140):
        interrupted(mock, anchor, seed)

"""Outputs and batches in the caller's own event loop, on a real Apache Kafka."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, Ordering, ParallelConsumer, ProducerRecord
from headway.errors import ConfigError
from headway.records.record_types import RecordMetadata
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, committed, consumer, plain_topic, send, topic_of, wait_for
from tests.contract.parallel.test_transactions import reader

pytestmark = pytest.mark.kafka

COUNT = 40


class Stored:
    """An `async def` that is told of outputs, and waits each time."""

    def __init__(self, parallel: ParallelConsumer, then: Callable[[], Any] = lambda: None) -> None:
        self.values: list[str] = []
        self.inputs: list[Any] = []
        self._parallel, self._then = parallel, then
        self._running = 0

    async def __call__(self, input: Any, output: ProducerRecord, metadata: RecordMetadata) -> None:
        assert self._running == 0  # one after the other
        assert metadata.offset >= 0
        self._running += 1
        await asyncio.sleep(0.001)
        self._running -= 1
        self.inputs.append(input)
        self.values.append(str(output.value))
        if len(self.values) == COUNT:
            self._parallel.stop()
        self._then()


@pytest.mark.parametrize("mode", ["async", "transactional"])
@pytest.mark.parametrize("in_batches", [False, True], ids=["single", "batches"])
def test_outputs_are_stored_and_told_in_the_loop(kafka_cluster: Cluster, mode: str, in_batches: bool) -> None:
    topic, out = topic_of(kafka_cluster, 1), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(COUNT)])
    loops = set[asyncio.AbstractEventLoop]()

    async def each(record: ConsumerRecord) -> ProducerRecord:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return ProducerRecord(out, record.value.decode(), record.key)

    async def together(records: Sequence[ConsumerRecord]) -> AsyncIterator[ProducerRecord]:
        loops.add(asyncio.get_running_loop())
        for record in records:
            yield ProducerRecord(out, record.value.decode(), record.key)

    async def main() -> Stored:
        options = {"commit_mode": mode, "ordering": Ordering.UNORDERED}
        async with consumer(kafka_cluster, topic, options, **OFTEN) as parallel:
            stored = Stored(parallel)
            if in_batches:
                await parallel.run_and_produce_async(together, stored, batches=Batches(10, linger=0.1))
            else:
                await parallel.run_and_produce_async(each, stored)
        loops.add(asyncio.get_running_loop())
        return stored

    stored = asyncio.run(main())
    assert len(loops) == 1
    assert sorted(stored.values, key=int) == [str(i) for i in range(COUNT)]
    assert all(isinstance(each, list) is in_batches for each in stored.inputs)
    with reader(kafka_cluster, out) as found:
        assert sorted(found.values, key=int) == [str(i) for i in range(COUNT)]
    assert committed(kafka_cluster, topic) == {0: (COUNT, b"")}


def test_batches_are_handled_in_the_loop(kafka_cluster: Cluster) -> None:
    topic, sizes = topic_of(kafka_cluster, 1), list[int]()
    send(kafka_cluster, topic, [(None, str(i)) for i in range(COUNT)])

    async def main() -> None:
        async with consumer(kafka_cluster, topic) as parallel:

            async def handle(records: Sequence[ConsumerRecord]) -> None:
                sizes.append(len(records))
                if sum(sizes) == COUNT:
                    parallel.stop()

            await parallel.run_async(handle, batches=Batches(10, linger=0.5))

    asyncio.run(main())
    assert sum(sizes) == COUNT
    assert max(sizes) == 10
    assert committed(kafka_cluster, topic) == {0: (COUNT, b"")}


@pytest.mark.parametrize("error", [ValueError("not told"), SystemExit(3), asyncio.CancelledError()])
def test_what_on_output_raises_is_logged_and_the_next_one_follows(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    topic, out = topic_of(kafka_cluster, 1), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(COUNT)])

    def raising() -> None:
        raise error

    async def main() -> Stored:
        async with consumer(kafka_cluster, topic) as parallel:
            stored = Stored(parallel, raising)
            await parallel.run_and_produce_async(lambda record: ProducerRecord(out, record.value.decode()), stored)
            return stored

    assert len(asyncio.run(main()).values) == COUNT
    assert caplog.text.count(f"The on_output callback for a record of {out} raised an error.") == COUNT


def test_a_cancelled_run_does_not_wait_for_an_on_output_that_never_ends(kafka_cluster: Cluster) -> None:
    topic, out = topic_of(kafka_cluster, 1), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])

    async def main() -> None:
        called = asyncio.Event()

        async def never(*about: Any) -> None:
            called.set()
            await asyncio.Event().wait()

        parallel = consumer(kafka_cluster, topic, **OFTEN)
        running = asyncio.create_task(
            parallel.run_and_produce_async(lambda record: ProducerRecord(out, record.value), never)
        )
        await asyncio.wait_for(called.wait(), 30)
        # The commit does not wait for it, either. Before the commit, a cancellation could be first.
        await asyncio.to_thread(wait_for, lambda: committed(kafka_cluster, topic) == {0: (1, b"")}, 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 20)

    asyncio.run(main())


def test_an_on_output_that_cannot_be_called_is_refused(kafka_cluster: Cluster) -> None:
    async def two(input: Any, output: Any) -> None: ...

    async def main() -> None:
        async with consumer(kafka_cluster, "orders") as parallel:
            await parallel.run_and_produce_async(lambda record: None, two)  # type: ignore[arg-type]

    with pytest.raises(
        ConfigError, match=r"on_output is .*two, which cannot be called with \(input, output, metadata\)"
    ):
        asyncio.run(main())

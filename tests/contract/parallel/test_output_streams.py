"""Stored outputs as a stream, on a real Apache Kafka: what is told of each, and what a slow or a leaving taker does."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, FatalError, ParallelConsumer, ProducerRecord, StoredOutput
from headway.errors import ConfigError, HandlerError
from headway.parallel.output_stream import OutputStream
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, client_of, committed, consumer, plain_topic, send, wait_for

pytestmark = pytest.mark.kafka

COUNT = 90
MODES = ["async", "sync", "transactional"]


def taken(way: str, outputs: OutputStream, each: Callable[[StoredOutput], bool]) -> list[StoredOutput]:
    """Return the outputs up to the one at which `each` returns True, where it leaves; or all."""
    if way == "for":
        return list(taken_plain(outputs, each))
    return asyncio.run(taken_async(outputs, each))


def taken_plain(outputs: OutputStream, each: Callable[[StoredOutput], bool]) -> list[StoredOutput]:
    got = []
    for output in outputs:
        got.append(output)
        if each(output):
            break
    return got


async def taken_async(outputs: OutputStream, each: Callable[[StoredOutput], bool]) -> list[StoredOutput]:
    got = []
    async with contextlib.aclosing(aiter(outputs)) as stream:  # type: ignore[type-var]
        async for output in stream:
            got.append(output)
            if each(output):
                break
    return got


def stops_after(parallel: ParallelConsumer, count: int) -> Callable[[StoredOutput], bool]:
    left = iter(range(count - 1, -1, -1))

    def each(output: StoredOutput) -> bool:
        if next(left) == 0:
            parallel.stop()
        return False

    return each


def stored(cluster: Cluster, topic: str, count: int) -> dict[tuple[int, int], bytes]:
    """Return the committed values of a topic, by partition and offset."""
    found: dict[tuple[int, int], bytes] = {}
    settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with client_of(cluster, f"{topic}-reader", **settings) as client:
        client.subscribe([topic])

        def poll() -> bool:
            message = client.poll(0.1)
            if message is not None and message.error() is None:
                place = message.partition(), message.offset()
                found[place] = message.value()  # type: ignore[index,assignment]
            return len(found) >= count

        wait_for(poll)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["for", "async for"])
def test_each_stored_output_comes_once_with_its_input_and_its_place(
    kafka_cluster: Cluster, mode: Any, way: str
) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(f"key-{i % 7}", str(i)) for i in range(COUNT)])
    parallel = consumer(kafka_cluster, topic, {"commit_mode": mode}, **OFTEN)

    def twice(record: ConsumerRecord) -> list[ProducerRecord]:
        return [ProducerRecord(out, b"%s/%d" % (record.value, part), record.key) for part in range(2)]

    async def twice_later(record: ConsumerRecord) -> list[ProducerRecord]:
        await asyncio.sleep(0)
        return twice(record)

    handler = twice if way == "for" else twice_later
    outputs = taken(way, parallel.outputs(handler), stops_after(parallel, 2 * COUNT))
    assert sorted(each.output.value for each in outputs) == sorted(
        b"%d/%d" % (i, part) for i in range(COUNT) for part in range(2)
    )
    assert all(each.input.value == each.output.value.split(b"/")[0] for each in outputs)  # type: ignore[union-attr]
    assert {each.metadata.topic for each in outputs} == {out}
    assert all(each.metadata.timestamp > 0 for each in outputs)
    places = {(each.metadata.partition, each.metadata.offset): each.output.value for each in outputs}
    assert places == stored(kafka_cluster, out, 2 * COUNT)
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == COUNT


@pytest.mark.parametrize("mode", MODES)
def test_the_outputs_of_batches_come_with_their_records(kafka_cluster: Cluster, mode: Any) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", str(i)) for i in range(COUNT)])
    parallel = consumer(kafka_cluster, topic, {"commit_mode": mode}, **OFTEN)

    def count(records: Sequence[ConsumerRecord]) -> ProducerRecord:
        return ProducerRecord(out, str(len(records)).encode())

    inputs: list[bytes] = []
    for each in parallel.outputs(count, batches=Batches(7)):
        assert isinstance(each.input, list)
        assert int(each.output.value) == len(each.input)
        assert each.metadata.offset >= 0
        inputs += [record.value for record in each.input]
        if len(inputs) == COUNT:
            parallel.stop()
    assert inputs == [str(i).encode() for i in range(COUNT)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_while_many_outputs_wait_to_be_taken_no_record_starts(kafka_cluster: Cluster, mode: Any) -> None:
    topic, out, count, most = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 3000, 1000
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    # In transactions what is done by the next commit comes on top.
    settings = {"auto.commit.interval.ms": 20}
    most_at_a_time = 2 if mode == "transactional" else 20
    parallel = consumer(kafka_cluster, topic, {"commit_mode": mode, "max_concurrency": most_at_a_time}, **settings)
    begun: list[bytes] = []

    def copy(record: ConsumerRecord) -> ProducerRecord:
        begun.append(record.value)
        threading.Event().wait(0.0005)
        return ProducerRecord(out, record.value)

    got: list[bytes] = []
    for _, output, _ in parallel.outputs(copy):
        if not got:
            wait_for(lambda: len(begun) >= most)
            threading.Event().wait(0.5)  # for those that would start all the same
            assert len(begun) < count
        got.append(output.value)
        if len(got) == count:
            parallel.stop()
    assert sorted(got) == sorted(str(i).encode() for i in range(count))


@pytest.mark.slow
def test_an_async_on_output_that_falls_behind_slows_the_run_down(kafka_cluster: Cluster) -> None:
    topic, out, count, most = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 3000, 1000
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    parallel = consumer(kafka_cluster, topic, {"max_concurrency": 20})
    begun: list[bytes] = []
    told: list[bytes] = []

    async def copy(record: ConsumerRecord) -> ProducerRecord:
        begun.append(record.value)
        return ProducerRecord(out, record.value)

    async def tell(input: ConsumerRecord, output: ProducerRecord, metadata: Any) -> None:
        if not told:
            while len(begun) < most:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # in which not all may begin
            assert len(begun) < count
        told.append(output.value)
        if len(told) == count:
            parallel.stop()

    asyncio.run(parallel.run_and_produce_async(copy, tell))
    assert len(told) == count


@pytest.mark.parametrize("way", ["for", "async for"])
def test_who_leaves_stops_the_consumer_and_what_is_stored_is_committed(kafka_cluster: Cluster, way: str) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", str(i)) for i in range(COUNT)], 0)
    parallel = consumer(kafka_cluster, topic)
    copies = parallel.outputs(lambda record: ProducerRecord(out, record.value))
    outputs = taken(way, copies, lambda output: output.output.value == b"10")
    assert [each.output.value for each in outputs] == [str(i).encode() for i in range(11)]
    [(offset, _)] = committed(kafka_cluster, topic).values()
    assert 10 <= offset <= COUNT


def test_the_error_that_ends_the_run_is_raised_behind_the_last_output(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", str(i)) for i in range(3)], 0)
    parallel = consumer(kafka_cluster, topic)

    def copy(record: ConsumerRecord) -> ProducerRecord:
        if record.offset == 2:
            raise FatalError("no")
        return ProducerRecord(out, record.value)

    got: list[bytes] = []
    with pytest.raises(HandlerError):
        got.extend(each.output.value for each in parallel.outputs(copy))
    assert got == [b"0", b"1"]


def test_a_handler_that_cannot_be_called_is_refused_at_once(kafka_cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="The handler is 3"):
        consumer(kafka_cluster, plain_topic(kafka_cluster)).outputs(3)  # type: ignore[arg-type]

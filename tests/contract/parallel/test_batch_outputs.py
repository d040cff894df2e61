"""Batches whose handlers return outputs or results, in every commit mode and executor, on a real Apache Kafka."""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from headway import BatchError, Batches, ConsumerRecord, Context, Ordering, ParallelConsumer, ProducerRecord, Retries
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError, HandlerError
from headway.records.record_types import RecordMetadata
from tests.contract.conftest import Cluster
from tests.contract.parallel import process_handlers as handlers
from tests.contract.parallel.members import (
    ORDERINGS,
    committed,
    consumer,
    maps_of,
    plain_topic,
    send,
    topic_of,
    wait_for,
)
from tests.contract.parallel.test_transactions import reader

pytestmark = pytest.mark.kafka

Records = Sequence[ConsumerRecord]
MODES = ["async", "sync", "transactional"]
AT_ONCE = Retries(fixed_backoff(0.01))


def until_done(parallel: ParallelConsumer, count: int, run: Callable[[], Any]) -> None:
    """Run until so many records are done."""
    running = threading.Thread(target=run)
    running.start()
    wait_for(lambda: parallel.metrics().done >= count or not running.is_alive())
    parallel.close()
    running.join(30)
    if parallel.failure:
        raise parallel.failure


def values(cluster: Cluster, topic: str) -> list[str]:
    """All that is committed of a topic."""
    with reader(cluster, topic) as found:
        return found.values


def joined(out: str) -> Callable[[Records], ProducerRecord]:
    """One output for a batch, which names its records."""
    return lambda records: ProducerRecord(out, ",".join(f"{each.partition}:{each.offset}" for each in records))


def one_each(out: str) -> Callable[[Records], Iterator[ProducerRecord]]:
    """A handler that yields."""

    def handle(records: Records) -> Iterator[ProducerRecord]:
        for record in records:
            yield ProducerRecord(out, record.value, record.key)

    return handle


def one_each_async(out: str) -> Callable[..., Any]:
    """A coroutine that yields."""

    async def handle(records: Records, contexts: Sequence[Context]) -> Any:
        await asyncio.sleep(0.001)
        for record in records:
            yield ProducerRecord(out, record.value, record.key)

    return handle


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [one_each, one_each_async])
def test_what_a_batch_handler_yields_is_stored_and_then_its_records_are_committed(
    kafka_cluster: Cluster, mode: str, make: Callable[[str], Any]
) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 500
    send(kafka_cluster, topic, [(f"key-{i % 10}", str(i)) for i in range(count)])
    parallel = consumer(kafka_cluster, topic, {"commit_mode": mode})
    told: list[tuple[list[ConsumerRecord], ProducerRecord, RecordMetadata]] = []

    def on_output(*about: Any) -> None:
        told.append(about)

    until_done(parallel, count, lambda: parallel.run_and_produce(make(out), on_output, batches=Batches(30)))
    assert sorted(values(kafka_cluster, out)) == sorted(map(str, range(count)))
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count
    assert len(told) == count
    assert all(output.value in [record.value for record in records] for records, output, _ in told)


@pytest.mark.quick("transactional")
@pytest.mark.parametrize("mode", MODES)
def test_processes_send_what_their_batch_handler_returns(
    kafka_cluster: Cluster, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    monkeypatch.setenv("HEADWAY_TEST_TOPIC", out)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(50)])
    parallel = consumer(kafka_cluster, topic, {"executor": "process", "processes": 2, "commit_mode": mode})
    until_done(parallel, 50, lambda: parallel.run_and_produce(handlers.doubled_batch, batches=Batches(10, linger=0.1)))
    assert sorted(values(kafka_cluster, out)) == sorted(str(i) * 2 for i in range(50))


@pytest.mark.slow
@pytest.mark.parametrize("ordering", ORDERINGS)
def test_the_outputs_of_a_batch_are_committed_with_all_its_offsets_however_the_run_ends(
    kafka_cluster: Cluster, ordering: Ordering
) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 300
    send(kafka_cluster, topic, [(f"key-{i % 40}", str(i)) for i in range(count)])
    sizes: list[int] = []
    while sum(offset for offset, _ in committed(kafka_cluster, topic).values()) < count:
        options = {"commit_mode": "transactional", "ordering": ordering, "max_concurrency": 4}
        parallel = consumer(kafka_cluster, topic, options, **{"auto.commit.interval.ms": 20})

        def handle(records: Records) -> ProducerRecord:
            sizes.append(len(records))
            threading.Event().wait(0.005)
            return joined(out)(records)

        running = threading.Thread(target=lambda: parallel.run_and_produce(handle, batches=Batches(20)))  # noqa: B023
        before = len(sizes)
        running.start()
        wait_for(lambda: len(sizes) > before + 5 or (not parallel.work_remaining and len(sizes) > before))  # noqa: B023
        parallel.close(drain=False)
        running.join(30)
        done = committed(kafka_cluster, topic)
        found = Counter(address for value in values(kafka_cluster, out) for address in value.split(","))
        for partition, (offset, _) in done.items():
            ahead = [each for done in maps_of(done)[partition].complete for each in done]
            assert {f"{partition}:{each}" for each in [*range(offset), *ahead]} == {
                address for address in found if address.startswith(f"{partition}:")
            }
        assert set(found.values()) <= {1}
    assert max(sizes) > 1


def test_batches_with_outputs_in_transactions_are_of_one_partition(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(None, str(i)) for i in range(40)], partition=0)
    send(kafka_cluster, topic, [(None, str(i)) for i in range(40)], partition=1)
    options = {"commit_mode": "transactional", "ordering": Ordering.UNORDERED}
    parallel = consumer(kafka_cluster, topic, options)
    batches = Batches(20, linger=5, min_size=10)
    until_done(parallel, 80, lambda: parallel.run_and_produce(joined(out), batches=batches))
    places = [{address.split(":")[0] for address in value.split(",")} for value in values(kafka_cluster, out)]
    assert all(len(each) == 1 for each in places)
    assert set.union(*places) == {"0", "1"}


@pytest.mark.quick("sync", "async")
@pytest.mark.parametrize("mode", MODES)
def test_an_output_that_cannot_be_sent_fails_all_records_of_its_batch(kafka_cluster: Cluster, mode: str) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(4)], partition=0)
    parallel = consumer(kafka_cluster, topic, {"commit_mode": mode, "retries": AT_ONCE})
    attempts: dict[int, int] = defaultdict(int)

    def handle(records: Records, contexts: Sequence[Context]) -> list[ProducerRecord]:
        for record in records:
            attempts[record.offset] += 1
        bad = contexts[0].attempt == 1
        return [ProducerRecord(out, b"good"), ProducerRecord(out, b"x" * 2_000_000 if bad else b"good too")]

    until_done(parallel, 4, lambda: parallel.run_and_produce(handle, batches=Batches(4, linger=10)))
    assert attempts == {0: 2, 1: 2, 2: 2, 3: 2}
    assert values(kafka_cluster, out) == ["good", "good too"]


@pytest.mark.quick("async", "sync")
@pytest.mark.parametrize("mode", MODES)
def test_an_output_that_only_the_broker_refuses_makes_dead_letters_of_its_batch(
    kafka_cluster: Cluster, mode: str
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    out = topic_of(kafka_cluster, 1, max_message_bytes="1000")
    send(kafka_cluster, topic, [("a", str(i)) for i in range(3)] + [("b", "fine")], partition=0)
    options = {"commit_mode": mode, "retries": Retries(fixed_backoff(0.01), max_attempts=2), "dead_letter_topic": dead}
    parallel = consumer(kafka_cluster, topic, options)

    def handle(records: Records) -> list[ProducerRecord]:
        is_fine = records[0].value == b"fine"
        return [ProducerRecord(out, records[0].value), ProducerRecord(out, b"" if is_fine else b"x" * 5000)]

    until_done(parallel, 4, lambda: parallel.run_and_produce(handle, batches=Batches(3)))
    assert set(values(kafka_cluster, dead)) >= {"0", "1", "2"}
    if mode == "transactional":  # else the broker refuses what the client sends along, too
        assert sorted(values(kafka_cluster, dead)) == ["0", "1", "2"]
        assert sorted(values(kafka_cluster, out)) == ["", "fine"]
    assert committed(kafka_cluster, topic)[0][0] == 4


def test_a_batch_error_names_those_that_come_again_and_sends_nothing(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(4)], partition=0)
    parallel = consumer(kafka_cluster, topic, {"commit_mode": "transactional", "retries": AT_ONCE})

    def handle(records: Records, contexts: Sequence[Context]) -> ProducerRecord:
        if contexts[0].attempt == 1:
            raise BatchError({1: OSError("not yet"), 2: OSError("not yet")})
        return joined(out)(records)

    until_done(parallel, 4, lambda: parallel.run_and_produce(handle, batches=Batches(4, linger=10)))
    assert values(kafka_cluster, out) == ["0:1,0:2"]


# What nothing would send


@pytest.mark.parametrize("returned", [ProducerRecord, lambda out: [ProducerRecord(out)]])
@pytest.mark.parametrize("way", ["run", "run_async", "batches"])
def test_a_returned_record_that_nothing_sends_ends_the_run_and_comes_again(
    kafka_cluster: Cluster, way: str, returned: Callable[[str], Any]
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "0")], partition=0)
    parallel = consumer(kafka_cluster, topic, {"dead_letter_topic": dead})

    def handle(each: Any) -> Any:
        return returned("elsewhere")

    async def handle_async(each: Any) -> Any:
        return returned("elsewhere")

    ways: dict[str, Callable[[], None]] = {
        "run": lambda: parallel.run(handle),
        "run_async": lambda: asyncio.run(parallel.run_async(handle_async)),
        "batches": lambda: parallel.run(handle, batches=Batches(10)),
    }
    with pytest.raises(ConfigError, match="would be lost, because run and run_async send nothing"):
        ways[way]()
    assert committed(kafka_cluster, topic) == {}
    assert parallel.metrics().done == 0


# Results


@pytest.mark.quick("for", "async for")
@pytest.mark.parametrize("way", ["for", "async for", "process"])
def test_each_batch_has_one_result_and_is_done_when_the_next_one_is_asked_for(kafka_cluster: Cluster, way: str) -> None:
    topic, count = plain_topic(kafka_cluster), 200
    send(kafka_cluster, topic, [(f"key-{i % 10}", str(i)) for i in range(count)])
    parallel = consumer(kafka_cluster, topic, {"executor": "process", "processes": 2} if way == "process" else {})
    results = parallel.results(handlers.sum_of_batch, batches=Batches(15, linger=0.2, min_size=5))
    found: list[int] = []

    def take(records: Records, value: int) -> None:
        assert value == sum(int(record.value) for record in records)
        found.extend(int(record.value) for record in records)
        if len(found) == count:
            parallel.stop()

    async def take_async() -> None:
        async for records, value in results:
            take(records, value)

    if way == "async for":
        asyncio.run(take_async())
    else:
        for records, value in results:
            take(records, value)
    assert sorted(found) == list(range(count))
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count


def test_the_batch_at_which_the_iteration_is_left_comes_again(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(6)], partition=0)
    results = consumer(kafka_cluster, topic).results(handlers.sum_of_batch, batches=Batches(2, linger=10))
    for index, (records, _) in enumerate(results):
        if index == 1:
            assert [record.offset for record in records] == [2, 3]
            break
    assert committed(kafka_cluster, topic)[0][0] == 2


# A least size


def test_a_batch_with_the_least_size_begins_at_once_and_a_smaller_one_when_it_has_lingered(
    kafka_cluster: Cluster,
) -> None:
    topic = plain_topic(kafka_cluster)
    parallel = consumer(kafka_cluster, topic, {"ordering": Ordering.PARTITION})
    sizes: list[int] = []
    running = threading.Thread(
        target=lambda: parallel.run(lambda each: sizes.append(len(each)), batches=Batches(100, 60.0, 5))
    )
    running.start()
    send(kafka_cluster, topic, [("a", str(i)) for i in range(5)], partition=0)
    wait_for(lambda: sum(sizes) == 5)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(4)], partition=0)
    wait_for(lambda: parallel.work_remaining == 4)
    assert sum(sizes) == 5
    parallel.close()
    running.join(30)


def test_without_a_dead_letter_topic_a_refused_output_of_a_batch_ends_the_run(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), topic_of(kafka_cluster, 1, max_message_bytes="1000")
    send(kafka_cluster, topic, [("a", str(i)) for i in range(3)], partition=0)
    parallel = consumer(kafka_cluster, topic, {"commit_mode": "transactional"}, **{"auto.commit.interval.ms": 20})
    with pytest.raises(HandlerError, match="Kafka refuses an output"):
        parallel.run_and_produce(lambda records: ProducerRecord(out, b"x" * 5000), batches=Batches(3))
    assert committed(kafka_cluster, topic) == {}

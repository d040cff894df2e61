"""Records handled in batches, on a real Apache Kafka."""

import asyncio
import pickle
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headway import BatchError, Batches, ConsumerRecord, Context, Ordering, Retries
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError, HandlerError
from headway.parallel.control_loop import ControlLoop
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import ORDERINGS, committed, consumer, maps_of, plain_topic, read, send

pytestmark = pytest.mark.kafka

Records = Sequence[ConsumerRecord]
Contexts = Sequence[Context]


def as_coroutine(handler: Callable[[Records, Contexts], None]) -> Callable[..., Any]:
    async def handle(records: Records, contexts: Contexts) -> None:
        await asyncio.sleep(0.001)
        handler(records, contexts)

    return handle


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("executor", ["threads", "async"])
def test_batches_are_of_one_lane_in_order_and_one_at_a_time(
    kafka_cluster: Cluster, ordering: Ordering, executor: str
) -> None:
    topic, count = plain_topic(kafka_cluster), 2000
    send(kafka_cluster, topic, [(f"key-{i % 10}", str(i)) for i in range(count)])
    parallel = consumer(kafka_cluster, topic, {"ordering": ordering, "max_concurrency": 8})
    lock, running = threading.Lock(), Counter[Any]()
    lanes: dict[Any, list[int]] = defaultdict(list)
    sizes: list[int] = []

    def lane(record: ConsumerRecord) -> Any:
        of_key = (record.partition, record.key)
        return {"key": of_key, "key_if_any": of_key, "partition": record.partition}.get(ordering.value)

    def handle(records: Records, contexts: Contexts) -> None:
        [place] = {lane(record) for record in records}
        with lock:
            running[place] += 1
            assert running[place] == 1 or ordering is Ordering.UNORDERED
            assert running.total() <= 8
            sizes.append(len(records))
            lanes[place].extend(record.offset for record in records)
        threading.Event().wait(0.002)
        with lock:
            running[place] -= 1
            if sum(sizes) == count:
                parallel.stop()

    parallel.run(handle if executor == "threads" else as_coroutine(handle), batches=Batches(30))
    assert sum(sizes) == count
    assert max(sizes) <= 30
    assert len(sizes) < count / 2
    assert ordering is Ordering.UNORDERED or all(offsets == sorted(offsets) for offsets in lanes.values())
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count


def test_those_that_failed_come_first_again_and_those_that_are_done_do_not(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(6)], partition=0)
    batches: list[list[tuple[int, int]]] = []
    parallel = consumer(kafka_cluster, topic, {"retries": Retries(fixed_backoff(0.01))})

    def handle(records: Records, contexts: Contexts) -> None:
        batches.append([(record.offset, context.attempt) for record, context in zip(records, contexts, strict=True)])
        if len(batches) == 1:
            raise BatchError({1: OSError("one"), 3: OSError("three")})
        assert [str(context.last_error) for context in contexts[:2]] == ["one", "three"]
        parallel.stop()

    parallel.run(handle, batches=Batches(4))
    assert batches == [[(0, 1), (1, 1), (2, 1), (3, 1)], [(1, 2), (3, 2), (4, 1), (5, 1)]]
    assert committed(kafka_cluster, topic) == {0: (6, b"")}


def test_what_is_done_of_a_batch_that_failed_in_part_is_committed(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(5)], partition=0)
    parallel = consumer(kafka_cluster, topic)

    def handle(records: Records, contexts: Contexts) -> None:
        parallel.stop()
        raise BatchError({1: OSError("not now")})

    parallel.run(handle, batches=Batches(4))
    commits = committed(kafka_cluster, topic)
    assert commits[0][0] == 1
    assert maps_of(commits)[0].complete == [range(2, 4)]


@pytest.mark.parametrize(
    "error", [OSError("all"), BatchError({7: OSError("nobody")})], ids=["another error", "an index that is none"]
)
def test_any_other_error_is_a_failed_attempt_of_all(kafka_cluster: Cluster, error: Exception) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(3)], partition=0)
    attempts: Counter[int] = Counter()
    parallel = consumer(kafka_cluster, topic, {"retries": Retries(fixed_backoff(0.01))})

    def handle(records: Records, contexts: Contexts) -> None:
        attempts.update(record.offset for record in records)
        if contexts[0].attempt < 3:
            raise error
        if records[-1].offset == 2:
            parallel.stop()

    parallel.run(handle, batches=Batches(3))
    assert attempts == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize("mode", ["async", "transactional"])
def test_one_of_a_batch_can_become_a_dead_letter_and_the_others_are_done(kafka_cluster: Cluster, mode: str) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(5)], partition=0)
    options = {"retries": Retries(fixed_backoff(0.01), max_attempts=2), "dead_letter_topic": dead, "commit_mode": mode}
    batches: list[list[int]] = []
    parallel = consumer(kafka_cluster, topic, options)

    def handle(records: Records, contexts: Contexts) -> None:
        batches.append([record.offset for record in records])
        if records[-1].offset == 4:
            parallel.stop()
        raise BatchError({index: ValueError("bad") for index, record in enumerate(records) if record.offset == 1})

    parallel.run(handle, batches=Batches(3))
    assert batches == [[0, 1, 2], [1, 3, 4]]
    assert [letter.value() for letter in read(kafka_cluster, dead, 1)] == [b"1"]
    assert committed(kafka_cluster, topic) == {0: (5, b"")}


def test_without_a_dead_letter_topic_one_of_a_batch_that_failed_for_good_ends_the_run(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(3)], partition=0)

    def handle(records: Records, contexts: Contexts) -> None:
        raise BatchError({1: ValueError("bad")})

    parallel = consumer(kafka_cluster, topic, {"retries": Retries(fatal=(ValueError,))})
    with pytest.raises(HandlerError, match=r"offset=1.*ValueError is not retried"):
        parallel.run(handle, batches=Batches(3))
    assert maps_of(committed(kafka_cluster, topic))[0].complete == [range(2, 3)]


# Linger


@pytest.mark.quick("key")
@pytest.mark.parametrize("ordering", [Ordering.KEY, Ordering.UNORDERED])
def test_a_lone_record_is_handled_after_about_the_linger_and_a_full_batch_at_once(
    kafka_cluster: Cluster, ordering: Ordering
) -> None:
    topic, linger = plain_topic(kafka_cluster), 3.0
    batches: list[tuple[list[bytes], float]] = []
    handled = threading.Semaphore(0)
    parallel = consumer(kafka_cluster, topic, {"ordering": ordering}, **{"fetch.wait.max.ms": 10})

    def handle(records: Records, contexts: Contexts) -> None:
        batches.append(([record.value for record in records], max(context.queue_time for context in contexts)))
        handled.release()

    running = threading.Thread(target=lambda: parallel.run(handle, batches=Batches(4, linger)))
    running.start()
    try:
        send(kafka_cluster, topic, [("a", "lone")], partition=0)
        assert handled.acquire(timeout=30)
        send(kafka_cluster, topic, [("a", str(i)) for i in range(4)], partition=0)
        assert handled.acquire(timeout=30)
        send(kafka_cluster, topic, [("a", "x"), ("a", "y")], partition=0)
        assert handled.acquire(timeout=30)
    finally:
        parallel.close()
        running.join()
    values, times = zip(*batches, strict=True)
    assert values == ([b"lone"], [b"0", b"1", b"2", b"3"], [b"x", b"y"])
    assert linger <= times[0] < linger + 10
    assert times[1] < linger
    assert linger <= times[2] < linger + 10


def test_while_batches_gather_nothing_is_busy(kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = plain_topic(kafka_cluster)
    handled = threading.Event()
    send(kafka_cluster, topic, [("a", "1")], partition=0)
    parallel = consumer(kafka_cluster, topic, {"rate_limit": 100})
    rounds = 0
    run_round = ControlLoop.run_round

    def counted(control: ControlLoop) -> None:
        nonlocal rounds
        rounds += parallel.work_remaining
        run_round(control)

    monkeypatch.setattr(ControlLoop, "run_round", counted)
    running = threading.Thread(target=lambda: parallel.run(lambda *batch: handled.set(), batches=Batches(10, 1.0)))
    running.start()
    began = time.monotonic()
    assert handled.wait(30)
    parallel.close()
    running.join()
    assert rounds < 60 * (time.monotonic() - began + 1)


# What is refused


def test_a_batch_error_comes_out_of_another_process_as_it_went_in() -> None:
    copy = pickle.loads(pickle.dumps(BatchError({2: OSError("bad")})))  # noqa: S301 - our own bytes
    assert str(copy.failures[2]) == "bad"
    assert str(copy) == "1 records of a batch failed: {2: OSError('bad')}"


def test_sizes_and_times_out_of_bounds_are_refused(kafka_cluster: Cluster) -> None:
    with consumer(kafka_cluster, plain_topic(kafka_cluster)) as parallel:
        with pytest.raises(ConfigError, match="max_size is 0; it must be at least 1"):
            parallel.run(lambda *batch: None, batches=Batches(0))
        with pytest.raises(ConfigError, match="linger is -1; it must be at least 0"):
            parallel.run(lambda *batch: None, batches=Batches(1, linger=-1))

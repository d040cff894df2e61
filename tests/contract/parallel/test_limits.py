"""How many handlers run, how many start in a second, and how long they may take, on a real Apache Kafka."""

import asyncio
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, Context, Ordering, ParallelConsumer, Retries
from headway.core.levels.capacity import exponential_shares
from headway.core.retry import fixed_backoff
from headway.errors import TimeLimitError
from tests.contract.conftest import Cluster
from tests.contract.parallel import process_handlers as handlers  # by a name that processes can import too
from tests.contract.parallel.members import Member, consumer, plain_topic, send, wait_for

pytestmark = pytest.mark.kafka

AGAIN: dict[str, Any] = {"retries": Retries(fixed_backoff(0.05))}


def records(count: int, value: str = "v") -> list[tuple[str | None, str]]:
    return [(f"key-{i}", value) for i in range(count)]


class Running:
    """How many run, and how many did at the most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.total = self.most_at_first = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)
            if self.total <= 100:  # an adaptive limit looks for the first time when 108 have ended
                self.most_at_first = self.most

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.now -= 1


# Time limits


def test_a_coroutine_that_takes_too_long_is_cancelled_and_tried_again(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, records(20))
    attempts: list[tuple[int, str]] = []
    cancelled: list[int] = []
    parallel = consumer(kafka_cluster, topic, {"time_limit": 0.3} | AGAIN)

    async def handle(record: ConsumerRecord, context: Context) -> None:
        attempts.append((context.attempt, repr(context.last_error)))
        try:
            if context.attempt == 1:
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(record.offset)
            raise

    member = Member(parallel, handle)
    wait_for(lambda: parallel.metrics().done == 20)
    member.stop()
    assert len(cancelled) == 20
    error = "TimeLimitError('The handler did not end within its time limit of 0.3 s.')"
    assert sorted(attempts) == [(1, "None")] * 20 + [(2, error)] * 20


def test_a_thread_that_takes_too_long_is_interrupted_even_where_it_takes_every_exception_for_its_own(
    kafka_cluster: Cluster,
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, records(20))
    errors: list[BaseException | None] = []
    parallel = consumer(kafka_cluster, topic, {"time_limit": 0.3} | AGAIN)

    def handle(record: ConsumerRecord, context: Context) -> None:
        while context.attempt == 1:
            try:
                threading.Event().wait(0.01)
            except Exception:  # noqa: S112 - that is what is tested
                continue
        errors.append(context.last_error)

    member = Member(parallel, handle)
    wait_for(lambda: parallel.metrics().done == 20)
    member.stop()
    assert len(errors) == 20
    assert all(isinstance(error, TimeLimitError) for error in errors)


# Rates


def handle_nothing(record: ConsumerRecord, context: Context) -> None: ...


async def await_nothing(record: ConsumerRecord, context: Context) -> None: ...


@pytest.mark.quick("await_nothing-200")
@pytest.mark.parametrize("rate", [5, 200, 1500])
@pytest.mark.parametrize("handler", [handle_nothing, await_nothing])
def test_records_start_at_the_rate_given(
    kafka_cluster: Cluster, rate: int, handler: Callable[[ConsumerRecord, Context], Any]
) -> None:
    topic, count = plain_topic(kafka_cluster), 4 * rate
    send(kafka_cluster, topic, records(count))
    parallel = consumer(kafka_cluster, topic, {"rate_limit": rate})
    member = Member(parallel, handler)
    looks: list[tuple[float, float, int]] = []  # the earliest and the latest time at which so many were done
    while not looks or looks[-1][-1] < count:
        begin = time.monotonic()
        done = parallel.metrics().done
        looks.append((begin, time.monotonic(), done))
        threading.Event().wait(0.02)
    member.stop()
    assert 0.8 * rate <= most_per_second(looks, least=2) <= 1.2 * rate


def most_per_second(looks: Sequence[tuple[float, float, int]], least: float) -> float:
    """In the quickest stretch of so many seconds at the least: a pause of the machine makes others slower."""
    pairs = itertools.combinations(looks, 2)
    return max((more - few) / (end - begin) for (_, begin, few), (end, _, more) in pairs if end - begin >= least)


@pytest.mark.slow
def test_the_records_of_batches_count_for_the_rate(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "v")] * 3000)
    parallel = consumer(kafka_cluster, topic, {"rate_limit": 500, "ordering": Ordering.UNORDERED})
    starts: list[tuple[float, int]] = []

    def handle(batch: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
        starts.append((time.monotonic(), len(batch)))
        if sum(size for _, size in starts) >= 1500:
            parallel.stop()

    parallel.run(handle, batches=Batches(20))
    begun = itertools.accumulate((size for _, size in starts), initial=0)
    looks = [(at, at, before) for (at, _), before in zip(starts, begun, strict=False)]
    assert most_per_second(looks, least=1) == pytest.approx(500, rel=0.2)
    early = sum(size for at, size in starts if at < starts[0][0] + 0.2)
    assert early <= 500 * 0.25 + 20


# Concurrency


@pytest.mark.parametrize("executor", ["threads", "async"])
def test_an_adaptive_limit_grows_under_load_and_stays_within_what_is_allowed(
    kafka_cluster: Cluster, executor: str
) -> None:
    topic, count = plain_topic(kafka_cluster), 8000
    send(kafka_cluster, topic, records(count))
    parallel = consumer(kafka_cluster, topic, {"max_concurrency": 60, "adaptive": True})
    running = Running()

    def handle(record: ConsumerRecord, context: Context) -> None:
        with running:
            time.sleep(0.05)

    async def handle_async(record: ConsumerRecord, context: Context) -> None:
        with running:
            await asyncio.sleep(0.05)

    member = Member(parallel, handle if executor == "threads" else handle_async)
    wait_for(lambda: running.most > 40 or running.total == count, 90)
    member.stop()
    assert running.most_at_first <= 8
    assert 40 < running.most <= 60


def test_an_adaptive_limit_stays_small_where_more_do_not_help(kafka_cluster: Cluster) -> None:
    topic, count = plain_topic(kafka_cluster), 2000
    send(kafka_cluster, topic, records(count))
    parallel = consumer(kafka_cluster, topic, {"max_concurrency": 60, "adaptive": True})
    running, service, late = Running(), threading.Semaphore(3), Running()
    seen: list[int] = []
    seen_late: list[int] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        with running:
            seen.append(running.now)
            if running.total < count * 3 // 4:
                with service:
                    time.sleep(0.005)
                return
            with late, service:
                seen_late.append(late.now)
                time.sleep(0.005)

    member = Member(parallel, handle)
    wait_for(lambda: parallel.metrics().done == count)
    member.stop()
    # Of most records: while the machine pauses, more may seem to help.
    assert statistics.median(seen) <= 20
    assert late.most >= 2
    assert statistics.median(seen_late) <= 10


@pytest.mark.quick("async", "adaptive")
@pytest.mark.parametrize("mode", ["threads", "async", "process", "batches", "results", "adaptive"])
def test_no_more_run_than_max_concurrency(
    kafka_cluster: Cluster, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, count, most = plain_topic(kafka_cluster), 300, 5
    send(kafka_cluster, topic, records(count, "nothing"))
    running, seen = Running(), list[int]()
    options: dict[str, Any] = {"max_concurrency": most, "adaptive": mode == "adaptive"}
    if mode == "process":
        monkeypatch.setenv(handlers.NOTES, str(tmp_path / "notes"))
        options |= {"executor": "process", "processes": 2}
    parallel = consumer(kafka_cluster, topic, options)

    def handle(record: ConsumerRecord, context: Context) -> None:
        with running:
            time.sleep(0.002)

    async def handle_async(record: ConsumerRecord, context: Context) -> None:
        with running:
            await asyncio.sleep(0.002)

    def handle_batch(batch: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
        with running:
            time.sleep(0.002 * len(batch))

    def run() -> None:
        if mode == "batches":
            parallel.run(handle_batch, batches=Batches(7))
        elif mode == "results":
            seen.extend(parallel.metrics().running for _ in parallel.results(handle))
        else:
            parallel.run({"async": handle_async, "process": handlers.act}.get(mode, handle))

    thread = threading.Thread(target=run)
    thread.start()
    while (metrics := parallel.metrics()).done < count - (mode == "results"):
        seen.append(metrics.running)
        threading.Event().wait(0.001)
    parallel.close()
    thread.join(30)
    assert running.most <= most
    assert max(seen) <= (7 * most if mode == "batches" else most)
    assert mode in ("process", "adaptive") or running.most > 2


def test_a_batch_that_takes_long_does_not_keep_the_next_from_the_slots_that_are_free(kafka_cluster: Cluster) -> None:
    topic, go_on, done = plain_topic(kafka_cluster), threading.Event(), threading.Semaphore(0)
    send(kafka_cluster, topic, [(f"key-{i % 10}", str(i)) for i in range(1000)])

    def handle(batch: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
        if any(record.value == b"0" for record in batch):
            go_on.wait(60)
        for _ in batch:
            done.release()

    parallel = consumer(kafka_cluster, topic, {"max_concurrency": 2})
    thread = threading.Thread(target=lambda: parallel.run(handle, batches=Batches(10)))
    thread.start()
    try:
        assert all(done.acquire(timeout=20) for _ in range(900))  # all the other keys
    finally:
        go_on.set()
        parallel.close()
        thread.join(30)


# Levels


def with_levels(cluster: Cluster, topic: str, **options: Any) -> ParallelConsumer:
    return consumer(cluster, topic, {"max_concurrency": 7} | options, levels=3)


POLICIES: list[dict[str, Any]] = [
    {"policy": "strict"},
    {"policy": "fair"},
    {"policy": "fair", "distributor": exponential_shares},
]


@pytest.mark.parametrize("options", POLICIES, ids=["strict", "fair", "fair with a distributor"])
def test_a_high_record_waits_for_one_free_slot_only(kafka_cluster: Cluster, options: dict[str, Any]) -> None:
    topic, gates, order = kafka_cluster.topic(), threading.Semaphore(0), list[int]()

    def handle(record: ConsumerRecord, context: Context) -> None:
        order.append(context.level)
        gates.acquire(timeout=30)

    parallel = with_levels(kafka_cluster, topic, **options)
    with kafka_cluster.producer() as producer:
        for i in range(200):
            producer.send(topic, "low", key=str(i), level=0)
        producer.flush(30)
        member = Member(parallel, handle)
        try:
            wait_for(lambda: parallel.metrics().ready == 200 - 7)
            producer.send(topic, "high", key="k", level=2).result(30)
            wait_for(lambda: parallel.metrics().ready == 200 - 7 + 1)
            wait_for(lambda: order == [0] * 7)
            gates.release()
            wait_for(lambda: len(order) == 8)
            assert order[7] == 2
        finally:
            gates.release(1000)
            member.stop()


def test_under_capacity_burst_each_level_keeps_to_its_share_while_all_have_records(kafka_cluster: Cluster) -> None:
    topic, running, seen = kafka_cluster.topic(), [0, 0, 0], list[tuple[int, ...]]()

    async def handle(record: ConsumerRecord, context: Context) -> None:
        running[context.level] += 1
        seen.append(tuple(running))
        await asyncio.sleep(0.02)
        running[context.level] -= 1

    with kafka_cluster.producer() as producer:
        for level in range(3):
            for i in range(2000):
                producer.send(topic, "flood", key=str(i), level=level)
        producer.flush(30)
    parallel = with_levels(kafka_cluster, topic, policy="capacity_burst", max_concurrency=14)
    member = Member(parallel, handle)
    wait_for(lambda: (2, 4, 8) in seen)
    count = len(seen)
    wait_for(lambda: len(seen) > count + 500)
    member.stop()
    assert all(now <= share for each in seen[count : count + 500] for now, share in zip(each, (2, 4, 8), strict=True))

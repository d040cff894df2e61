"""What each metric of a parallel consumer means, shown by runs in which the right values are known."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headway import ConsumerRecord, FatalError, ParallelConsumer, Retries, fixed_backoff
from headway.core.levels.naming import level_topic
from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Measure, Sample
from headway.metrics.table import METRICS
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, consumer, plain_topic, settings_of, topic_of, wait_for

pytestmark = pytest.mark.kafka


def values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels, without the group. Of a histogram the number of values."""
    return {
        each.labels[1:]: each.value.count if isinstance(each.value, HistogramValue) else each.value
        for each in samples
        if each.name == f"headway_{name}"
    }


def only(measure: Measure, name: str) -> float:
    """The value of a metric that has one series."""
    found = values(measure(), name)
    return next(iter(found.values())) if len(found) == 1 else -1


class Handler:
    """Does with each record what its value says."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.failed_once = False

    def handle(self, record: ConsumerRecord) -> None:
        match record.value:
            case b"hang":
                assert self.go_on.wait(60)
            case b"fail once":
                if not self.failed_once:
                    self.failed_once = True
                    raise ConnectionError("the first time")
            case b"dead":
                raise FatalError("it can never be handled")
            case b"late":
                threading.Event().wait(0.3)
                time.sleep(0.3)


@contextmanager
def running(parallel: ParallelConsumer, handler: Handler) -> Iterator[None]:
    thread = threading.Thread(target=parallel.run, args=(handler.handle,))
    thread.start()
    try:
        yield
    finally:
        handler.go_on.set()
        parallel.close()
        thread.join()


def test_the_metrics_of_a_run_with_two_levels_are_what_happened(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic(levels=2)
    dead = plain_topic(kafka_cluster)
    settings = settings_of(topic, levels=2, **OFTEN, **{"statistics.interval.ms": 200, "client.id": "till"})
    parallel = ParallelConsumer(
        kafka_cluster.config(settings),
        max_concurrency=4,
        tenant="key",
        dead_letter_topic=dead,
        time_limit=0.2,
        executor="thread",
        retries=Retries(backoff=fixed_backoff(0.05), max_attempts=4),
    )
    measure = parallel.measure()
    assert measure()
    assert values(measure(), "consumer_state")["starting",] == 1
    parallel.subscribe(topic)
    producer = kafka_cluster.plain_producer()
    low, high = (level_topic(topic, level) for level in range(2))
    old = int((time.time() - 100) * 1000)
    producer.produce(low, b"ok", "ann", 0, timestamp=old)
    for value in (b"dead", b"fail once", b"late"):
        producer.produce(low, value, f"bob-{value!r}", 0)
    for _ in range(5):
        producer.produce(high, b"ok", "ann", 0)
    assert producer.flush(30) == 0
    handler = Handler()
    with running(parallel, handler):
        wait_for(lambda: only(measure, "handler_done_total") == 9)
        wait_for(lambda: sum(values(measure(), "partition_not_done").values()) == 0)
        wait_for(lambda: values(measure(), "partition_committed_offset")[topic, "0", "0"] == 4)
        wait_for(lambda: values(measure(), "librdkafka_requests_total"))
        samples = measure()
        assert values(samples, "consumer_state")["running",] == 1
        assert values(samples, "librdkafka_broker_up")[kafka_cluster.bootstrap_servers,] == 1
        assert {each.labels[0] for each in samples if each.name.startswith("headway_librdkafka")} == {"till"}
    samples = measure()  # the last totals, after the consumer was closed
    name = ("Handler.handle",)
    assert values(samples, "handler_done_total") == {name: 9}
    assert values(samples, "level_done_total") == {("0",): 4, ("1",): 5}
    failed = values(samples, "handler_failed_total")
    assert failed == {
        (*name, "FatalError"): 1,
        (*name, "ConnectionError"): 1,
        (*name, "TimeLimitError"): 4,
    }
    assert values(samples, "handler_timed_out_total") == {name: 4}
    assert values(samples, "handler_retried_total") == {name: 1 + 3}
    assert values(samples, "handler_dead_letters_total") == {name: 2}
    assert values(samples, "handler_duration_seconds") == {name: 9 + 4}
    assert values(samples, "level_queue_seconds") == {("0",): 4, ("1",): 5}
    [slowest] = [each.value for each in samples if each.name == "headway_level_queue_seconds" and each.labels[1] == "0"]
    assert isinstance(slowest, HistogramValue)
    assert 100 <= slowest.sum < 150
    share = values(samples, "level_share_ratio")
    assert share["0",] == pytest.approx(1 / 3)
    assert share["1",] == pytest.approx(2 / 3)
    assert values(samples, "consumer_commits_total")[()] >= 2
    assert values(samples, "consumer_commit_seconds")[()] == values(samples, "consumer_commits_total")[()]
    assert values(samples, "consumer_rebalances_total")[()] >= 2
    assert values(samples, "tenant_handler_seconds_total")["bob-b'late'",] >= 0.2
    assert values(samples, "consumer_state")["closed",] == 1
    assert values(samples, "handler_running") == {name: 0}
    assert {each.name for each in samples} <= METRICS.keys()


def test_a_stuck_record_is_one_record_that_is_not_done(kafka_cluster: Cluster) -> None:
    """Whatever is done behind it; the commit alone says that all of them are not."""
    topic = topic_of(kafka_cluster, 1)
    producer = kafka_cluster.plain_producer()
    producer.produce(topic, b"hang", "stuck", 0)
    for number in range(500):
        producer.produce(topic, b"ok", str(number), 0)
    assert producer.flush(30) == 0
    parallel = consumer(kafka_cluster, topic, {"max_concurrency": 10}, **OFTEN)
    measure = parallel.measure()
    handler = Handler()
    with running(parallel, handler):
        wait_for(lambda: only(measure, "handler_done_total") == 500)
        wait_for(lambda: only(measure, "partition_not_done") == 1)
        wait_for(lambda: only(measure, "partition_stuck_seconds") > 1)
        wait_for(lambda: only(measure, "partition_map_characters") > 0)
        samples = measure()
        at = (topic, "0", "0")
        assert values(samples, "partition_incomplete") == {at: 1}
        assert values(samples, "partition_committable_offset") == {at: 0}
        assert values(samples, "partition_committed_offset") == {at: 0}
        assert values(samples, "partition_highest_done_offset") == {at: 500}
        assert values(samples, "partition_end_offset") == {at: 501}
        assert values(samples, "partition_position_offset") == {at: 501}
        assert values(samples, "level_not_done") == {at[:2]: 1}
        assert 1 < values(samples, "level_oldest_seconds")[at[:2]] < 60
        work, mean = values(samples, "level_work_seconds")[at[:2]], mean_of(samples)
        assert 0 < work < 10 * mean  # one record, by the mean of the last hundred attempts, in ten slots
        assert values(samples, "handler_running") == {("Handler.handle",): 1}
        assert values(samples, "handler_slots") == {("Handler.handle",): 10}
        assert values(samples, "partition_paused") == {}
        parallel.pause()
        wait_for(lambda: values(measure(), "partition_paused") == {(*at, "user"): 1})
        parallel.resume()
        wait_for(lambda: values(measure(), "partition_paused") == {})
        handler.go_on.set()
        wait_for(lambda: only(measure, "partition_not_done") == 0)
        assert only(measure, "partition_stuck_seconds") == 0
        wait_for(lambda: only(measure, "partition_committed_offset") == 501)


def mean_of(samples: list[Sample]) -> float:
    [duration] = [each.value for each in samples if each.name == "headway_handler_duration_seconds"]
    assert isinstance(duration, HistogramValue)
    assert duration.mean is not None
    return duration.mean


def test_what_is_still_in_kafka_is_not_done_and_counts_as_work(kafka_cluster: Cluster) -> None:
    """Although nothing is fetched while the buffer is full, what is sent meanwhile is seen."""
    topic = topic_of(kafka_cluster, 1)
    producer = kafka_cluster.plain_producer()
    for number in range(300):
        producer.produce(topic, b"hang", str(number), 0)
    assert producer.flush(30) == 0
    parallel = consumer(kafka_cluster, topic, {"max_concurrency": 2, "buffer_records": 20})
    measure = parallel.measure()
    handler = Handler()
    with running(parallel, handler):
        wait_for(lambda: only(measure, "partition_not_done") == 300)
        for number in range(200):
            producer.produce(topic, b"ok", str(number), 0)
        assert producer.flush(30) == 0
        wait_for(lambda: only(measure, "partition_not_done") == 500)
        assert only(measure, "handler_ready") < 100
        assert values(measure(), "level_work_seconds") == {}  # no attempt has ended, so it is not known
        handler.go_on.set()
        wait_for(lambda: only(measure, "level_not_done") == 0)
        assert only(measure, "level_work_seconds") == 0


def test_measuring_begins_while_records_run(kafka_cluster: Cluster) -> None:
    """What has started before does not count as an attempt, but is done."""
    topic = topic_of(kafka_cluster, 1)
    producer = kafka_cluster.plain_producer()
    producer.produce(topic, b"hang", "before", 0)
    assert producer.flush(30) == 0
    parallel = consumer(kafka_cluster, topic, **OFTEN)
    handler = Handler()
    with running(parallel, handler):
        wait_for(lambda: parallel.metrics().running == 1)
        measure = parallel.measure()
        assert parallel.measure() == measure
        handler.go_on.set()
        wait_for(lambda: only(measure, "level_done_total") == 1)
        assert only(measure, "handler_duration_seconds") == 0
        producer.produce(topic, b"ok", "after", 0)
        wait_for(lambda: only(measure, "handler_duration_seconds") == 1)

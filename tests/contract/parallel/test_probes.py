"""The probes of a parallel consumer: red when something is wrong that they are about, and green again after it."""

import gc
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka as ck
import pytest

from headway import CircuitBreaker, ConsumerRecord, ParallelConsumer
from headway.broker import LocalBroker
from headway.probes import Probes, serve_probes
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, consumer, settings_of, topic_of, wait_for

pytestmark = pytest.mark.kafka


def get(probes: Probes, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{probes.address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def is_green(probes: Probes, path: str) -> Callable[[], bool]:
    return lambda: get(probes, path) == (200, "ok\n")


def is_red(probes: Probes, path: str, sentence: str) -> Callable[[], bool]:
    def check() -> bool:
        status, text = get(probes, path)
        return status == 503 and sentence in text

    return check


@contextmanager
def running(parallel: ParallelConsumer, handle: Callable[[ConsumerRecord], object]) -> Iterator[None]:
    thread = threading.Thread(target=parallel.run, args=(handle,))
    thread.start()
    try:
        yield
    finally:
        parallel.close(drain=False)
        thread.join()


def send(cluster: Cluster, topic: str, count: int) -> None:
    producer = cluster.plain_producer()
    for number in range(count):
        producer.produce(topic, b"x", str(number), 0)
    assert producer.flush(30) == 0


def test_a_consumer_is_ready_once_its_lifespan_was_entered_and_it_has_partitions(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    enters = threading.Event()

    @contextmanager
    def lifespan() -> Iterator[None]:
        assert enters.wait(30)
        yield

    parallel = consumer(kafka_cluster, topic, {"lifespan": lifespan})
    with serve_probes(parallel, "127.0.0.1:0") as probes:
        assert is_red(probes, "/readyz", "has not started")()
        with running(parallel, lambda record: None):
            assert is_red(probes, "/readyz", "lifespan")()
            assert is_green(probes, "/livez")()
            enters.set()
            wait_for(is_green(probes, "/readyz"))
            status, text = get(probes, "/metrics")
            assert status == 200
            assert f'headway_consumer_state{{group="{topic}",state="running"}} 1.0' in text
        assert is_red(probes, "/readyz", "has ended")()
        assert is_green(probes, "/livez")()


def test_a_partition_that_librdkafka_no_longer_fetches_makes_livez_red(kafka_cluster: Cluster) -> None:
    """Its client is paused behind the back of the consumer, as a fault of librdkafka would do it."""
    topic = topic_of(kafka_cluster, 1)
    parallel = consumer(kafka_cluster, topic, **OFTEN)
    measured = parallel.measure()
    with serve_probes(parallel, "127.0.0.1:0", stalls_after=3) as probes, running(parallel, lambda record: None):
        send(kafka_cluster, topic, 10)
        wait_for(lambda: parallel.metrics().done == 10)
        wait_for(lambda: any(each.name == "headway_partition_not_done" for each in measured()))
        # `type`, because `isinstance` also asks for `__class__`, which odd objects of other tests refuse
        clients = [each for each in gc.get_objects() if issubclass(type(each), ck.Consumer)]
        [client] = [each for each in clients if reads(each, topic)]
        client.pause([ck.TopicPartition(topic, 0)])
        send(kafka_cluster, topic, 10)
        wait_for(is_red(probes, "/livez", f"Partition 0 of {topic} at level 0 has stood still"))
        assert is_red(probes, "/readyz", "stood still")()
        client.resume([ck.TopicPartition(topic, 0)])
        wait_for(is_green(probes, "/livez"))
        wait_for(lambda: parallel.metrics().done == 20)
        wait_for(is_green(probes, "/readyz"))


def reads(client: ck.Consumer, topic: str) -> bool:
    try:
        return any(each.topic == topic for each in client.assignment())
    except RuntimeError:  # it is closed
        return False


def test_a_function_that_blocks_the_control_thread_makes_livez_red(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    go_on = threading.Event()

    def tenant(record: ConsumerRecord) -> str:
        assert go_on.wait(60)
        return "ann"

    parallel = consumer(kafka_cluster, topic, {"tenant": tenant})
    with serve_probes(parallel, "127.0.0.1:0", stalls_after=1) as probes, running(parallel, lambda record: None):
        wait_for(is_green(probes, "/readyz"))
        send(kafka_cluster, topic, 1)
        wait_for(is_red(probes, "/livez", "has made no round"))
        go_on.set()
        wait_for(is_green(probes, "/livez"))
        wait_for(is_green(probes, "/readyz"))


def test_slow_handlers_pauses_and_an_open_circuit_leave_livez_green(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    go_on = threading.Event()
    is_down = True

    def handle(record: ConsumerRecord) -> None:
        if is_down:
            raise ConnectionError("the bank is down")
        assert go_on.wait(60)

    options = {"max_concurrency": 2, "buffer_records": 4, "circuit_breaker": CircuitBreaker(window=2)}
    parallel = consumer(kafka_cluster, topic, options)
    with serve_probes(parallel, "127.0.0.1:0", stalls_after=0.5) as probes, running(parallel, handle):
        send(kafka_cluster, topic, 200)
        wait_for(lambda: parallel.metrics().circuit_open)
        stays_green(probes)
        is_down = False
        wait_for(lambda: parallel.metrics().running == 1)  # the probe of the circuit hangs, and all others wait
        stays_green(probes)
        parallel.pause()
        go_on.set()
        stays_green(probes)
        parallel.resume()
        wait_for(lambda: parallel.metrics().done == 200)


def stays_green(probes: Probes) -> None:
    until = time.monotonic() + 2
    while time.monotonic() < until:
        assert get(probes, "/livez") == (200, "ok\n")
        threading.Event().wait(0.1)


@pytest.mark.slow
def test_readyz_is_red_while_the_broker_is_gone_and_livez_is_not() -> None:
    with LocalBroker(ephemeral=True) as broker:
        cluster = Cluster(broker.bootstrap_servers, lambda topics: None)
        topic = topic_of(cluster, 1)
        parallel = ParallelConsumer(cluster.config(settings_of(topic, **OFTEN)))
        parallel.subscribe(topic)
        with serve_probes(parallel, "127.0.0.1:0", stalls_after=5) as probes, running(parallel, lambda record: None):
            wait_for(is_green(probes, "/readyz"))
            broker.nodes[0].stop()
            wait_for(is_red(probes, "/readyz", "Kafka has not answered"), 60)
            assert is_green(probes, "/livez")()
            broker.nodes[0].start()
            wait_for(is_green(probes, "/readyz"), 60)
            assert is_green(probes, "/livez")()

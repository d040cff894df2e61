"""What is refused as a whole: topics that are not there or may not be written, on a real Apache Kafka with ACLs."""

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from headway import ParallelConsumer, Producer, ProducerRecord, RetryLater
from headway.broker import LocalBroker
from headway.core.delay.schedule import HEADER
from headway.core.retry import Retries, fixed_backoff
from headway.errors import ConfigError, DeliveryError, KafkaError, NoRelayError, TransactionError
from headway.kafka.producer.columnar import ColumnarProducer, Columns
from tests.broker.delay_cluster import DelayCluster, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

MODES = pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
COMMIT_MODES = pytest.mark.parametrize("commit_mode", ["async", "transactional"])
WAYS = pytest.mark.parametrize("way", ["missing", "forbidden"])
EVERYBODY = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A broker on which everybody may do what no ACL forbids."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with LocalBroker(
        properties={"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
    ) as broker:
        yield broker


@pytest.fixture
def cluster(broker: LocalBroker) -> DelayCluster:
    return DelayCluster(broker.bootstrap_servers)


class Permissions:
    """Takes topics, or the right to write to them, away and gives them back."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def take(self, topic: str, way: str) -> None:
        if way == "missing":
            self._admin.delete_topics([topic])[topic].result(30)
            wait_until(lambda: topic not in self._admin.list_topics(timeout=10).topics)
        else:  # an ACL makes all else need one
            ways = [(AclOperation.ALL, AclPermissionType.ALLOW), (AclOperation.WRITE, AclPermissionType.DENY)]
            acls = [
                AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, EVERYBODY, "*", *each)
                for each in ways
            ]
            for created in self._admin.create_acls(acls).values():
                created.result(30)

    def give_back(self, topic: str, way: str) -> None:
        if way == "missing":
            self.create(topic)
        else:
            about = AclBindingFilter(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                None,  # type: ignore[arg-type]  # any principal
                None,  # type: ignore[arg-type]  # from any host
                AclOperation.ANY,
                AclPermissionType.ANY,
            )
            for deleted in self._admin.delete_acls([about]).values():
                deleted.result(30)

    def create(self, topic: str, **config: str) -> None:
        self._admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(30)


@pytest.fixture
def permissions(cluster: DelayCluster) -> Permissions:
    return Permissions(cluster.admin)


def keys_of(messages: list[Any]) -> Counter[str]:
    return Counter(message.key().decode() for message in messages)


# Relays


@WAYS
@MODES
def test_a_dead_letter_that_cannot_be_stored_waits_in_the_lines_and_all_others_arrive_once(
    cluster: DelayCluster, permissions: Permissions, mode: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    dead, count = cluster.names.dead, 60
    permissions.take(dead, way)
    cluster.put(cluster.names.delay_topic(1000), b"bare", b"v", [("own", b"header")])
    bad = [f"lost-{number}" for number in range(5)]
    with cluster.scheduler() as scheduler:
        for number in range(count):
            scheduler.send_later(f"{number}", b"v", cluster.target, 0.3 + number / 40)
        for key in bad:
            scheduler.send_later(key, b"v", "no-such-topic", 0.5)
    with caplog.at_level(logging.WARNING, "headway"):
        with cluster.relay(mode=mode) as relay:
            cluster.wait_for(count)
            seen = relay.counts["rounds"]
            wait_until(lambda: relay.counts["rounds"] > seen + 1)  # of letters that come again
        with cluster.relay(mode=mode):  # another one finds them where they are
            permissions.give_back(dead, way)
            letters = cluster.wait_for(len(bad) + 1, dead)
    assert keys_of(cluster.read()) == Counter(map(str, range(count)))
    assert keys_of(letters) == Counter([*bad, "bare"])
    found = {letter.key().decode(): letter.headers() for letter in letters}
    assert [name for name, _ in found["bare"] if not name.startswith(("headway.error.", "headway.history"))] == ["own"]
    assert [name for name, _ in found["lost-0"] if not name.startswith(("headway.error.", "headway.history"))] == [
        HEADER
    ]
    assert dict(found["lost-0"])["headway.error.topic"].decode().startswith(cluster.names.delay_topic(0)[:-1])
    warnings = [record.getMessage() for record in caplog.records if "Nothing can be written to" in record.getMessage()]
    assert 1 <= len(warnings) <= 4
    assert all(f"The topic {dead} {'does not exist' if way == 'missing' else 'cannot be'}" in said for said in warnings)
    assert not [record for record in caplog.records if "Purged" in record.getMessage() or "anew" in record.getMessage()]


@MODES
def test_a_right_to_write_dead_letters_that_is_lost_while_a_relay_runs_costs_nothing_but_time(
    cluster: DelayCluster, permissions: Permissions, mode: str
) -> None:
    dead = cluster.names.dead
    with cluster.scheduler() as scheduler, cluster.relay(mode=mode):
        scheduler.send_later("lost-0", b"v", "no-such-topic", 0.1)
        cluster.wait_for(1, dead)
        permissions.take(dead, "forbidden")
        for number in range(40):
            scheduler.send_later(f"{number}", b"v", cluster.target, 0.2 + number / 40)
            if number % 8 == 0:
                scheduler.send_later(f"lost-{number + 1}", b"v", "no-such-topic", 0.2 + number / 40)
        cluster.wait_for(40)
        permissions.give_back(dead, "forbidden")
        letters = cluster.wait_for(6, dead)
    assert keys_of(cluster.read()) == Counter(map(str, range(40)))
    assert keys_of(letters) == Counter(["lost-0", *(f"lost-{number + 1}" for number in range(0, 40, 8))])


@pytest.mark.slow
@MODES
def test_a_target_that_may_not_be_written_makes_dead_letters_and_keeps_no_other_waiting(
    cluster: DelayCluster, permissions: Permissions, mode: str
) -> None:
    forbidden = f"{cluster.target}-forbidden"
    cluster.create_target(forbidden)
    permissions.take(forbidden, "forbidden")
    with cluster.scheduler() as scheduler, cluster.relay(mode=mode):
        for number in range(40):
            scheduler.send_later(f"{number}", b"v", forbidden if number % 4 == 0 else cluster.target, 0.5)
        found = cluster.wait_for(30)
        letters = cluster.dead_letters(10)
    assert sorted(int(message.key()) for message in found) == [number for number in range(40) if number % 4]
    assert all(forbidden.encode() in letter["headway.error.message"] for letter in letters)


@MODES
def test_an_answer_that_may_not_be_written_is_left_out_and_its_command_carried_out(
    cluster: DelayCluster, permissions: Permissions, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    permissions.take(cluster.names.answers, "forbidden")
    with cluster.scheduler() as scheduler, cluster.relay(mode=mode), caplog.at_level(logging.WARNING, "headway"):
        handles = [scheduler.send_later(f"{number}", b"v", cluster.target, 2.0) for number in range(20)]
        for handle in handles[:3]:
            with pytest.raises(NoRelayError):
                scheduler.cancel(handle).settled(timeout=0.3)
        cluster.wait_for(17)
        assert keys_of(cluster.read()) == Counter(map(str, range(3, 20)))
    [said] = [record.getMessage() for record in caplog.records if "Nothing can be written to" in record.getMessage()]
    assert f"The topic {cluster.names.answers} cannot be written" in said or "authorization" in said
    assert not [record for record in caplog.records if "Purged" in record.getMessage() or "anew" in record.getMessage()]


# The parallel consumer


class Run:
    """A run of a parallel consumer, whose handler fails for every tenth record."""

    def __init__(
        self, cluster: DelayCluster, source: str, settings: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        own = {"group.id": source, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
        self.calls = Counter[int]()
        self.consumer = ParallelConsumer({**cluster.config, **own, **(settings or {})}, max_concurrency=4, **options)
        self.consumer.subscribe(source)

    def fail_some(self, record: Any, context: Any) -> None:
        number = int(record.value)
        self.calls[number] += 1
        if number % 10 == 0:
            raise ValueError("never")

    @contextmanager
    def running(self, run: Callable[[ParallelConsumer], None]) -> Iterator[None]:
        with self.consumer, ThreadPoolExecutor(1) as thread:
            ended = thread.submit(run, self.consumer)
            wait_until(lambda: ended.done() or self.consumer.metrics().remaining or self.consumer.metrics().done)
            try:
                yield
            finally:
                self.consumer.close()
            ended.result()


def once(call: Callable[[], None]) -> Callable[[], None]:
    """The call, of which only the first does anything, and the others wait for it."""
    lock, called = threading.Lock(), list[bool]()

    def first() -> None:
        with lock:
            if not called:
                call()
                called.append(True)

    return first


def source_of(cluster: DelayCluster, permissions: Permissions, count: int) -> str:
    source = f"source-{uuid.uuid4().hex[:8]}"
    permissions.create(source)
    with closing(ck.Producer({"log_level": 0, **cluster.config})) as producer:
        for number in range(count):
            producer.produce(source, str(number), str(number))
        assert producer.flush(30) == 0
    return source


def committed(cluster: DelayCluster, source: str) -> int:
    with closing(ck.Consumer({"log_level": 0, **cluster.config, "group.id": source})) as client:
        places = client.committed([ck.TopicPartition(source, number) for number in range(2)], 10)
    return sum(max(0, place.offset) for place in places)


@WAYS
@COMMIT_MODES
def test_a_dead_letter_topic_that_cannot_be_written_is_told_before_the_run_begins(
    cluster: DelayCluster, permissions: Permissions, commit_mode: Any, way: str
) -> None:
    source, dead = source_of(cluster, permissions, 1), f"dead-{uuid.uuid4().hex[:8]}"
    permissions.create(dead)
    permissions.take(dead, way)
    run = Run(cluster, source, dead_letter_topic=dead, commit_mode=commit_mode)
    said = (
        "does not exist. Create it with"
        if way == "missing"
        else "cannot be written: this client is not authorized. Grant Write"
    )
    with run.consumer, pytest.raises(ConfigError, match=f"Dead letters cannot be stored. The topic {dead} {said}"):
        run.consumer.run(run.fail_some)
    assert not run.calls


@WAYS
def test_the_letter_of_a_record_is_tried_again_and_not_its_handler_and_other_records_go_on(
    cluster: DelayCluster, permissions: Permissions, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    count = 200
    source, dead = source_of(cluster, permissions, count), f"dead-{uuid.uuid4().hex[:8]}"
    permissions.create(dead)
    run = Run(cluster, source, dead_letter_topic=dead, retries=Retries(fixed_backoff(0.01), max_attempts=2))
    take = once(lambda: permissions.take(dead, way))

    def handle(record: Any, context: Any) -> None:
        take()
        run.fail_some(record, context)

    with caplog.at_level(logging.WARNING, "headway"), run.running(lambda consumer: consumer.run(handle)):
        # Four slots and twenty letters that wait: they keep none.
        wait_until(lambda: run.consumer.metrics().done == count - count // 10)
        assert run.consumer.metrics().dead_letters == 0
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 2)  # for what must not come
        assert run.consumer.metrics().done == count - count // 10
        permissions.give_back(dead, way)
        wait_until(lambda: run.consumer.metrics().done == count)
        assert run.consumer.metrics().dead_letters == count // 10
    assert run.calls == {number: 1 + (number % 10 == 0) for number in range(count)}
    assert Counter(int(letter.value()) for letter in cluster.read(dead)) == Counter(range(0, count, 10))
    assert committed(cluster, source) == count
    warnings = [record for record in caplog.records if "Dead letters cannot be stored in" in record.getMessage()]
    assert 1 <= len(warnings) <= 6


def test_in_transactions_a_letter_that_may_not_be_written_waits_with_its_commit_and_no_handler_is_called_again(
    cluster: DelayCluster, permissions: Permissions, caplog: pytest.LogCaptureFixture
) -> None:
    count = 50
    source, dead, out = (
        source_of(cluster, permissions, count),
        f"dead-{uuid.uuid4().hex[:8]}",
        f"out-{uuid.uuid4().hex[:8]}",
    )
    permissions.create(dead)
    permissions.create(out)
    options: dict[str, Any] = {"commit_mode": "transactional", "retries": Retries(fixed_backoff(0.01), max_attempts=2)}
    run = Run(cluster, source, dead_letter_topic=dead, **options)
    take = once(lambda: permissions.take(dead, "forbidden"))

    def handle(record: Any, context: Any) -> ProducerRecord:
        take()
        run.fail_some(record, context)
        return ProducerRecord(out, record.value)

    with (
        caplog.at_level(logging.WARNING, "headway"),
        run.running(lambda consumer: consumer.run_and_produce(handle)),
    ):
        wait_until(lambda: f"The topic {dead} cannot be written" in caplog.text)
        assert run.consumer.metrics().dead_letters == 0
        permissions.give_back(dead, "forbidden")
        wait_until(lambda: run.consumer.metrics().dead_letters == count // 10)
        wait_until(lambda: committed(cluster, source) >= count)
    assert run.calls == {number: 1 + (number % 10 == 0) for number in range(count)}
    assert Counter(int(letter.value()) for letter in cluster.read(dead)) == Counter(range(0, count, 10))
    assert len(cluster.read(out)) == count - count // 10
    assert "Purged" not in caplog.text
    assert "Name a dead_letter_topic" not in caplog.text


def test_in_transactions_outputs_for_a_topic_that_may_not_be_written_become_dead_letters_together(
    cluster: DelayCluster, permissions: Permissions
) -> None:
    count = 300
    source, dead, out = (
        source_of(cluster, permissions, count),
        f"dead-{uuid.uuid4().hex[:8]}",
        f"out-{uuid.uuid4().hex[:8]}",
    )
    for topic in (dead, out, f"{out}-not"):
        permissions.create(topic)
    permissions.take(f"{out}-not", "forbidden")
    run = Run(cluster, source, dead_letter_topic=dead, commit_mode="transactional")

    def handle(record: Any, context: Any) -> ProducerRecord:
        return ProducerRecord(out if int(record.value) % 2 else f"{out}-not", record.value)

    with run.running(lambda consumer: consumer.run_and_produce(handle)):
        wait_until(lambda: run.consumer.metrics().dead_letters == count // 2)
        wait_until(lambda: len(cluster.read(out)) == count // 2)
    letters = cluster.read(dead)
    assert Counter(int(letter.value()) for letter in letters) == Counter(range(0, count, 2))
    assert all(f"The topic {out}-not cannot be written" in str(letter.headers()) for letter in letters)


def test_a_schedule_that_is_refused_is_sent_again_and_its_handler_not_called(
    cluster: DelayCluster, permissions: Permissions, caplog: pytest.LogCaptureFixture
) -> None:
    count, line = 20, cluster.names.delay_topic(0)
    source = source_of(cluster, permissions, count)
    permissions.take(line, "forbidden")
    run = Run(cluster, source, settings={"scheduler.name": cluster.name})

    def handle(record: Any, context: Any) -> None:
        run.calls[int(record.value)] += 1
        raise RetryLater(0.1)

    with caplog.at_level(logging.WARNING, "headway"), run.running(lambda consumer: consumer.run(handle)):
        wait_until(lambda: len(run.calls) == count)  # of which each would keep one of four slots
        assert run.consumer.metrics().done == 0
        permissions.give_back(line, "forbidden")
        wait_until(lambda: run.consumer.metrics().done == count)
    assert set(run.calls.values()) == {1}
    # Beside them are the records without a value by which the scheduler learns the brokers' time.
    assert len([each for each in cluster.read(line) if each.value() is not None]) == count
    assert "Records that must be retried later cannot be stored now" in caplog.text


# Transactions of one's own


@pytest.mark.parametrize("is_told", [False, True])
def test_a_transaction_that_may_not_write_to_a_topic_says_so_when_it_is_committed(
    cluster: DelayCluster, permissions: Permissions, is_told: bool
) -> None:
    permissions.create(f"{cluster.target}-0")
    permissions.take(f"{cluster.target}-0", "forbidden")
    with Producer({**cluster.config, "transactional.id": cluster.name, "levels": 1}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        sent = producer.send(cluster.target, b"v")
        if is_told:
            with pytest.raises(DeliveryError):
                sent.result(30)
        with pytest.raises(KafkaError, match="Topic authorization failed"):
            producer.commit_transaction()


@pytest.mark.parametrize("which", ["target", "markers"])
def test_rows_of_a_transaction_that_may_not_be_written_are_refused_for_their_topic_and_not_as_purged(
    cluster: DelayCluster, permissions: Permissions, which: str
) -> None:
    topics = {each: f"{each}-{uuid.uuid4().hex[:8]}" for each in ("target", "markers", "other")}
    for topic in topics.values():
        permissions.create(topic)
    permissions.take(topics[which], "forbidden")

    def write() -> None:
        with ColumnarProducer(cluster.config, cluster.name) as rows:
            for topic in (topics["other"], topics["target"]):
                values = [b"v"] * 5
                rows.send(Columns(5, 5, [topic] * 5, values, values, [-1] * 5, None))
            rows.mark(topics["markers"], 0, b"k", b"v")
            rows.commit()

    with pytest.raises(
        TransactionError,
        match=f"The topic {topics[which]} cannot be written: this client is not authorized. Grant Write",
    ):
        write()

"""Consumers with `latest_only` on a real Apache Kafka: of a key's waiting records only the newest is handled."""

import threading
from collections.abc import Iterator

import pytest

from headway import ConsumerRecord, Context, RetriableError
from headway.errors import ConfigError
from headway.parallel.batches import Batches
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, Member, committed, consumer, log_ends, send, topic_of, wait_for


class Slow:
    """A handler whose first call waits until it may go on."""

    def __init__(self) -> None:
        self.handled: list[tuple[bytes | None, bytes | None]] = []
        self.began = threading.Event()
        self.may_go_on = threading.Event()

    def handle(self, record: ConsumerRecord, context: Context) -> None:
        if not self.began.is_set():
            self.began.set()
            self.may_go_on.wait(30)
        self.handled.append((record.key, record.value))


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.may_go_on.set()


@pytest.mark.kafka
@pytest.mark.parametrize("commit_mode", ["async", "transactional"])
def test_of_the_records_that_wait_behind_a_running_one_only_the_newest_is_handled(
    kafka_cluster: Cluster, slow: Slow, commit_mode: str
) -> None:
    topic = topic_of(kafka_cluster, 1)
    options = {"latest_only": True, "commit_mode": commit_mode, "dead_letter_topic": topic_of(kafka_cluster, 1)}
    member = Member(consumer(kafka_cluster, topic, options, **OFTEN), slow.handle)
    send(kafka_cluster, topic, [("a", "first")])
    assert slow.began.wait(30)
    send(kafka_cluster, topic, [("a", str(number)) for number in range(20)] + [(None, "x"), (None, "y"), ("b", "only")])
    wait_for(lambda: (b"b", b"only") in slow.handled and (None, b"y") in slow.handled)
    assert member.consumer.metrics().remaining == 2
    slow.may_go_on.set()
    ends = {
        partition: (end, b"") for partition, end in log_ends(kafka_cluster, topic).items() if commit_mode == "async"
    }
    wait_for(lambda: (b"a", b"19") in slow.handled and committed(kafka_cluster, topic).items() >= ends.items())
    metrics = member.consumer.metrics()
    member.stop()
    assert sorted(each for each in slow.handled if each[0] == b"a") == [(b"a", b"19"), (b"a", b"first")]
    assert (None, b"x") in slow.handled
    assert (metrics.skipped, metrics.done, metrics.dead_letters, metrics.remaining) == (19, 24, 0, 0)


@pytest.mark.kafka
def test_a_newer_record_does_not_wait_for_the_retry_of_an_older_one(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    handled: list[bytes | None] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        handled.append(record.value)
        if record.value == b"bad":
            raise RetriableError("not now", retry_after=3600)

    member = Member(consumer(kafka_cluster, topic, {"latest_only": True}), handle)
    send(kafka_cluster, topic, [("a", "bad")])
    wait_for(lambda: member.consumer.metrics().failed == 1)
    send(kafka_cluster, topic, [("a", "good")])
    wait_for(lambda: handled == [b"bad", b"good"])
    wait_for(lambda: member.consumer.metrics().remaining == 0)
    member.stop()


@pytest.mark.kafka
def test_batches_cannot_be_combined_with_it(kafka_cluster: Cluster) -> None:
    with (
        consumer(kafka_cluster, topic_of(kafka_cluster, 1), {"latest_only": True}) as member,
        pytest.raises(ConfigError, match="would have one record"),
    ):
        member.run(lambda records: None, batches=Batches(10))

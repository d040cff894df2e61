"""Dead letter topics that do not take, or would not keep, what is sent there; on a real Apache Kafka."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headway import ConsumerRecord, Context, Producer
from headway.core.retry import Retries
from headway.dead_letters import PREFIX
from headway.errors import ConfigError
from headway.execution.jobs import RecordAttempt
from headway.parallel.dead_letters import DeadLetters, LetterTopic
from headway.records.history import Origin
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import consumer, plain_topic, read, send, topic_of, wait_for

SIZE, MOST = 5_000_000, 10_485_760
MODES = pytest.mark.parametrize("mode", ["async", "transactional"])
ONCE = Retries(max_attempts=1)


def fail(record: ConsumerRecord, context: Context) -> None:
    """Fail, whatever the record is."""
    raise ValueError("never")


def set_policy(cluster: Cluster, topic: str, policy: str) -> None:
    """Alter a topic, and wait until the brokers say so."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient(cluster.config({"log_level": 0}))
    [altered] = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    ).values()
    altered.result(30)

    def is_told() -> bool:
        [answer] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return bool(answer.result(30)["cleanup.policy"].value == policy)

    wait_for(is_told)


@pytest.mark.quick("transactional")
@pytest.mark.kafka
@MODES
def test_a_dead_letter_is_the_whole_record_if_its_topic_takes_it(kafka_cluster: Cluster, mode: Any) -> None:
    topic, dead = (topic_of(kafka_cluster, 1, max_message_bytes=str(MOST)) for _ in range(2))
    with Producer(kafka_cluster.config({"message.max.bytes": MOST})) as producer:
        producer.send(topic, b"x" * SIZE, key="scan 1")
    options = {"commit_mode": mode, "dead_letter_topic": dead, "retries": ONCE}
    parallel = consumer(kafka_cluster, topic, options, **{"auto.commit.interval.ms": 50})
    with parallel, ThreadPoolExecutor(1) as thread:
        ended = thread.submit(parallel.run, fail)
        wait_for(lambda: ended.done() or parallel.metrics().dead_letters)
        parallel.close()
        ended.result()
    [letter] = read(kafka_cluster, dead, 1)
    assert letter.value() == b"x" * SIZE
    assert f"{PREFIX}shortened" not in dict(letter.headers() or ())


@pytest.mark.kafka
@MODES
@pytest.mark.parametrize(
    ("setting", "value"),
    [("cleanup.policy", "compact"), ("cleanup.policy", "compact,delete"), ("max.message.bytes", "99")],
)
def test_a_topic_that_cannot_keep_dead_letters_is_refused_before_the_run_begins(
    kafka_cluster: Cluster, mode: Any, setting: str, value: str
) -> None:
    topic, dead = plain_topic(kafka_cluster), topic_of(kafka_cluster, 1, **{setting.replace(".", "_"): value})
    with (
        consumer(kafka_cluster, topic, {"commit_mode": mode, "dead_letter_topic": dead}) as parallel,
        pytest.raises(ConfigError, match=rf"The topic {dead} has {setting}={value}.*Set "),
    ):
        parallel.run(fail)


@pytest.mark.kafka
@MODES
def test_a_letter_waits_with_a_warning_that_says_what_to_do_while_its_topic_is_compacted(
    kafka_cluster: Cluster, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic, dead = plain_topic(kafka_cluster), topic_of(kafka_cluster, 1)
    begun = threading.Event()

    def fail_if_bad(record: ConsumerRecord, context: Context) -> None:
        begun.set()
        if record.value == b"bad":
            fail(record, context)

    options = {"commit_mode": mode, "dead_letter_topic": dead, "retries": ONCE}
    parallel = consumer(kafka_cluster, topic, options, **{"auto.commit.interval.ms": 50})
    send(kafka_cluster, topic, [(None, "good")], 0)
    with caplog.at_level(logging.WARNING, "headway"), parallel, ThreadPoolExecutor(1) as thread:
        ended = thread.submit(parallel.run, fail_if_bad)
        wait_for(lambda: ended.done() or begun.is_set())
        set_policy(kafka_cluster, dead, "compact")
        send(kafka_cluster, topic, [(None, "bad")], 0)
        wait_for(lambda: "cleanup.policy=compact" in caplog.text and "Set its cleanup.policy to delete" in caplog.text)
        set_policy(kafka_cluster, dead, "delete")
        wait_for(lambda: ended.done() or parallel.metrics().dead_letters)
        parallel.close()
        ended.result()
    [letter] = read(kafka_cluster, dead, 1)
    assert (letter.key(), letter.value()) == (None, b"bad")


def failed(key: bytes | None) -> RecordAttempt:
    """An attempt whose record has this key."""
    place = {"kafka_topic": "orders", "partition": 0, "offset": 0, "timestamp": 0}
    record = SimpleNamespace(**place, raw_key=key, raw_value=b"v", headers=(), origin=Origin("orders", 0, 0))
    return cast(RecordAttempt, SimpleNamespace(record=record, number=1, failure=None))


class Reports:
    """The reports of a store, as it makes them."""

    def __init__(self) -> None:
        self.kept = list[str]()
        self.refused = list[str]()

    def stored(self, attempt: RecordAttempt) -> None:
        self.kept.append(str(attempt.record.raw_key))

    def not_stored(self, attempt: RecordAttempt, again_at: float) -> None:
        self.refused.append(str(attempt.record.raw_key))


@pytest.mark.kafka
def test_a_letter_that_its_topic_refuses_for_what_it_is_takes_none_along(kafka_cluster: Cluster) -> None:
    dead, reports = topic_of(kafka_cluster, 1, cleanup_policy="compact"), Reports()
    letters = DeadLetters(LetterTopic(dead, kafka_cluster.config({}), "billing"), reports)
    try:
        for attempt in (failed(key) for key in (b"a", b"b", None, b"c")):
            letters.send(attempt, ValueError("never"), "attempt 1 of 1 failed")
        wait_for(lambda: len(reports.kept) + len(reports.refused) == 4)
    finally:
        letters.close(10)
    assert (sorted(reports.kept), reports.refused) == (["b'a'", "b'b'", "b'c'"], ["None"])

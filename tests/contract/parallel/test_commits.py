"""When the parallel consumer commits, and what ends its run, on a real Apache Kafka."""

import logging
import threading
from functools import partial
from typing import Any

import pytest

from headway import ConsumerRecord, Context, FatalError
from headway.errors import HandlerError, KafkaError
from headway.kafka.consumer.group_client import GroupClient
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, Member, committed, consumer, plain_topic, send, wait_for

pytestmark = pytest.mark.kafka


def is_committed(cluster: Cluster, topic: str, count: int) -> bool:
    return committed(cluster, topic) == {0: (count, b"")}


def handle_nothing(record: ConsumerRecord, context: Context) -> None: ...


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_what_is_done_is_committed_at_each_interval(kafka_cluster: Cluster, mode: str) -> None:
    topic = plain_topic(kafka_cluster)
    member = Member(consumer(kafka_cluster, topic, {"commit_mode": mode}, **OFTEN), handle_nothing)
    try:
        for count in (10, 20):
            send(kafka_cluster, topic, [("key", str(i)) for i in range(10)], partition=0)
            wait_for(partial(is_committed, kafka_cluster, topic, count))
    finally:
        member.stop()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_handlers_go_on_while_a_commit_is_waited_for(
    kafka_cluster: Cluster, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, asked, go_on = plain_topic(kafka_cluster), threading.Event(), threading.Event()
    send_commit = GroupClient.commit_with_metadata

    def slowly(client: GroupClient, commits: Any) -> Any:
        asked.set()
        assert go_on.wait(30)
        return send_commit(client, commits)

    monkeypatch.setattr(GroupClient, "commit_with_metadata", slowly)
    send(kafka_cluster, topic, [(str(i), "v") for i in range(200)], partition=0)
    gate = threading.Semaphore(1)
    parallel = consumer(kafka_cluster, topic, {"commit_mode": mode}, **OFTEN)
    member = Member(parallel, lambda record, context: gate.acquire(timeout=30))
    try:
        assert asked.wait(30)
        done = parallel.metrics().done
        for _ in range(100):
            gate.release()
        wait_for(lambda: parallel.metrics().done >= done + 50)
    finally:
        go_on.set()
        for _ in range(100):
            gate.release()
        member.stop()
    assert committed(kafka_cluster, topic)[0][0] > 50


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_commit_that_fails_is_logged_and_repaired_by_a_later_one(
    kafka_cluster: Cluster, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic, refusals = plain_topic(kafka_cluster), iter(["The coordinator is away."] * 3)
    send_commit = GroupClient.commit_with_metadata

    def refuse(client: GroupClient, commits: Any) -> Any:
        for refusal in refusals:
            raise KafkaError(refusal)
        return send_commit(client, commits)

    monkeypatch.setattr(GroupClient, "commit_with_metadata", refuse)
    send(kafka_cluster, topic, [("key", str(i)) for i in range(10)], partition=0)
    with caplog.at_level(logging.WARNING):
        member = Member(consumer(kafka_cluster, topic, {"commit_mode": mode}, **OFTEN), handle_nothing)
        try:
            wait_for(lambda: committed(kafka_cluster, topic) == {0: (10, b"")})
        finally:
            member.stop()
    assert next(refusals, None) is None
    # At most once in ten seconds.
    assert caplog.text.count("failed and will be repeated: The coordinator is away.") == 1


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_request_commit_commits_at_once(kafka_cluster: Cluster, mode: str) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", str(i)) for i in range(10)], partition=0)
    parallel = consumer(kafka_cluster, topic, {"commit_mode": mode})  # every ten minutes
    member = Member(parallel, handle_nothing)
    try:
        wait_for(lambda: parallel.metrics().done == 10)
        assert committed(kafka_cluster, topic) == {}
        parallel.request_commit()
        wait_for(lambda: committed(kafka_cluster, topic) == {0: (10, b"")})
        parallel.request_commit()  # with nothing to commit
    finally:
        member.stop()


# What ended the run


def test_failure_is_what_ended_the_run(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "bad")])

    def refuse(record: ConsumerRecord, context: Context) -> None:
        raise FatalError("no use")

    with consumer(kafka_cluster, topic) as parallel:
        assert parallel.failure is None
        with pytest.raises(HandlerError) as raised:
            parallel.run(refuse)
        assert parallel.failure is raised.value


def test_a_run_that_was_stopped_has_no_failure(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    parallel = consumer(kafka_cluster, topic)
    member = Member(parallel, handle_nothing)
    wait_for(parallel.assignment)
    member.stop()
    assert parallel.failure is None

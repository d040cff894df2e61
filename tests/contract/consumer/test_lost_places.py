"""A log that lacks the offset to be read next: what was deleted unread is counted and told, and reading goes on."""

import logging
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import TopicPartition as Place

from headway import ParallelConsumer, PriorityConsumer, TopicPartition
from headway.errors import OffsetError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import (
    CONSUMER_PROTOCOL,
    COOPERATIVE,
    OFTEN,
    Member,
    Settings,
    client_of,
    committed,
    consumer,
    send,
    settings_of,
    topic_of,
    wait_for,
)

PRIORITY: Settings = {"levels": 1, "group.per.level": False, "max.poll.records": 100}
OF_EACH_PROTOCOL = pytest.mark.parametrize(
    "protocol", [{}, COOPERATIVE, CONSUMER_PROTOCOL], ids=["classic", "cooperative", "consumer"]
)


def delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    admin = AdminClient(cluster.config({"log_level": 0}))
    [deleted] = admin.delete_records([Place(topic, 0, offset)]).values()
    deleted.result(30)


def commit(cluster: Cluster, topic: str, offset: int) -> None:
    """Commit in the group that is named like its topic."""
    with client_of(cluster, topic) as client:
        client.commit(offsets=[Place(topic, 0, offset)], asynchronous=False)


def numbered(count: int) -> list[tuple[str | None, str]]:
    return [(None, str(number)) for number in range(count)]


@OF_EACH_PROTOCOL
def test_records_that_were_deleted_unread_are_counted_in_an_error_and_a_metric(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, protocol: Settings
) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, numbered(110))
    commit(kafka_cluster, topic, 10)
    delete_before(kafka_cluster, topic, 60)
    seen: list[int] = []
    member = Member(consumer(kafka_cluster, topic, **protocol), lambda record, _: seen.append(record.offset))
    try:
        wait_for(lambda: len(seen) == 50)
        metrics = member.consumer.metrics()
    finally:
        member.stop()
    assert sorted(seen) == list(range(60, 110))
    assert metrics.deleted_unread == 50
    [error] = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert f"Up to 50 records of partition 0 of {topic} were deleted before they were read: offsets 10 to 59" in error


def test_a_priority_consumer_that_runs_counts_what_is_deleted_before_it_reads_it(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, numbered(110))
    commit(kafka_cluster, topic, 10)
    delete_before(kafka_cluster, topic, 60)
    own = settings_of(topic) | PRIORITY
    with closing(PriorityConsumer(kafka_cluster.config(own))) as reader:
        reader.subscribe({topic: 0})
        assert reader.poll(30)[0].offset == 60
        assert [level.deleted_unread for level in reader.metrics()] == [50]
        reader.commit()
    assert committed(kafka_cluster, topic)[0][0] == 110
    assert caplog.text.count("were deleted before they were read") == 1


@OF_EACH_PROTOCOL
def test_a_log_that_ends_before_the_committed_offset_is_read_from_its_beginning(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, protocol: Settings
) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, numbered(20))
    commit(kafka_cluster, topic, 500)
    seen: list[int] = []
    member = Member(
        consumer(kafka_cluster, topic, **OFTEN | protocol),
        lambda record, _: seen.append(record.offset),
    )
    try:
        wait_for(lambda: len(seen) == 20)
        wait_for(lambda: committed(kafka_cluster, topic)[0][0] == 20)
    finally:
        member.stop()
    assert f"The log of partition 0 of {topic} ends at offset 20, before offset 500" in caplog.text


@pytest.mark.parametrize("what", ["nothing is committed", "the log begins later", "the log ends earlier"])
@pytest.mark.parametrize("kind", ["parallel", "priority"])
def test_who_wants_an_error_gets_one_with_topic_and_partition_and_offset(
    kafka_cluster: Cluster, what: str, kind: str
) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, numbered(100))
    if what == "the log begins later":
        commit(kafka_cluster, topic, 10)
        delete_before(kafka_cluster, topic, 50)
    if what == "the log ends earlier":
        commit(kafka_cluster, topic, 500)
    said = {
        "nothing is committed": f"Partition 0 of {topic} has no committed offset",
        "the log begins later": f"partition 0 of {topic} were deleted before they were read: offsets 10 to 49",
        "the log ends earlier": f"The log of partition 0 of {topic} ends at offset 100, before offset 500",
    }[what]
    own = kafka_cluster.config(settings_of(topic) | {"auto.offset.reset": "error"})
    if kind == "parallel":
        with closing(ParallelConsumer(own)) as parallel:
            parallel.subscribe(topic)
            with pytest.raises(OffsetError, match=said):
                parallel.run(lambda record: None)
        return
    with closing(PriorityConsumer(own | PRIORITY)) as reader:
        reader.subscribe({topic: 0})
        with pytest.raises(OffsetError, match=said):
            reader.poll(30)


@pytest.mark.parametrize("protocol", [{}, COOPERATIVE], ids=["classic", "cooperative"])
def test_a_priority_consumer_goes_on_with_a_seek_after_the_error(kafka_cluster: Cluster, protocol: Settings) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, numbered(100))
    commit(kafka_cluster, topic, 500)
    own = kafka_cluster.config(settings_of(topic) | PRIORITY | protocol | {"auto.offset.reset": "error"})
    with closing(PriorityConsumer(own)) as reader:
        reader.subscribe({topic: 0})
        with pytest.raises(OffsetError, match="before offset 500"):
            reader.poll(30)
        reader.seek(TopicPartition(topic, partition=0, level=0), 90)
        assert [record.offset for record in reader.poll(30)] == list(range(90, 100))

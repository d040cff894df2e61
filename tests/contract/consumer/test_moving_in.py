"""A start that would pass over a group's commits is refused until the user has chosen, on a real Apache Kafka."""

import time
import uuid
from typing import Any

import pytest
from click.testing import CliRunner

from headway import ConsumerRecord, ParallelConsumer, PriorityConsumer, cli
from headway.core.levels.naming import level_topic
from headway.errors import ConfigError
from headway.kafka.reading.group_inspector import GroupInspector
from headway.records.record_types import TopicPartition
from tests.contract.conftest import PARTITIONS, Cluster

pytestmark = pytest.mark.kafka

ONE_GROUP = {"group.per.level": False}


def commit(cluster: Cluster, group: str, commits: dict[tuple[str, int], tuple[int, bytes]]) -> None:
    with GroupInspector(cluster.config({}), group) as inspector:
        inspector.commit(commits)


def fill(cluster: Cluster, *topics: str) -> None:
    producer = cluster.plain_producer()
    for topic in topics:
        for number in range(PARTITIONS):
            producer.produce(topic, b"first", partition=number)
            producer.produce(topic, b"second", partition=number)
    assert producer.flush(20) == 0


def existing(cluster: Cluster) -> tuple[str, str, str]:
    """A group's name with commits behind the first record of each partition of two topics, emails and reports."""
    group = f"tasks-{uuid.uuid4().hex[:8]}"
    emails, reports = f"{group}.emails", f"{group}.reports"
    cluster.create_topics([emails, reports])
    fill(cluster, emails, reports)
    commit(cluster, group, {(topic, number): (1, b"") for topic in (emails, reports) for number in range(PARTITIONS)})
    return group, emails, reports


def read(cluster: Cluster, group: str, topics: Any, count: int, **settings: Any) -> list[ConsumerRecord]:
    """Return what a member is handed until there are so many records, which it commits."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + 30
    with PriorityConsumer(cluster.consumer_config(group) | settings, policy="fair") as consumer:
        consumer.subscribe(topics)
        while len(records) < count:
            assert time.monotonic() < deadline, records
            records += consumer.poll(0.1)
        consumer.commit()
    return records


def run(cluster: Cluster, group: str, topics: Any, **settings: Any) -> None:
    config = cluster.consumer_config(group) | settings
    del config["max.poll.records"], config["enable.auto.commit"]
    with ParallelConsumer(config) as consumer:
        consumer.subscribe(topics)
        consumer.run(lambda record: None)


def test_existing_topics_that_get_levels_are_refused_while_their_commits_are_in_the_group_itself(
    kafka_cluster: Cluster,
) -> None:
    group, emails, reports = existing(kafka_cluster)
    topics = {emails: 2, reports: 0}
    for start in (lambda: read(kafka_cluster, group, topics, 1), lambda: run(kafka_cluster, group, topics)):
        with pytest.raises(ConfigError) as refused:
            start()
        assert f"The group {group} has commits of" in str(refused.value)
        assert "Set group.per.level to false" in str(refused.value)
        assert f"`headway offsets copy {group} {group} --to-levels --topic {group}." in str(refused.value)


def test_what_the_sentence_says_is_enough(kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", kafka_cluster.bootstrap_servers)
    group, emails, reports = existing(kafka_cluster)
    topics = {emails: 2, reports: 0}
    with pytest.raises(ConfigError) as refused:
        read(kafka_cluster, group, topics, 2 * PARTITIONS)
    command = str(refused.value).split("`headway ")[1].split("`")[0]
    assert f"--topic {emails}=2 --topic {reports}=0" in command  # those of all levels, not of the first that begins
    assert CliRunner().invoke(cli.headway, command.split()).exit_code == 0
    records = read(kafka_cluster, group, topics, 2 * PARTITIONS)
    assert {record.value for record in records} == {b"second"}


def test_one_group_goes_on_where_the_group_was(kafka_cluster: Cluster) -> None:
    group, emails, reports = existing(kafka_cluster)
    records = read(kafka_cluster, group, {emails: 2, reports: 0}, 2 * PARTITIONS, **ONE_GROUP)
    assert {record.value for record in records} == {b"second"}


def test_one_group_is_refused_while_the_commits_are_in_the_groups_of_the_levels(
    kafka_cluster: Cluster,
) -> None:
    topic = kafka_cluster.topic(levels=3)
    fill(kafka_cluster, *(level_topic(topic, level) for level in range(3)))
    read(kafka_cluster, topic, topic, 6 * PARTITIONS)
    with pytest.raises(ConfigError, match=r"The level's group .*-[012] has commits of .*, but the group .* has none"):
        read(kafka_cluster, topic, topic, 1, **ONE_GROUP)


def test_a_group_whose_commits_are_not_wanted_begins_where_it_is_told(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", kafka_cluster.bootstrap_servers)
    group, emails, _ = existing(kafka_cluster)
    with pytest.raises(ConfigError) as refused:
        read(kafka_cluster, group, {emails: 1}, 1)
    command = str(refused.value).split("`headway ")[2].split("`")[0]
    assert command == f"offsets reset {group}-1 --topic {emails} --earliest"
    assert CliRunner().invoke(cli.headway, command.split()).exit_code == 0
    assert len(read(kafka_cluster, group, {emails: 1}, 2 * PARTITIONS)) == 2 * PARTITIONS


def test_a_level_that_has_begun_is_not_refused_for_a_partition_without_a_commit(kafka_cluster: Cluster) -> None:
    group, emails, _ = existing(kafka_cluster)
    commit(kafka_cluster, f"{group}-2", {(emails, 0): (1, b"")})
    records = read(kafka_cluster, group, {emails: 2}, 2 * PARTITIONS - 1)
    assert len(records) == 2 * PARTITIONS - 1


def test_a_new_topic_of_a_group_that_reads_others_begins(kafka_cluster: Cluster) -> None:
    group, _, _ = existing(kafka_cluster)
    new = f"{group}.new"
    kafka_cluster.create_topics([new])
    fill(kafka_cluster, new)
    assert len(read(kafka_cluster, group, {new: 1}, 2 * PARTITIONS)) == 2 * PARTITIONS


def test_after_a_mapping_only_the_levels_that_are_read_have_partitions_and_take_commits(
    kafka_cluster: Cluster,
) -> None:
    group = f"tasks-{uuid.uuid4().hex[:8]}"
    emails = f"{group}.emails"
    kafka_cluster.create_topics([emails])
    for settings in ({}, ONE_GROUP):
        config = kafka_cluster.consumer_config(f"{group}{len(settings)}") | settings
        with PriorityConsumer(config, policy="fair") as consumer:
            consumer.subscribe({emails: 2})
            assert consumer.partitions_for(emails) == [
                TopicPartition(emails, partition=number, level=2) for number in range(PARTITIONS)
            ]
            while not consumer.assignment():
                consumer.poll(0.1)
            consumer.commit({TopicPartition(emails, partition=0, level=2): 0})
            for level in (0, 1):
                with pytest.raises(ConfigError, match="cannot be committed: this level does not read"):
                    consumer.commit({TopicPartition(emails, partition=0, level=level): 0})


@pytest.mark.parametrize("settings", [{}, {"levels": 1}], ids=["no commits elsewhere", "one level"])
def test_topics_that_match_a_pattern_of_a_mapping_can_be_committed(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    group = f"tasks-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topics([f"{group}.emails"])
    fill(kafka_cluster, f"{group}.emails")
    records = read(kafka_cluster, group, {f"^{group}.*": 0}, 2 * PARTITIONS, **settings)
    assert {record.topic for record in records} == {f"{group}.emails"}
    with GroupInspector(kafka_cluster.config({}), f"{group}-0") as inspector:
        assert sum(offset for offset, _ in inspector.committed(inspector.partitions()).values()) == 2 * PARTITIONS


@pytest.mark.slow
def test_no_level_begins_while_commits_of_another_one_would_be_passed_over(kafka_cluster: Cluster) -> None:
    group = f"tasks-{uuid.uuid4().hex[:8]}"
    topics = {f"{group}.emails": 2, f"{group}.reports": 1, f"{group}.clicks": 0}
    kafka_cluster.create_topics(list(topics))
    fill(kafka_cluster, *topics)
    reports = (f"{group}.reports", 0)
    commit(kafka_cluster, group, {reports: (1, b"")})
    handled: list[ConsumerRecord] = []
    for _ in range(3):
        config = kafka_cluster.consumer_config(group) | {"levels": 3}
        del config["max.poll.records"], config["enable.auto.commit"]
        with ParallelConsumer(config) as consumer:
            consumer.subscribe(topics)
            with pytest.raises(ConfigError, match=rf"has commits of {reports[0]}, but the level's group {group}-1"):
                consumer.run(handled.append)
    assert handled == []
    records = read(kafka_cluster, group, topics, 6 * PARTITIONS - 1, levels=3, **ONE_GROUP)
    assert len(records) == 6 * PARTITIONS - 1
    assert [each.offset for each in records if (each.kafka_topic, each.partition) == reports] == [1]

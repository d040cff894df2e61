"""`headway offsets show` against Apache Kafka: exactly what was committed, and nothing is changed."""

import base64
import json
import struct
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from headway import cli
from headway.core.levels.naming import level_topic
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.kafka.binding import capi
from tests.broker.delay_cluster import wait_until
from tests.contract.conftest import Cluster

pytestmark = pytest.mark.kafka

MAP = OffsetMap(2, (1, 3, 2, 2))


@pytest.fixture(autouse=True)
def servers(kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", kafka_cluster.bootstrap_servers)


@pytest.fixture
def topic(kafka_cluster: Cluster) -> str:
    """A topic of two levels, with ten records in the first partition of each."""
    name = kafka_cluster.topic(levels=2)
    producer = kafka_cluster.plain_producer()
    for number in range(20):
        producer.produce(level_topic(name, number % 2), b"%d" % number, partition=0)
    assert producer.flush(20) == 0
    return name


def commit(cluster: Cluster, group: str, topic: str, offset: int, metadata: bytes, partition: int = 0) -> None:
    consumer = ck.Consumer(cluster.config({"group.id": group, "log_level": 2}))
    refused = None
    while refused is None or any("oordinator" in str(error) for error in refused.values()):  # while Kafka makes one
        refused = capi.PendingCommit(consumer, {(topic, partition): (offset, metadata)}).refused(20)
    consumer.close()
    assert refused == {}


def committed(cluster: Cluster, group: str, topic: str) -> Any:
    consumer = ck.Consumer(cluster.config({"group.id": group, "log_level": 2}))
    try:
        return capi.committed(consumer, [(topic, 0)], 20)[topic, 0]
    finally:
        consumer.close()


def show(*arguments: str) -> Result:
    return CliRunner().invoke(cli.headway, ["offsets", "show", *arguments])


def described(*arguments: str) -> list[dict[str, Any]]:
    """The partitions of the only group there is, of which it has committed."""
    group = json.loads(show(*arguments, "--json").stdout)
    found: list[dict[str, Any]] = group["partitions"]
    return [each for each in found if each["committed"] is not None]


def test_a_map_is_shown_with_offset_log_end_and_lag_and_drawn(kafka_cluster: Cluster, topic: str) -> None:
    commit(kafka_cluster, f"{topic}-readers", f"{topic}-0", 2, encode(MAP).encode())
    result = show(f"{topic}-readers")
    assert result.exit_code == 0
    _, row, *others, _, place, drawing, legend = result.stdout.splitlines()
    assert [line.split() for line in others] == [
        [f"{topic}-0", str(each), "-", "0", "0", "0", "-", "none"] for each in (1, 2, 3)
    ]
    assert row.split(maxsplit=7) == [f"{topic}-0", "0", "2", "10", "8", "0", "-", "bitset v1: 5 done, 3 not"]
    assert place == f"{topic}-0, partition 0: offsets 2 to 9"
    assert drawing == "  ·███··██"
    assert legend == "  █ done  ▓▒░ partly  · not done"


def test_json_has_all_of_it_and_looking_changes_nothing(kafka_cluster: Cluster, topic: str) -> None:
    before = (2, encode(MAP).encode())
    commit(kafka_cluster, f"{topic}-readers", f"{topic}-0", *before)
    assert described(f"{topic}-readers") == [
        {
            "topic": f"{topic}-0",
            "partition": 0,
            "committed": 2,
            "log_end": 10,
            "lag": 8,
            "deleted": 0,
            "member": None,
            "metadata": encode(MAP),
            "encoding": "bitset v1",
            "done": 5,
            "not_done": 3,
            "highest_done": 9,
            "incomplete": [{"start": 2, "end": 3}, {"start": 6, "end": 8}],
        }
    ]
    assert committed(kafka_cluster, f"{topic}-readers", f"{topic}-0") == before


def test_whatever_else_is_in_the_metadata_is_no_error(kafka_cluster: Cluster, topic: str) -> None:
    group, kafka_topic = f"{topic}-readers", f"{topic}-0"
    streams = base64.b64encode(struct.pack(">bq", 2, 1_764_967_403_520))
    commit(kafka_cluster, group, kafka_topic, 1, b"", partition=0)
    commit(kafka_cluster, group, kafka_topic, 1, streams, partition=1)
    commit(kafka_cluster, group, kafka_topic, 1, b"checkpoint\x1b[2J\n7", partition=2)
    commit(kafka_cluster, group, kafka_topic, 0, encode(MAP).encode() + b"\0", partition=3)
    result = show(group)
    assert result.exit_code == 0
    metadata = [line.split(maxsplit=7)[7] for line in result.stdout.splitlines()[1:5]]
    assert metadata[0] == "none"
    assert metadata[1].startswith("Kafka Streams v2: 2025-12-0")
    assert metadata[2] == "unknown: checkpoint\\x1b[2J\\n7"
    assert (
        metadata[3] == f"unknown: {encode(MAP)}\\x00"
    )  # as the Python binding writes it, and no other client reads it
    found = described(group)
    assert [each["encoding"] for each in found] == ["none", "Kafka Streams v2", "unknown", "unknown"]
    assert found[1]["stream_time"] == 1_764_967_403_520
    assert found[2]["metadata"] == "checkpoint\x1b[2J\n7"
    assert found[3]["reason"].startswith("The commit metadata is not Base64")


def test_a_map_of_another_log_is_not_believed(kafka_cluster: Cluster, topic: str) -> None:
    commit(kafka_cluster, f"{topic}-readers", f"{topic}-0", 9, encode(OffsetMap(9, (1, 5))).encode())
    [found] = described(f"{topic}-readers")
    assert found["encoding"] == "unknown"
    assert found["reason"] == "The offset map reaches offset 15, but the log ends at offset 10."


def test_each_level_has_a_group_of_its_own(kafka_cluster: Cluster, topic: str) -> None:
    for level in range(2):
        commit(kafka_cluster, f"{topic}-readers-{level}", f"{topic}-{level}", 3 + level, b"")
    result = show(f"{topic}-readers", "--levels", "3")
    rows = [line.split()[:4] for line in result.stdout.splitlines()[1:] if line.split()[3] != "-"]
    assert rows == [[f"{topic}-readers-{level}", f"{topic}-{level}", "0", str(3 + level)] for level in range(2)]
    assert result.stderr == f"headway: The group {topic}-readers-2 has committed nothing.\n"
    fewer = show(f"{topic}-readers", "--levels", "1")
    assert fewer.stderr == "The group has more levels, which are not shown. Use --levels 2.\n"


@pytest.mark.slow
def test_what_waits_where_nothing_is_committed_counts(kafka_cluster: Cluster, topic: str) -> None:
    producer = ck.Producer(kafka_cluster.config({"enable.idempotence": True, "log_level": 2}))
    for number in range(7):
        producer.produce(f"{topic}-0", b"%d" % number, partition=3)
    assert producer.flush(20) == 0
    producer.close()
    admin = AdminClient(kafka_cluster.config({"log_level": 2}))
    deleted = admin.delete_records([ck.TopicPartition(f"{topic}-0", 3, 2)])
    next(iter(deleted.values())).result(20)
    commit(kafka_cluster, f"{topic}-readers-1", f"{topic}-1", 9, b"")
    groups = [json.loads(line) for line in show(f"{topic}-readers", "--levels", "2", "--json").stdout.splitlines()]
    lags = {(each["topic"], each["partition"]): each["lag"] for group in groups for each in group["partitions"]}
    waiting = {(f"{topic}-0", 0): 10, (f"{topic}-0", 3): 5, (f"{topic}-1", 0): 1}
    assert lags == {(f"{topic}-{level}", each): 0 for level in range(2) for each in range(4)} | waiting
    shown = show(f"{topic}-readers", "--levels", "2")
    assert [f"{topic}-readers-0", f"{topic}-0", "3", "-", "7", "5", "0", "-", "none"] in map(
        str.split, shown.stdout.splitlines()
    )
    assert shown.stderr == f"headway: The group {topic}-readers-0 has committed nothing.\n"


def test_the_lag_counts_what_still_exists_and_what_was_deleted_is_a_column(kafka_cluster: Cluster, topic: str) -> None:
    admin = AdminClient(kafka_cluster.config({"log_level": 2}))
    deleted = admin.delete_records([ck.TopicPartition(f"{topic}-0", 0, 6)])
    next(iter(deleted.values())).result(20)
    commit(kafka_cluster, f"{topic}-readers", f"{topic}-0", 1, b"")
    row = show(f"{topic}-readers").stdout.splitlines()[1]
    assert row.split() == [f"{topic}-0", "0", "1", "10", "4", "5", "-", "none"]
    [found] = described(f"{topic}-readers")
    assert (found["lag"], found["deleted"]) == (4, 5)


def test_who_has_which_partition_is_shown_also_before_anything_is_committed(kafka_cluster: Cluster, topic: str) -> None:
    group, mine = f"{topic}-readers", {"group.id": f"{topic}-readers", "enable.auto.commit": False}

    def has_two(reader: ck.Consumer) -> bool:
        return len(reader.assignment()) == 2

    readers = [
        ck.Consumer(kafka_cluster.config({**mine, "client.id": f"shop-{number}", "log_level": 0}))
        for number in range(2)
    ]
    try:
        for reader in readers:
            reader.subscribe([f"{topic}-1"])
        wait_until(lambda: [reader.poll(0.05) for reader in readers] and all(map(has_two, readers)))
        theirs = {
            each.partition: f"shop-{number}" for number, reader in enumerate(readers) for each in reader.assignment()
        }
        [found] = [json.loads(line) for line in show(group, "--json").stdout.splitlines()]
        assert {each["partition"]: each["member"]["client_id"] for each in found["partitions"]} == theirs
        assert {each["committed"] for each in found["partitions"]} == {None}
        host = found["partitions"][0]["member"]["host"]
        shown = show(group)
        rows = [line.split() for line in shown.stdout.splitlines()[1:]]
        assert [row[6] for row in rows] == [f"{theirs[number]}@{host}" for number in range(4)]
        assert shown.stderr == f"headway: The group {group} has committed nothing.\n"
    finally:
        for reader in readers:
            reader.close()


@pytest.mark.slow
def test_a_topic_can_be_chosen_by_its_own_name_or_that_of_its_levels(kafka_cluster: Cluster, topic: str) -> None:
    other = kafka_cluster.topic(levels=1)
    commit(kafka_cluster, f"{topic}-readers-0", f"{topic}-0", 3, b"")
    commit(kafka_cluster, f"{topic}-readers-0", f"{other}-0", 0, b"")
    for name in (topic, f"{topic}-0"):
        [found] = described(f"{topic}-readers", "--levels", "1", "--topic", name)
        assert found["topic"] == f"{topic}-0"
    result = show(f"{topic}-readers-0", "--topic", "nothing")
    assert result.exit_code == 1
    assert result.stderr == (
        f"headway: The group {topic}-readers-0 has committed nothing for nothing. "
        "Leave out --topic to see what it has committed.\n"
    )


def test_a_topic_that_is_gone_is_said_to_be(kafka_cluster: Cluster, topic: str) -> None:
    commit(kafka_cluster, f"{topic}-readers", f"{topic}-1", 7, b"")
    commit(kafka_cluster, f"{topic}-readers", f"{topic}-0", 7, b"")
    admin = AdminClient(kafka_cluster.config({"log_level": 2}))
    admin.delete_topics([f"{topic}-1"])[f"{topic}-1"].result(20)
    # Kafka forgets the commits of a topic that is gone, sooner or later.
    gone = [line.split() for line in show(f"{topic}-readers").stdout.splitlines() if line.startswith(f"{topic}-1 ")]
    assert all(row[2:] == ["7", "gone", "-", "-", "-", "none"] for row in gone)
    assert described(f"{topic}-readers")[0]["lag"] == 3


@pytest.mark.slow
def test_a_group_that_there_is_not_is_one_sentence_with_what_to_do(kafka_cluster: Cluster, topic: str) -> None:
    commit(kafka_cluster, f"{topic}-readers-0", f"{topic}-0", 1, b"")
    commit(kafka_cluster, f"{topic}-readers-1", f"{topic}-1", 1, b"")
    commit(kafka_cluster, f"{topic}-single", f"{topic}-1", 1, b"")
    for arguments, sentence in {
        (f"{topic}-readers",): "It has levels. Add --levels 2.",
        (f"{topic}-singel",): f"Did you mean {topic}-single?",
        (f"{topic}-raeders", "--levels", "2"): f"Did you mean {topic}-readers?",
        (f"{topic}-single", "--levels", "2"): f"There is a group {topic}-single without levels. Leave out --levels.",
        ("x" * 80,): "A group exists once it has committed or has members. Existing groups: ",
    }.items():
        result = show(*arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("headway: Kafka has no group ")
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1

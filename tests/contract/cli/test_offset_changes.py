"""`headway offsets copy` and `reset` against Apache Kafka: just the commits asked for, and none while a group runs."""

import json
import uuid
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import CliRunner, Result

from headway import PriorityConsumer, cli
from headway.core.levels.naming import level_topic
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.kafka.reading.group_inspector import GroupInspector
from tests.contract.conftest import PARTITIONS, Cluster

pytestmark = pytest.mark.kafka

MAP = encode(OffsetMap(2, (1, 3, 2, 2))).encode()


@pytest.fixture(autouse=True)
def servers(kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", kafka_cluster.bootstrap_servers)


@pytest.fixture
def base(kafka_cluster: Cluster) -> str:
    """A new name: of the topics NAME-emails and NAME-reports with ten records in partition 0, and for groups."""
    name = f"tasks-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topics([f"{name}-emails", f"{name}-reports"])
    producer = kafka_cluster.plain_producer()
    for number in range(10):
        for topic in ("emails", "reports"):
            producer.produce(f"{name}-{topic}", b"%d" % number, partition=0, timestamp=1_000_000 * (number + 1))
    assert producer.flush(20) == 0
    return name


def commit(cluster: Cluster, group: str, commits: dict[tuple[str, int], tuple[int, bytes]]) -> None:
    with GroupInspector(cluster.config({}), group) as inspector:
        inspector.commit(commits)


def committed(cluster: Cluster, group: str) -> Any:
    with GroupInspector(cluster.config({}), group) as inspector:
        return inspector.committed(inspector.partitions())


def offsets(*arguments: str) -> Result:
    return CliRunner().invoke(cli.headway, ["offsets", *arguments])


def test_commits_of_a_group_go_to_the_groups_of_the_levels_that_are_said_with_their_offset_maps(
    kafka_cluster: Cluster, base: str
) -> None:
    emails, reports = f"{base}-emails", f"{base}-reports"
    theirs = {(emails, 0): (2, MAP), (reports, 0): (7, b""), (reports, 1): (0, b"")}
    commit(kafka_cluster, base, theirs)
    levels = ("--to-levels", "--topic", f"{emails}=2", "--topic", f"{reports}=0")
    dry = offsets("copy", base, base, *levels, "--dry-run")
    assert dry.exit_code == 0
    assert "3 commits would be made." in dry.stderr
    assert committed(kafka_cluster, f"{base}-2") == {}
    copied = offsets("copy", base, base, *levels, "--json")
    assert copied.exit_code == 0, copied.output
    assert json.loads(copied.stdout.splitlines()[0]) == {
        "group": f"{base}-2", "topic": emails, "partition": 0, "before": None, "after": 2, "from": base, "made": True,
    }  # fmt: skip
    assert committed(kafka_cluster, f"{base}-2") == {(emails, 0): (2, MAP)}
    assert committed(kafka_cluster, f"{base}-0") == {(reports, 0): (7, b""), (reports, 1): (0, b"")}
    assert committed(kafka_cluster, base) == theirs
    again = offsets("copy", base, base, *levels)
    assert "Left out" not in again.stderr
    fewer = offsets("copy", base, f"{base}-new", "--topic", emails)
    assert f"Left out {reports}, because --topic names only other topics." in fewer.stderr
    another = offsets("copy", base, f"{base}-other", "--topic", emails, "--topic", "never-read")
    assert "Nothing is committed for never-read, so there is nothing to copy." in another.stderr
    assert (again.exit_code, "0 commits made, 3 unchanged." in again.stderr) == (0, True)


@pytest.mark.slow
def test_commits_that_are_there_already_are_counted_apart_and_not_made_again(kafka_cluster: Cluster, base: str) -> None:
    emails, reports, new = f"{base}-emails", f"{base}-reports", f"{base}-new"
    commit(kafka_cluster, base, {(emails, 0): (2, MAP), (reports, 0): (7, b"")})
    assert "headway: 1 commit made.\n" in offsets("copy", base, new, "--topic", emails).stderr
    dry = offsets("copy", base, new, "--dry-run")
    assert dry.stderr == "headway: 1 commit would be made, 1 unchanged.\n"
    both = offsets("copy", base, new, "--json")
    assert both.stderr == "headway: 1 commit made, 1 unchanged.\n"
    assert [json.loads(line)["made"] for line in both.stdout.splitlines()] == [False, True]
    assert committed(kafka_cluster, new) == {(emails, 0): (2, MAP), (reports, 0): (7, b"")}
    assert offsets("copy", base, new).stderr == "headway: 0 commits made, 2 unchanged.\n"


def test_commits_of_level_groups_go_back_to_the_one_group(kafka_cluster: Cluster, base: str) -> None:
    emails, reports = f"{base}-emails", f"{base}-reports"
    commit(kafka_cluster, f"{base}-2", {(emails, 0): (2, MAP)})
    commit(kafka_cluster, f"{base}-0", {(reports, 0): (7, b"")})
    assert offsets("copy", base, base, "--from-levels").exit_code == 0
    assert committed(kafka_cluster, base) == {(emails, 0): (2, MAP), (reports, 0): (7, b"")}


def test_level_topics_tell_their_level(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic(levels=2)
    names = [level_topic(topic, level) for level in range(2)]
    commit(kafka_cluster, topic, {(name, 0): (level, b"") for level, name in enumerate(names)})
    assert offsets("copy", topic, topic, "--to-levels").exit_code == 0
    for level, name in enumerate(names):
        assert committed(kafka_cluster, f"{topic}-{level}") == {(name, 0): (level, b"")}


def test_a_commit_that_is_there_is_replaced_only_when_that_is_said(kafka_cluster: Cluster, base: str) -> None:
    emails, new = f"{base}-emails", f"{base}-new"
    commit(kafka_cluster, base, {(emails, 0): (2, b""), (emails, 1): (0, b"")})
    commit(kafka_cluster, new, {(emails, 0): (9, b"")})
    refused = offsets("copy", base, new)
    assert refused.exit_code == 1
    assert f"{new} has already committed offset 9 for partition 0 of {emails}, and {base} has 2" in refused.stderr
    assert committed(kafka_cluster, new) == {(emails, 0): (9, b"")}
    assert offsets("copy", base, new, "--overwrite").exit_code == 0
    assert committed(kafka_cluster, new) == committed(kafka_cluster, base)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("copy", "{}-none", "{}-new"), "has not committed anything"),
        (("copy", "{}-none", "{}-new", "--from-levels"), "No group {}-none-0, {}-none-1, … has committed anything"),
        (("copy", "{}", "{}"), "Name two groups, or add --to-levels or --from-levels"),
        (("copy", "{}", "{}", "--to-levels"), "The level of {}-emails is not known. Give it as --topic {}-emails=2"),
        (
            ("copy", "{}", "{}", "--to-levels", "--topic", "{}-emails=high"),
            "is neither a topic nor a topic with its level",
        ),
        (("reset", "{}"), "one of --earliest, --latest, --offset and --time"),
        (("reset", "{}", "--earliest", "--latest"), "one of --earliest, --latest, --offset and --time"),
        (("reset", "{}-none", "--earliest"), "has committed nothing. Name the topics with --topic."),
        (("reset", "{}", "--earliest", "--topic", "{}-x"), "Kafka has no topic {}-x."),
        (("reset", "{}", "--earliest", "--partition", "9"), "has no partition 9, only 0 to 3."),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    kafka_cluster: Cluster, base: str, arguments: tuple[str, ...], said: str
) -> None:
    theirs = {(f"{base}-emails", 0): (2, b"")}
    commit(kafka_cluster, base, theirs)
    result = offsets(*(each.replace("{}", base) for each in arguments))
    assert result.exit_code in (1, 2)
    assert said.replace("{}", base) in result.stderr
    assert committed(kafka_cluster, base) == theirs


@pytest.mark.slow
def test_two_levels_with_commits_of_one_partition_are_refused_until_one_is_said(
    kafka_cluster: Cluster, base: str
) -> None:
    emails = f"{base}-emails"
    for level in (1, 2):
        commit(kafka_cluster, f"{base}-{level}", {(emails, 0): (level, b"")})
    refused = offsets("copy", base, base, "--from-levels")
    assert refused.exit_code == 1
    assert f"Both {base}-1 and {base}-2 have commits for {emails}. Choose a level" in refused.stderr
    assert offsets("copy", base, base, "--from-levels", "--topic", f"{emails}=1").exit_code == 0
    assert committed(kafka_cluster, base) == {(emails, 0): (1, b"")}


def test_a_group_with_members_is_refused_and_keeps_its_commits(kafka_cluster: Cluster, base: str) -> None:
    emails = f"{base}-emails"
    config = kafka_cluster.consumer_config(base) | {"group.per.level": False}
    with PriorityConsumer(config, policy="fair") as consumer:
        consumer.subscribe({emails: 1})
        while not consumer.poll(0.1):
            pass
        consumer.commit()
        before = committed(kafka_cluster, base)
        for arguments in (("copy", base, f"{base}-new"), ("reset", base, "--earliest")):
            refused = offsets(*arguments)
            assert refused.exit_code == 1
            assert (
                f"The group {base} has 1 member, which would overwrite the new commits. Stop it first" in refused.stderr
            )
        assert committed(kafka_cluster, base) == before
    assert committed(kafka_cluster, f"{base}-new") == {}


@pytest.mark.quick("place0-0", "place3-10")
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (["--earliest"], 0),
        (["--latest"], 10),
        (["--offset", "4"], 4),
        (["--offset", "400"], 10),
        (["--time", "1970-01-01T01:00:00+00:00"], 3),  # the records are of each 1,000 seconds
        (["--time", "2h"], 10),
    ],
)
def test_a_group_is_reset_to_a_place_in_all_partitions_of_its_topics(
    kafka_cluster: Cluster, base: str, place: list[str], expected: int
) -> None:
    emails = f"{base}-emails"
    theirs = {(emails, 0): (2, MAP)}
    commit(kafka_cluster, base, theirs)
    assert offsets("reset", base, *place, "--dry-run").exit_code == 0
    assert committed(kafka_cluster, base) == theirs
    result = offsets("reset", base, *place)
    assert result.exit_code == 0, result.output
    assert committed(kafka_cluster, base) == {
        (emails, number): (expected if number == 0 else 0, b"") for number in range(PARTITIONS)
    }


def test_the_groups_of_all_levels_are_reset_together_and_new_ones_by_topic(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic(levels=2)
    result = offsets("reset", topic, "--levels", "2", "--topic", topic, "--partition", "1", "--latest")
    assert result.exit_code == 0, result.output
    for level in range(2):
        assert committed(kafka_cluster, f"{topic}-{level}") == {(level_topic(topic, level), 1): (0, b"")}


def test_a_topic_is_shown_at_all_levels_of_the_one_group_that_reads_them(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic(levels=2)
    commit(kafka_cluster, topic, {(level_topic(topic, level), 0): (0, b"") for level in range(2)})
    group = json.loads(offsets("show", topic, "--topic", topic, "--json").stdout)
    assert {each["topic"] for each in group["partitions"]} == {f"{topic}-0", f"{topic}-1"}


def test_the_only_group_of_all_levels_is_joined_by_consume(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic(levels=2)
    producer = ck.Producer(kafka_cluster.config({"enable.idempotence": True, "log_level": 0}))
    for level in range(2):
        producer.produce(level_topic(topic, level), b"%d" % level, partition=0)
    assert producer.flush(20) == 0
    arguments = ["consume", topic, "--group", topic, "--one-group", "--max", "2", "--timeout", "30"]
    result = CliRunner().invoke(cli.headway, arguments)
    assert sorted(result.stdout.split()) == ["0", "1"]
    assert committed(kafka_cluster, topic).keys() >= {(f"{topic}-0", 0), (f"{topic}-1", 0)}

"""Rules on a real Apache Kafka: a running group follows them, and a new run knows them before its first record."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from headway import ConsumerRecord, Context, Producer, cli
from headway.broker import LocalBroker
from headway.rules import Demote, Hold, LimitRate, Rule, Rules
from tests.contract.conftest import Cluster, cluster_of
from tests.contract.parallel.members import Member, consumer, send, topic_of, wait_for

pytestmark = pytest.mark.kafka


class Group:
    """A group of members that follow rules, and what they have handled."""

    def __init__(self, cluster: Cluster, partitions: int = 2) -> None:
        self.cluster = cluster
        self.topic = topic_of(cluster, partitions)
        self.handled: Counter[bytes] = Counter()
        self.members: list[Member] = []

    def join(self, **options: Any) -> Member:
        member = Member(
            consumer(self.cluster, self.topic, {"steered": True, "max_concurrency": 20} | options), self._note
        )
        self.members.append(member)
        return member

    def _note(self, record: ConsumerRecord, context: Context) -> None:
        self.handled[record.key] += 1

    def send(self, *keys: str, times: int = 10) -> None:
        send(self.cluster, self.topic, [(key, "value") for _ in range(times) for key in keys])

    def metric(self, name: str) -> int:
        return sum(getattr(member.consumer.metrics(), name) for member in self.members)


@pytest.fixture
def group(kafka_cluster: Cluster) -> Iterator[Group]:
    group = Group(kafka_cluster)
    yield group
    for member in group.members:
        member.stop(drain=False)


@pytest.fixture
def rules(kafka_cluster: Cluster) -> Iterator[Rules]:
    with Rules(kafka_cluster.config({})) as rules:
        yield rules


def wait_until_applied(log: pytest.LogCaptureFixture, *ids: str, members: int = 1) -> None:
    """Wait until all members have logged that the rules apply."""
    wait_for(lambda: all(sum(f"The rule {id_} of " in each for each in log.messages) >= members for id_ in ids))


def test_members_hold_what_a_rule_chooses_and_let_it_go_when_the_rule_ends(
    group: Group, rules: Rules, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headway.parallel.rules_follower")
    group.send("a", "b")
    group.join()
    group.join()
    wait_for(lambda: group.handled == {b"a": 10, b"b": 10})
    rules.set(Rule("no-a", group.topic, Hold(), "key = a"))
    wait_until_applied(caplog, "no-a", members=2)
    group.send("a", "b")
    wait_for(lambda: group.handled[b"b"] == 20 and group.metric("held") > 0)
    assert group.handled[b"a"] == 10
    assert rules.end(group.topic, "no-a")
    wait_for(lambda: group.handled[b"a"] == 20)
    assert not rules.end(group.topic, "no-a")


def test_a_new_run_knows_the_rules_before_its_first_record(group: Group, rules: Rules) -> None:
    rules.set(Rule("no-a", group.topic, Hold(), "key = a"))
    group.send("a", "b")
    group.join()
    wait_for(lambda: group.handled[b"b"] == 10)
    assert group.handled[b"a"] == 0


def test_a_rule_ends_by_itself(group: Group, rules: Rules) -> None:
    rules.set(Rule("no-a", group.topic, Hold(), "key = a", until=int((time.time() + 2) * 1000)))
    group.send("a")
    group.join()
    wait_for(lambda: group.handled[b"a"] == 10)
    assert not rules.all(group.topic)


def test_the_members_share_the_rate_of_a_rule(group: Group, rules: Rules) -> None:
    rules.set(Rule("slow", group.topic, LimitRate(10)))
    group.send(*(f"k{number}" for number in range(40)), times=10)
    group.join()
    group.join()
    wait_for(lambda: len(group.handled) > 0 and all(member.consumer.assignment() for member in group.members))
    before, began = group.handled.total(), time.monotonic()
    time.sleep(4)
    assert group.handled.total() - before <= 10 * (time.monotonic() - began) + 4


def test_operators_make_list_and_end_rules_by_the_command(
    group: Group, rules: Rules, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headway.parallel.rules_follower")

    def run(*words: str) -> str:
        servers = str(group.cluster.config({})["bootstrap.servers"])
        done = CliRunner().invoke(cli.headway, ["rules", *words, "--bootstrap-servers", servers])
        assert done.exit_code == 0, done.output
        return done.output

    group.join(dead_letter_topic=topic_of(group.cluster, 1))
    run("drop", group.topic, "--where", "key = a", "--why", "test", "--id", "drop-a")
    run("dead-letter", group.topic, "--where", "key = b", "--id", "bury-b")
    run("retry", group.topic, "--delay", "5s", "--max-attempts", "3", "--for", "1h", "--id", "patient")
    run("concurrency", group.topic, "2", "--where", "key = c", "--id", "two")
    run("demote", group.topic, "0", "--where", "tenant = acme", "--id", "calm")
    run("weight", group.topic, "2", "--where", "tenant = acme", "--id", "heavy")
    run("circuit", group.topic, "closed", "--id", "closed")
    listed = [json.loads(line) for line in run("list", group.topic, "--json").splitlines()]
    assert [each["id"] for each in listed] == ["drop-a", "bury-b", "patient", "two", "calm", "heavy", "closed"]
    assert "key = a" in run("list", group.topic)
    wait_for(lambda: sum("has no full effect on this member" in each for each in caplog.messages) == 2)
    wait_until_applied(caplog, "drop-a", "bury-b", "patient", "two")
    group.send("a", "b", "c")
    wait_for(lambda: group.handled == {b"c": 10} and group.metric("dropped") == 10)
    wait_for(lambda: group.metric("dead_letters") == 10)
    run("end", group.topic, *(each["id"] for each in listed))
    assert not rules.all(group.topic)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hold", "g", "--where", "colour = red"], "the name of a field is expected"),
        (["drop", "g"], "would drop all records"),
        (["weight", "g", "2", "--where", "key = a"], "must choose tenants"),
        (["circuit", "g", "open", "--where", "key = a"], "cannot have a selector"),
        (["end", "g", "no-such-rule"], "has no rule no-such-rule"),
    ],
)
def test_a_mistake_at_the_command_line_is_one_sentence(kafka_cluster: Cluster, words: list[str], sentence: str) -> None:
    servers = str(kafka_cluster.config({})["bootstrap.servers"])
    done = CliRunner().invoke(cli.headway, ["rules", *words, "--bootstrap-servers", servers])
    assert done.exit_code != 0
    assert sentence in done.output


def test_a_rule_demotes_records_to_the_lower_level_where_each_is_handled_once(
    kafka_cluster: Cluster, rules: Rules
) -> None:
    topic = kafka_cluster.topic(2)
    handled: Counter[tuple[int, bytes]] = Counter()

    def note(record: ConsumerRecord, context: Context) -> None:
        handled[record.level, record.value] += 1

    rules.set(Rule("calm", topic, Demote(0), "key = a"))
    with Producer(kafka_cluster.config({"levels": 2})) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, "ab"[number % 2], level=1)
    member = Member(consumer(kafka_cluster, topic, {"steered": True}, levels=2), note)
    wait_for(lambda: handled.total() == 10)
    assert handled == {(1 if number % 2 else 0, b"%d" % number): 1 for number in range(10)}
    wait_for(lambda: member.consumer.metrics().moved == 5)
    member.stop()


def test_rules_that_a_member_cannot_read_are_ignored_with_an_error_and_the_others_apply(
    group: Group, rules: Rules, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headway.parallel.rules_follower")
    group.join()
    rules.set(Rule("no-a", group.topic, Hold(), "key = a"))
    wait_until_applied(caplog, "no-a")
    newer = json.dumps({"id": "new", "group": group.topic, "action": {"do": "reschedule", "to": "monday"}})
    garbage = {"new": newer.encode(), "text": b"no JSON", "deep": b"[" * 10_000, "other": newer.encode(), "none": b""}
    producer = group.cluster.plain_producer()
    for id_, value in garbage.items():
        producer.produce("headway-rules", value, f"{group.topic}/{id_}")
    producer.produce("headway-rules", b"x", b"\xff\xfe/r")
    assert producer.flush(30) == 0
    rules.set(Rule("no-b", group.topic, Hold(), "key = b"))
    wait_until_applied(caplog, "no-b")
    for id_ in garbage:
        assert any(f"{group.topic}/{id_}' " in each for each in caplog.messages if "ignores the rule" in each), id_
    group.send("a", "b", "c")
    wait_for(lambda: group.handled[b"c"] == 10 and group.metric("held") > 0)
    assert set(group.handled) == {b"c"}
    for id_ in garbage:  # other tests and members read the topic, too
        producer.produce("headway-rules", None, f"{group.topic}/{id_}")
    assert producer.flush(30) == 0


@pytest.mark.slow
def test_a_member_keeps_its_rules_when_their_topic_is_deleted_and_follows_the_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "headway")
    with LocalBroker(ephemeral=True) as broker:
        cluster = cluster_of(broker)
        group = Group(cluster)
        with Rules(cluster.config({})) as rules:
            rules.set(Rule("no-a", group.topic, Hold(), "key = a"))
            group.join()
            wait_until_applied(caplog, "no-a")
            for id_ in ("first", "second"):  # by the second change, the member has learned the id of the topic
                rules.set(Rule(id_, group.topic, Hold(), "key = z"))
                wait_until_applied(caplog, id_)
            admin = AdminClient(cluster.config({"log_level": 0}))
            for deleted in admin.delete_topics(["headway-rules"]).values():
                deleted.result(30)
            group.send("a", "b")
            wait_for(lambda: group.handled == {b"b": 10})
            wait_for(lambda: any("headway-rules was deleted" in each for each in caplog.messages))
            rules.set(Rule("no-b", group.topic, Hold(), "key = b"))
            wait_until_applied(caplog, "no-b")
            group.send("a", "b", "c")
            wait_for(lambda: group.handled == {b"b": 10, b"c": 10})
            for member in group.members:
                member.stop(drain=False)

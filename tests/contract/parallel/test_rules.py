"""Rules on a real Apache Kafka: a running group follows them, and a new run knows them before its first record."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from headway import ConsumerRecord, Context, cli
from headway.rules import Hold, LimitRate, Rule, Rules
from tests.contract.conftest import Cluster
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
    listed = [json.loads(line) for line in run("list", group.topic, "--json").splitlines()]
    assert [each["id"] for each in listed] == ["drop-a", "bury-b", "patient", "two"]
    assert "key = a" in run("list", group.topic)
    wait_until_applied(caplog, "drop-a", "bury-b", "patient", "two")
    group.send("a", "b", "c")
    wait_for(lambda: group.handled == {b"c": 10} and group.metric("dropped") == 10)
    wait_for(lambda: group.metric("dead_letters") == 10)
    run("end", group.topic, "drop-a", "bury-b", "patient", "two")
    assert not rules.all(group.topic)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hold", "g", "--where", "colour = red"], "the name of a field is expected"),
        (["drop", "g"], "would drop all records"),
        (["end", "g", "no-such-rule"], "has no rule no-such-rule"),
    ],
)
def test_a_mistake_at_the_command_line_is_one_sentence(kafka_cluster: Cluster, words: list[str], sentence: str) -> None:
    servers = str(kafka_cluster.config({})["bootstrap.servers"])
    done = CliRunner().invoke(cli.headway, ["rules", *words, "--bootstrap-servers", servers])
    assert done.exit_code != 0
    assert sentence in done.output

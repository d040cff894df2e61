"""Each role works with exactly the rights that `docs/secured.md` names, and the broker denies it nothing."""

import json
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import CliRunner, Result
from starlette.testclient import TestClient

from headway import (
    FatalError,
    ParallelConsumer,
    PriorityConsumer,
    Producer,
    ProducerRecord,
    Relay,
    RetryLater,
    Scheduler,
    cli,
)
from headway.broker import LocalBroker
from headway.core.delay.changes import Settled
from headway.core.delay.ladder import Ladder
from headway.core.permissions import Permission
from headway.core.roles import permissions_of
from headway.dashboard import app
from headway.delay.pending import read_pending
from headway.delay.topics import create_topics
from headway.kafka.own_permissions import OwnPermissions, Presence
from headway.rules import Hold, Rule, Rules
from tests.broker.delay_cluster import QUICK, wait_until
from tests.broker.secured_role import AUDITED, SecuredUser, create, user_with

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PATIENCE = 60
LADDER = Ladder((1000, 2000))
MODES = pytest.mark.parametrize("mode", ["exactly-once", pytest.param("low-latency", marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A secured broker that logs what it denies."""
    with LocalBroker(secure=True, java_options=AUDITED) as broker:
        yield broker


@pytest.fixture
def name() -> str:
    """What the names of a test's topics and groups begin with."""
    return f"least-{uuid.uuid4().hex[:8]}"


def user_of(broker: LocalBroker, role: str, cases: Collection[str] = (), **names: str | Sequence[str]) -> SecuredUser:
    """A user with the rights of a role, `names` in place of those in `<>`."""
    listed = {key.replace("_", " "): [of] if isinstance(of, str) else of for key, of in names.items()}
    return user_with(broker, permissions_of(role, cases, listed))


def records(broker: LocalBroker, topic: str, count: int) -> list[Any]:
    """The records of a topic of one partition, read as the admin, once there are so many."""
    own = {"group.id": "looks", "enable.auto.commit": False, "log_level": 0}
    with closing(ck.Consumer({"log_level": 0, **broker.admin_config, **own})) as consumer:
        consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
        found: list[Any] = []
        wait_until(lambda: len(extended(found, consumer.consume(count, 0.1))) >= count)
        return found


def extended(found: list[Any], more: Sequence[Any]) -> list[Any]:
    found.extend(more)
    return found


def fill(broker: LocalBroker, topic: str, count: int) -> None:
    with closing(ck.Producer({"log_level": 0, **broker.admin_config})) as producer:
        for number in range(count):
            producer.produce(topic, str(number), str(number))
        assert producer.flush(PATIENCE) == 0


def delayed(broker: LocalBroker, name: str) -> str:
    """A scheduler's topics, made by the admin."""
    create_topics(broker.admin_config, name, LADDER, 1)
    return name


def headway(user: SecuredUser, *arguments: str, code: int = 0, answer: str = "") -> Result:
    done = CliRunner().invoke(cli.headway, [*arguments, "--config-file", str(user.config_file)], input=answer)
    assert done.exit_code == code, done.output
    return done


def test_a_producer_writes_its_topics(broker: LocalBroker, name: str) -> None:
    topics = [f"{name}-0", f"{name}-1"]
    create(broker, *topics)
    user = user_of(broker, "producer", topic=topics)
    with Producer({**user.config, "levels": 2}) as producer:
        for level in range(2):
            assert producer.send(name, b"v", level=level).result(PATIENCE).offset == 0
    headway(user, "produce", name, "--levels", "2", "--level", "1", answer="one\n")
    assert len(records(broker, topics[1], 2)) == 2
    assert user.denied() == []


def test_a_producer_with_transactions_writes_under_its_id(broker: LocalBroker, name: str) -> None:
    create(broker, f"{name}-0")
    user = user_of(broker, "producer", ["transactional"], topic=f"{name}-0", transactional_id=name)
    with Producer({**user.config, "levels": 1, "transactional.id": name}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(name, b"v")
    assert len(records(broker, f"{name}-0", 1)) == 1
    assert user.denied() == []


def test_a_producer_of_records_that_are_due_later_writes_the_lines(broker: LocalBroker, name: str) -> None:
    create(broker, f"{name}-0")
    user = user_of(broker, "producer", ["due"], topic=f"{name}-0", scheduler=delayed(broker, f"{name}-delay"))
    config = {**user.config, "levels": 1, "scheduler.name": f"{name}-delay"}
    with Producer(config) as producer:
        producer.send(name, b"v", due=60.0).result(PATIENCE)
    assert user.denied() == []


def test_a_producer_of_schedules_with_ids_in_transactions_writes_lines_and_commands(
    broker: LocalBroker, name: str
) -> None:
    create(broker, f"{name}-0")
    scheduler = delayed(broker, f"{name}-delay")
    names: Any = {"topic": f"{name}-0", "scheduler": scheduler, "transactional_id": name}
    user = user_of(broker, "producer", ["transactional", "due", "ids"], **names)
    config = {**user.config, "levels": 1, "scheduler.name": scheduler, "transactional.id": name}
    with Producer(config) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(name, b"v", due=60.0)
            producer.send(name, b"v", due=60.0, id="1")
    assert user.denied() == []


def test_a_consumer_reads_its_topics_in_its_groups(broker: LocalBroker, name: str) -> None:
    topics, groups = [f"{name}-0", f"{name}-1"], [f"{name}-0", f"{name}-1"]
    create(broker, *topics)
    for topic in topics:
        fill(broker, topic, 3)
    user = user_of(broker, "consumer", topic=topics, group=groups)
    config = {**user.config, "group.id": name, "levels": 2, "max.poll.records": 3}
    with PriorityConsumer({**config, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(name)
        found: list[Any] = []
        wait_until(lambda: len(extended(found, consumer.poll(0.5))) >= 3)
    left = headway(user, "consume", name, "--levels", "2", "--group", name, "--max", str(6 - len(found))).stdout
    assert sorted([record.value for record in found] + left.encode().split()) == sorted([b"0", b"1", b"2"] * 2)
    assert user.denied() == []


@pytest.mark.parametrize(
    "commit_mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in ("sync", "async")), "transactional"]
)
def test_a_parallel_consumer_writes_outputs_and_dead_letters_and_schedules(
    broker: LocalBroker, name: str, commit_mode: Any
) -> None:
    source, out, dead, scheduler = (f"{name}-{each}" for each in ("source", "out", "dead", "delay"))
    create(broker, source, out, dead)
    fill(broker, source, 10)
    cases = ["outputs", "dead letters", "due", "ids", commit_mode]
    user = user_of(
        broker,
        "parallel",
        cases,
        topic=source,
        group=name,
        output=out,
        dead_letters=dead,
        transactional_id=f"{name}-*",
        scheduler=delayed(broker, scheduler),
    )

    def handle(record: Any, context: Any) -> ProducerRecord:
        if record.value == b"1":
            raise FatalError("never")
        if record.value == b"2":
            raise RetryLater(60)
        if record.value == b"3":
            return ProducerRecord(out, record.value, due=60)
        if record.value == b"4":
            return ProducerRecord(out, record.value, due=60, id="4")
        return ProducerRecord(out, record.value)

    config = {**user.config, "group.id": name, "auto.offset.reset": "earliest", "scheduler.name": scheduler}
    with ParallelConsumer(config, dead_letter_topic=dead, commit_mode=commit_mode) as consumer:
        consumer.subscribe(source)
        thread = threading.Thread(target=consumer.run_and_produce, args=(handle,))
        thread.start()
        try:
            wait_until(lambda: consumer.metrics().done == 10)
        finally:
            consumer.close()
            thread.join()
    assert len(records(broker, out, 6)) == 6
    assert len(records(broker, dead, 1)) == 1
    assert user.denied() == []


def test_a_worker_runs_with_what_acls_worker_says(
    broker: LocalBroker, name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"worker_{name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(
        f"""
import os, signal
from headway import FatalError, worker

@worker({name!r}, group={name!r}, levels=2, dead_letter_topic="{name}-dead", commit_mode="transactional")
def bill(record, context):
    if record.value == b"2":
        raise FatalError("never")
    open(os.path.join({str(tmp_path)!r}, "done-" + record.value.decode()), "w").close()
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    create(broker, f"{name}-0", f"{name}-1", f"{name}-dead")
    fill(broker, f"{name}-1", 3)
    said = CliRunner().invoke(cli.headway, ["acls", "worker", module, "--principal", "User:any", "--json"]).stdout
    user = user_with(broker, map(permission_of, json.loads(said)["permissions"]))
    command = [str(Path(sys.executable).with_name("headway")), "worker", module, "--config-file"]
    process = subprocess.Popen([*command, str(user.config_file)], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tmp_path / "done-0").exists() and (tmp_path / "done-1").exists())
        assert len(records(broker, f"{name}-dead", 1)) == 1
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert user.denied() == []


@MODES
def test_a_scheduler_makes_its_topics_and_a_relay_delivers_and_answers(
    broker: LocalBroker, name: str, mode: Any
) -> None:
    create(broker, f"{name}-target")
    asks = user_of(broker, "scheduler", ["create", "cancel"], scheduler=name)
    delivers = user_of(broker, "relay", scheduler=name, topic=f"{name}-target")
    shows = user_of(broker, "schedule", scheduler=name)
    create_topics(asks.config, name, LADDER, 2)
    with Relay({**delivers.config, **QUICK}, name=name, mode=mode).running(), Scheduler(asks.config, name=name) as made:
        kept = made.send_later("kept", b"v", f"{name}-target", 3600)
        for number in range(10):
            made.send_later(str(number), b"v", f"{name}-target", 0.2 + number / 20)
        made.send_later("lost", b"v", f"{name}.state-none", 0.1)
        cancelled = made.send_later("cancelled", b"v", f"{name}-target", 3600)
        assert made.cancel(cancelled, PATIENCE).settled() is Settled.CANCELLED
        assert len(records(broker, f"{name}-target", 10)) == 10
        # A target that the relay may not see is not known to be missing: what is due for it waits.
        assert str(kept) in [each.handle for each in read_pending(shows.config, name)]
    assert asks.denied() == []
    assert shows.denied() == []
    assert not [what for what in delivers.denied() if "state-none" not in what]


def test_who_may_not_read_commands_sees_schedules_and_hears_that_commands_seem_to_wait(
    broker: LocalBroker, name: str
) -> None:
    create_topics(broker.admin_config, name, LADDER, 1)
    shows = user_of(broker, "schedule", scheduler=name)
    with Scheduler(broker.admin_config, name=name) as scheduler:
        kept = scheduler.send_later("kept", b"v", f"{name}-target", 3600)
        kept.wait(PATIENCE)
        assert headway(shows, "schedule", "list", "--name", name).stderr == ""
        scheduler.cancel(kept, answered=False).stored()
    listed = headway(shows, "schedule", "list", "--name", name, "--json")
    assert json.loads(listed.stdout)["handle"] == str(kept)
    assert listed.stderr == (
        "Commands may be waiting for a relay, but this client can see only schedules. "
        f"`headway relay --name {name}` carries them out.\n"
    )
    assert json.loads(headway(shows, "schedule", "stats", "--name", name, "--json").stdout)["commands_waiting"] is None
    counts = user_of(broker, "schedule", ["commands"], scheduler=name)
    assert json.loads(headway(counts, "schedule", "stats", "--name", name, "--json").stdout)["commands_waiting"] == 1
    assert counts.denied() == []


def test_the_commands_for_topics_offsets_and_dead_letters_need_what_the_page_says(
    broker: LocalBroker, name: str
) -> None:
    user = user_of(broker, "topics", ["create", "delete"], topic=[f"{name}-0", f"{name}-1"])
    headway(user, "topics", "create", name, "--levels", "2")
    assert name in headway(user, "topics", "list").stdout
    headway(user, "topics", "delete", name, "--levels", "2", "--yes")
    assert user.denied() == []
    dead, group = f"{name}-dead", f"{name}-billing"
    create(broker, dead, f"{name}-target")
    fill(broker, dead, 3)
    with closing(
        ck.Consumer({"log_level": 0, **broker.admin_config, "group.id": group, "enable.auto.commit": False})
    ) as consumer:
        consumer.commit(offsets=[ck.TopicPartition(dead, 0, 1)], asynchronous=False)
    user = user_of(broker, "offsets", topic=dead, group=group)
    assert dead in headway(user, "offsets", "show", group).stdout
    assert user.denied() == []
    user = user_of(broker, "offsets", ["change"], topic=dead, group=[group, f"{group}-new"])
    assert "made" in headway(user, "offsets", "copy", group, f"{group}-new").stderr
    assert "made" in headway(user, "offsets", "reset", group, "--earliest").stderr
    assert user.denied() == []
    user = user_of(broker, "dead", topic=dead)
    assert "0:2" in headway(user, "dead", "list", dead).stdout
    headway(user, "dead", "show", dead, "0:1")
    assert user.denied() == []
    user = user_of(broker, "dead", ["settle"], topic=dead)
    headway(user, "dead", "settle", dead, "0:2", "--yes")
    assert user.denied() == []
    user = user_of(broker, "dead", ["send again"], topic=dead, target=f"{name}-target")
    headway(user, "dead", "send-again", dead, "0:1", "--to", f"{name}-target", "--yes")
    assert "settled before" in headway(user, "dead", "list", dead).output
    assert len(records(broker, f"{name}-target", 1)) == 1
    assert user.denied() == []


def test_a_right_on_a_group_that_is_missing_is_told_and_not_waited_for(broker: LocalBroker, name: str) -> None:
    create(broker, name)
    fill(broker, name, 1)
    user = user_with(broker, [Permission("Read", "Topic", name)])
    said = headway(user, "dead", "list", name, code=1).output
    assert (
        f"The group headway-dead-{name} cannot be described: this client is not authorized. Grant Describe on it"
        in said
    )
    assert 1 <= len(user.denied()) < 5


def permission_of(described: Mapping[str, str]) -> Permission:
    words = described["operation"], described["resource"], described["name"]
    return Permission(*words, described["pattern"] == "prefixed")


# --check


def test_check_says_what_is_missing_and_its_exit_code_too(broker: LocalBroker, name: str) -> None:
    topic, group = Permission("Read", "Topic", name), Permission("Read", "Group", f"{name}-g")
    create(broker, name)
    user = user_with(broker, [topic, group])
    asked = ("acls", "consumer", name, "--group", f"{name}-g", "--check")
    assert headway(user, *asked).stderr == "2 of 2 permissions granted, 0 missing.\n"
    user.revoke(group)
    assert headway(user, *asked, code=1).stdout == f"missing: {group}\n"
    said = json.loads(headway(user, *asked, "--json", code=1).stdout)
    assert [(permission_of(each), each["held"]) for each in said["permissions"]] == [(topic, True), (group, False)]


@pytest.mark.slow
def test_check_finds_each_right_that_is_missing(broker: LocalBroker, name: str) -> None:
    create(broker, f"{name}-target")
    delayed(broker, name)
    permissions = permissions_of("relay", [], {"scheduler": [name], "topic": [f"{name}-target"]})
    user = user_with(broker, permissions)
    assert {answer.held for answer in OwnPermissions(user.config).check(permissions)} == {Presence.YES}
    for permission in permissions:
        user.revoke(permission)
        [answer] = OwnPermissions(user.config).check([permission])
        assert (answer.permission, answer.held) == (permission, Presence.NO)
        user.grant(permission)


def test_check_says_what_cannot_be_known(broker: LocalBroker, name: str) -> None:
    may_see = Permission("Describe", "Topic", name)
    user = user_with(broker, [may_see, Permission("Create", "Topic", f"{name}-", prefixed=True)])
    permissions = [
        Permission("Write", "Topic", name),
        Permission("Write", "TransactionalId", name),
        Permission("Write", "Topic", f"{name}-line-", prefixed=True),
        Permission("Create", "Topic", f"{name}-", prefixed=True),
        Permission("Create", "Topic", f"{name}-new"),
        Permission("Create", "Topic", f"{name}.new"),
    ]
    answers = OwnPermissions(user.config).check(permissions)
    unknown = Presence.UNKNOWN
    assert [answer.held for answer in answers] == [unknown, unknown, unknown, Presence.YES, Presence.YES, Presence.NO]
    assert "the topic does not exist" in answers[0].reason
    assert "end the open transaction" in answers[1].reason
    assert "no topic with this prefix is visible" in answers[2].reason


def test_top_and_the_dashboard_watch_queues_dead_letters_schedules_and_rules(broker: LocalBroker, name: str) -> None:
    dead = f"{name}-dead"
    create(broker, name, dead)
    fill(broker, name, 5)
    with Producer(broker.admin_config) as producer:
        failure = [("headway.error.exception", b"shop.Declined"), ("headway.error.topic", name.encode())]
        producer.send(dead, b"v", "k", headers=failure).result(PATIENCE)
    with closing(ck.Consumer({"log_level": 0, **broker.admin_config, "group.id": name})) as consumer:
        consumer.commit(offsets=[ck.TopicPartition(name, 0, 2)], asynchronous=False)
    with Rules(broker.admin_config) as rules:
        rules.set(Rule("acme", name, Hold(), "tenant = acme", why="their bank is down"))
    names = {"topic": name, "group": name, "dead_letters": dead, "scheduler": delayed(broker, f"{name}-delay")}
    user = user_of(broker, "top", ["dead letters", "schedules"], **names)
    watched = ["--group", name, "--dead-letter", dead, "--scheduler", f"{name}-delay"]
    shown = headway(user, "top", "--once", *watched).stdout
    assert [text for text in (name, "Declined", "their bank is down", f"{name}-delay") if text not in shown] == []
    assert user.denied() == []
    operator = user_of(broker, "dashboard", ["dead letters", "schedules", "actions"], target=name, **names)
    with app(operator.config, groups=[name], allow_actions=True) as page:
        browser = TestClient(page, base_url="http://localhost", headers={"Origin": "http://localhost"})
        wait_until(lambda: "their bank is down" in browser.get("/").text)
        wait_until(lambda: "Declined" in browser.get("/dead").text)
        [csrf, *_] = re.findall(r'name="csrf" value="(\w+)"', browser.get("/rules").text)
        browser.post("/rules/end", data={"csrf": csrf, "group": name, "rule": "acme"})
        wait_until(lambda: "their bank is down" not in browser.get("/rules").text)
        sending = browser.post("/dead/send-again", data={"csrf": csrf, "topic": dead, "place": "0:0"}).url
        wait_until(lambda: "1 dead letter sent again" in browser.get(str(sending)).text)
    assert operator.denied() == []

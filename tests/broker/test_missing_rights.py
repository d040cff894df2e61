"""One right less: a sentence that names it, its resource and what to do; nothing is lost, and all goes on with it.

Each row of a table is a client, or a command, and a right that it lacks, on a broker that denies by default.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import (
    AsyncProducer,
    ParallelConsumer,
    PriorityConsumer,
    Producer,
    ProducerRecord,
    Relay,
    Scheduler,
    cli,
)
from headway.broker import LocalBroker
from headway.core.delay.ladder import FIRST_DELAYS
from headway.core.permissions import Permission
from headway.delay.topic_names import TopicNames
from headway.delay.topics import create_topics
from headway.errors import AuthorizationError, DeliveryRefusedError, FetchRefusedError, HeadwayError
from headway.kafka.admin import Admin
from headway.rules import Drop, Rule, Rules
from tests.broker.delay_cluster import LADDER, QUICK, DelayCluster, wait_until

pytestmark = pytest.mark.kafka

SOON = 5.0
POLLS: Mapping[str, Any] = {"max.poll.records": 10}
MODES = pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])


class Grant(NamedTuple):
    """A right of a row: its words, where `{}` is the name that the test has for itself."""

    operation: str
    resource: str
    name: str
    prefixed: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.resource} {self.name}{'*' * self.prefixed}"


class User:
    """A user of its own on the broker, and what only the superuser may do."""

    def __init__(self, broker: LocalBroker, directory: Path) -> None:
        self._broker = broker
        self.name = f"u{uuid.uuid4().hex[:8]}"
        self.config = broker.add_user(self.name)
        self.file = directory / "user.properties"
        self.file.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))
        self._granted = set[Grant]()

    def _of(self, grant: Grant) -> tuple[str, str, str, str]:
        return self.name, grant.operation, grant.resource, grant.name.replace("{}", self.name)

    def grant(self, *grants: Grant) -> None:
        for each in grants:
            self._broker.grant(*self._of(each), prefixed=each.prefixed)
            self._granted.add(each)

    def revoke(self, grant: Grant) -> None:
        self._broker.revoke(*self._of(grant), prefixed=grant.prefixed)
        self._granted.discard(grant)

    def revoke_all(self) -> None:
        for each in list(self._granted):
            self.revoke(each)

    def sentence(self, grant: Grant) -> str:
        """What is to be said where this is missing, up to the name: of a prefix, any name that begins so."""
        name = grant.name.replace("{}", self.name)
        return f"--allow-principal User:{self.name} --operation {grant.operation} {OPTIONS[grant.resource]} {name}"


OPTIONS = {"Topic": "--topic", "Group": "--group", "TransactionalId": "--transactional-id"}


class Cluster(DelayCluster):
    """What the superuser sees and makes."""

    def __init__(self, broker: LocalBroker, name: str) -> None:
        self.config = dict(broker.admin_config)
        self.name = name
        self.names = TopicNames(name)
        self.target = f"{name}-target"
        self.admin = AdminClient({"log_level": 0, **self.config})

    def with_delays(self) -> "Cluster":
        self.create_target(self.target)
        create_topics(self.config, self.name, LADDER, 2)
        return self

    def create(self, *topics: str) -> None:
        for future in self.admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
            future.result(30)


@pytest.fixture
def user(headway_secure_broker: LocalBroker, tmp_path: Path) -> Iterator[User]:
    user = User(headway_secure_broker, tmp_path)
    yield user
    user.revoke_all()


@pytest.fixture
def cluster(headway_secure_broker: LocalBroker, user: User) -> Cluster:
    return Cluster(headway_secure_broker, user.name)


def own_topics(cluster: Cluster) -> set[str]:
    return {topic for topic in Admin(cluster.config).topics() if topic.startswith(cluster.name)}


def after(began: float) -> float:
    return time.monotonic() - began


# Commands: with all rights they do it, with one less they end with a sentence and change nothing


LINES = Grant("Read", "Topic", "{}.line-", True)
LOOKS = [Grant("Read", "Topic", "{}.ladder"), Grant("Read", "Topic", "{}.state"), LINES]
LOOKS += [Grant("Describe", "Topic", "{}.commands")]
SCHEDULES = [
    Grant("Read", "Topic", "{}.ladder"),
    Grant("Describe", "Topic", "{}.state"),
    Grant("Describe", "Topic", "{}.commands"),
    Grant("Write", "Topic", "{}.line-", True),
]
CANCELS = [*SCHEDULES[:2], SCHEDULES[3], Grant("Write", "Topic", "{}.commands"), Grant("Read", "Topic", "{}.answers")]
LEVELS = [Grant("Read", "Topic", "{}-0"), Grant("Read", "Topic", "{}-1")]
GROUPS = [Grant("Read", "Group", "{}-0"), Grant("Read", "Group", "{}-1")]


class Command(NamedTuple):
    """A command line, the rights that it needs, and those of which the sentence may name another operation."""

    arguments: str
    permissions: list[Grant]
    lines: bytes = b""
    own_words: tuple[str, ...] = ()


COMMANDS = {
    "consume": Command("consume {} --group {} --levels 2 --max 2 --timeout 20", LEVELS + GROUPS),
    "produce": Command(
        "produce {} --levels 2", [Grant("Write", "Topic", "{}-0"), Grant("Write", "Topic", "{}-1")], b"one\n"
    ),
    "offsets-show": Command(
        "offsets show {} --levels 2",
        [each._replace(operation="Describe") for each in LEVELS + GROUPS],
    ),
    "dead-list": Command("dead list {}-0", [LEVELS[0], Grant("Describe", "Group", "headway-dead-{}-0")]),
    "schedule-list": Command("schedule list --name {}", LOOKS, b"", ("state",)),
    "schedule-stats": Command("schedule stats --name {}", LOOKS, b"", ("state",)),
    "schedule-add": Command("schedule add {}-target --in 5m --name {}", SCHEDULES, b"later\n"),
    "topics-create": Command("topics create {}-new", [Grant("Create", "Topic", "{}-new")]),
    "topics-delete": Command("topics delete {}-1 --yes", [Grant("Delete", "Topic", "{}-1")]),
}


SLOW = ("schedule-stats", "schedule-add")


@pytest.mark.quick("dead-list")
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in COMMANDS]
)
def test_a_command_with_one_right_less_says_which_and_changes_nothing(name: str, user: User, cluster: Cluster) -> None:
    command = COMMANDS[name]
    if "schedule" in name:
        cluster.with_delays()
    else:
        cluster.create(f"{user.name}-0", f"{user.name}-1")
        for level in range(2):
            cluster.put(f"{user.name}-{level}", b"k", b"v", [])
    if name == "offsets-show":
        config = {**cluster.config, "group.id": user.name, "levels": 2, **POLLS, "auto.offset.reset": "earliest"}
        with PriorityConsumer(config) as consumer:
            consumer.subscribe(user.name)
            found: Counter[int] = Counter()
            wait_until(lambda: found.update(r.level for r in consumer.poll(0.2)) or len(found) == 2)
            consumer.commit()

    def run() -> Any:
        arguments = command.arguments.replace("{}", user.name).split()
        return CliRunner().invoke(cli.headway, [*arguments, "--config-file", str(user.file)], input=command.lines)

    user.grant(*command.permissions, Grant("Describe", "Group", "{}"))
    topics = own_topics(cluster)
    for missing in command.permissions:
        user.revoke(missing)
        began = time.monotonic()
        done = run()
        assert after(began) < SOON
        assert done.exit_code == 1, done.output
        if not any(word in missing.name + missing.resource for word in command.own_words):
            assert user.sentence(missing) in done.output
        assert "does not exist" not in done.output
        assert own_topics(cluster) == topics
        user.grant(missing)
    done = run()
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_levels_that_are_not_named_and_cannot_be_seen_are_no_levels_that_are_not_there(
    user: User, cluster: Cluster
) -> None:
    cluster.create(f"{user.name}-0", f"{user.name}-1")
    user.grant(LEVELS[0], *GROUPS)
    done = CliRunner().invoke(
        cli.headway, ["consume", user.name, "--group", user.name, "--config-file", str(user.file)]
    )
    assert done.exit_code == 1
    assert f"The topic {user.name}-1 cannot be read: this client is not authorized." in done.output
    assert "as --levels 1" in done.output


@pytest.mark.slow
def test_a_scheduler_that_may_not_see_its_lines_makes_no_others(user: User, cluster: Cluster) -> None:
    cluster.with_delays()
    user.grant(*SCHEDULES, Grant("Create", "Topic", "{}.", True))
    there = own_topics(cluster)
    for missing in SCHEDULES:
        user.revoke(missing)
        with suppress(HeadwayError):  # Create includes nothing
            Scheduler(user.config, name=user.name).close()
        user.grant(missing)
    assert own_topics(cluster) == there


@pytest.mark.slow
def test_a_scheduler_that_may_not_create_the_topics_of_a_longer_delay_says_which_and_who_makes_them(
    user: User, cluster: Cluster
) -> None:
    cluster.create_target(cluster.target)
    create_topics(cluster.config, cluster.name, delay=FIRST_DELAYS)
    user.grant(*SCHEDULES)
    there = own_topics(cluster)
    with Scheduler(user.config, name=user.name) as scheduler:
        scheduler.send_later("k", b"v", cluster.target, 5).wait(30)
        with pytest.raises(AuthorizationError) as refused:
            scheduler.send_later("k", b"v", cluster.target, 20)
        assert f"needs the topics {user.name}.line-16000, which do not exist." in str(refused.value)
        assert user.sentence(Grant("Create", "Topic", "{}.line-16000")) in str(refused.value)
        assert f"`headway schedule init --name {user.name}`" in str(refused.value)
        assert own_topics(cluster) == there
        create_topics(cluster.config, cluster.name)
        scheduler.send_later("k", b"v", cluster.target, 20).wait(30)  # it looks again before it asks for more


@pytest.mark.slow
def test_a_cancellation_whose_answer_may_not_be_read_says_so(user: User, cluster: Cluster) -> None:
    cluster.with_delays()
    user.grant(*CANCELS)
    with Scheduler(user.config, name=user.name) as scheduler:
        handle = scheduler.send_later("k", b"v", cluster.target, 600)
        handle.wait(30)
    user.revoke(CANCELS[-1])
    user.grant(Grant("Describe", "Topic", "{}.answers"))
    with Scheduler(user.config, name=user.name) as scheduler:
        began = time.monotonic()
        with pytest.raises(AuthorizationError, match=f"--operation Read --topic {user.name}.answers"):
            scheduler.cancel(handle).settled(timeout=30)
        assert after(began) < SOON


# Producers


@pytest.mark.quick("unseen-writes-none")
@pytest.mark.parametrize("has_id", [True, False], ids=["writes-another", "writes-none"])
@pytest.mark.parametrize("describe", [True, False], ids=["seen", "unseen"])
def test_a_record_that_may_not_be_written_is_refused_with_the_right(
    user: User, cluster: Cluster, describe: bool, has_id: bool
) -> None:
    cluster.create(f"{user.name}-0")
    if has_id:  # without any Write Kafka gives no producer id
        user.grant(Grant("Write", "Topic", "{}-other"))
    if describe:
        user.grant(Grant("Describe", "Topic", "{}-0"))
    with Producer({**user.config, "levels": 1}) as producer:
        began = time.monotonic()
        with pytest.raises(DeliveryRefusedError, match=f"--operation Write --topic {user.name}-0"):
            producer.send(user.name, b"v").result(30)
        assert after(began) < SOON
        user.grant(Grant("Write", "Topic", "{}-0"))

        def stored() -> bool:
            with suppress(DeliveryRefusedError):
                producer.send(user.name, b"v").result(30)
                return True
            return False

        wait_until(stored, 10)
    assert len(cluster.read(f"{user.name}-0")) == 1


@pytest.mark.slow
async def test_an_async_producer_that_may_write_to_no_topic_goes_on_when_it_may(user: User, cluster: Cluster) -> None:
    cluster.create(f"{user.name}-0")
    user.grant(Grant("Describe", "Topic", "{}-0"))
    async with AsyncProducer({**user.config, "levels": 1}) as producer:

        async def refused() -> bool:
            try:
                await producer.send(user.name, b"v")
            except DeliveryRefusedError as error:
                assert f"--operation Write --topic {user.name}-0" in str(error)  # noqa: PT017 - of each one
                return True
            return False

        for _ in range(3):
            assert await refused()
        user.grant(Grant("Write", "Topic", "{}-0"))
        async with asyncio.timeout(10):
            while await refused():
                await asyncio.sleep(0.1)
    assert len(cluster.read(f"{user.name}-0")) == 1


def test_a_transactional_id_that_may_not_be_used_is_told_at_once(user: User, cluster: Cluster) -> None:
    config = {**user.config, "levels": 1, "transactional.id": user.name}
    began = time.monotonic()
    with (
        Producer(config) as producer,
        pytest.raises(AuthorizationError, match=f"--operation Write --transactional-id {user.name}"),
    ):
        producer.init_transactions()
    assert after(began) < SOON


# Consumers


READS = {"topic": Grant("Read", "Topic", "{}-0"), "group": Grant("Read", "Group", "{}-0")}


@pytest.mark.quick("topic")
@pytest.mark.parametrize("which", READS)
def test_a_consumer_without_a_right_says_so_closes_at_once_and_reads_when_it_is_granted(
    which: str, user: User, cluster: Cluster
) -> None:
    cluster.create(f"{user.name}-0")
    cluster.put(f"{user.name}-0", b"k", b"v", [])
    user.grant(*(each for name, each in READS.items() if name != which))
    config = {**user.config, "group.id": user.name, "levels": 1, **POLLS, "auto.offset.reset": "earliest"}
    with PriorityConsumer(config) as consumer:
        consumer.subscribe(user.name)
        began = time.monotonic()
        with pytest.raises(FetchRefusedError) as said:
            wait_until(lambda: consumer.poll(0.2))
        assert after(began) < SOON
        assert user.sentence(READS[which]) in str(said.value)
        assert str(consumer.metrics()[0].refused) in str(said.value)
        user.grant(READS[which])

        def polled() -> list[Any]:
            with suppress(FetchRefusedError):
                return consumer.poll(0.2)
            return []

        [record] = wait_until(polled)
        assert record.value == b"v"
        wait_until(lambda: polled() or consumer.metrics()[0].refused is None)
        user.revoke(READS[which])
        began = time.monotonic()
    assert after(began) < SOON


@contextmanager
def running(consumer: ParallelConsumer, run: Callable[[], None]) -> Iterator["Future[None]"]:
    with consumer, ThreadPoolExecutor(1) as thread:
        ended = thread.submit(run)
        try:
            yield ended
        finally:
            consumer.close()
        ended.result()


def parallel(user: User, **options: Any) -> ParallelConsumer:
    settings = {"group.id": f"{user.name}-0", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200}
    quick = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    consumer = ParallelConsumer({**user.config, **settings, **quick}, **options)
    consumer.subscribe(f"{user.name}-0")
    return consumer


PARALLEL = [*READS.values(), Grant("Write", "Topic", "{}-out")]
TRANSACTIONS = Grant("Write", "TransactionalId", "{}-", True)


@pytest.mark.slow
@pytest.mark.parametrize("missing", [*READS.values(), TRANSACTIONS], ids=str)
def test_a_run_without_a_right_from_the_start_ends_with_it(missing: Grant, user: User, cluster: Cluster) -> None:
    cluster.create(f"{user.name}-0")
    user.grant(*({*READS.values(), TRANSACTIONS} - {missing}))
    began = time.monotonic()
    with parallel(user, commit_mode="transactional") as consumer, pytest.raises(AuthorizationError) as said:
        consumer.run(lambda record, context: None)
    assert after(began) < SOON
    assert user.sentence(missing) in str(said.value)


@pytest.mark.slow
def test_a_member_that_may_not_read_the_rules_says_so_handles_its_records_and_follows_the_rules_when_it_may(
    user: User, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create(f"{user.name}-0")
    user.grant(*READS.values())
    handled: Counter[bytes] = Counter()

    def handle(record: Any, context: Any) -> None:
        handled[record.value] += 1

    with Rules(cluster.config) as rules:
        rules.set(Rule("drop-b", f"{user.name}-0", Drop(), "key = b"))
    consumer = parallel(user, steered=True)
    with caplog.at_level(logging.WARNING, "headway"), running(consumer, lambda: consumer.run(handle)):
        cluster.put(f"{user.name}-0", b"b", b"before", [])
        wait_until(lambda: handled[b"before"] == 1)
        assert any("continues with the rules that it knows" in each for each in caplog.messages)
        assert any("headway-rules" in each for each in caplog.messages)
        user.grant(Grant("Read", "Topic", "headway-rules"))
        time.sleep(11)  # it tries again every 10 s
        cluster.put(f"{user.name}-0", b"b", b"after", [])
        wait_until(lambda: consumer.metrics().dropped == 1)
    assert handled == {b"before": 1}


@pytest.mark.slow
def test_a_run_that_may_write_to_no_topic_goes_on_when_its_outputs_may_be_written(user: User, cluster: Cluster) -> None:
    cluster.create(f"{user.name}-0", f"{user.name}-out")
    user.grant(*READS.values(), Grant("Describe", "Topic", "{}-out"))
    handled: Counter[bytes] = Counter()

    def handle(record: Any, context: Any) -> ProducerRecord:
        handled[record.value] += 1
        return ProducerRecord(f"{user.name}-out", record.value)

    cluster.put(f"{user.name}-0", b"k", b"v", [])
    consumer = parallel(user)
    with running(consumer, lambda: consumer.run_and_produce(handle)):
        wait_until(lambda: handled[b"v"] > 1)
        user.grant(PARALLEL[-1])
        wait_until(lambda: consumer.metrics().done == 1)
    assert len(cluster.read(f"{user.name}-out")) == 1


@pytest.mark.quick("async-Write Topic {}-out")
@pytest.mark.parametrize("missing", PARALLEL, ids=str)
@pytest.mark.parametrize("commit_mode", ["async", pytest.param("transactional", marks=pytest.mark.slow)])
def test_a_right_that_a_run_loses_is_told_and_nothing_is_lost_until_it_is_back(
    missing: Grant, commit_mode: Any, user: User, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create(f"{user.name}-0", f"{user.name}-out")
    user.grant(*PARALLEL, TRANSACTIONS)
    handled: Counter[bytes] = Counter()

    def handle(record: Any, context: Any) -> ProducerRecord:
        handled[record.value] += 1
        return ProducerRecord(f"{user.name}-out", record.value)

    def send(*values: bytes) -> None:
        for value in values:
            cluster.put(f"{user.name}-0", value, value, [])

    def written() -> set[bytes]:
        return {message.value() for message in cluster.read(f"{user.name}-out")}

    consumer = parallel(user, commit_mode=commit_mode)
    with (
        caplog.at_level(logging.WARNING, "headway"),
        running(consumer, lambda: consumer.run_and_produce(handle)) as ended,
    ):
        send(b"1", b"2")
        wait_until(lambda: written() == {b"1", b"2"})
        user.revoke(missing)
        began = time.monotonic()
        send(b"3", b"4")
        if missing.operation == "Write" and commit_mode == "async":
            wait_until(lambda: handled[b"3"])
        else:
            wait_until(lambda: ended.done() or consumer.metrics().refused)
            assert not ended.done(), ended.exception()
            assert after(began) < SOON
            assert user.sentence(missing) in (consumer.metrics().refused or "")
            wait_until(lambda: user.sentence(missing) in caplog.text)
        user.grant(missing)
        send(b"5")
        wait_until(lambda: ended.done() or written() == {b"1", b"2", b"3", b"4", b"5"})
        assert not ended.done(), ended.exception()
        wait_until(lambda: consumer.metrics().refused is None)


# Relays


RELAY = {
    "group": Grant("Read", "Group", "{}"),
    "commands": Grant("Read", "Topic", "{}.commands"),
    "ladder": Grant("Read", "Topic", "{}.ladder"),
    "state": Grant("Read", "Topic", "{}.state"),
    "lines": LINES,
    "write-lines": Grant("Write", "Topic", "{}.line-", True),
    "write-state": Grant("Write", "Topic", "{}.state"),
    "transactions": Grant("Write", "TransactionalId", "{}-relay-", True),
}
CAN_DO_WITHOUT = [
    Grant("Write", "Topic", "{}.answers"),
    Grant("Write", "Topic", "{}.dead"),
    Grant("Write", "Topic", "{}-target"),
    Grant("Delete", "Topic", "{}.line-", True),
    Grant("Delete", "Topic", "{}.commands"),
]


def relay(user: User, mode: Any) -> Relay:
    return Relay({**user.config, **QUICK, "session.timeout.ms": 6000}, name=user.name, mode=mode)


@pytest.mark.slow
@MODES
def test_a_relay_without_a_right_from_the_start_ends_with_it(mode: str, user: User, cluster: Cluster) -> None:
    cluster.with_delays()
    user.grant(*RELAY.values(), *CAN_DO_WITHOUT)
    for missing in RELAY.values():
        user.revoke(missing)
        began = time.monotonic()
        with pytest.raises(AuthorizationError) as said, relay(user, mode) as without:
            without.run()
        assert after(began) < SOON
        assert user.sentence(missing) in str(said.value)
        user.grant(missing)


@pytest.mark.slow
def test_the_command_relay_ends_with_the_sentence(user: User, cluster: Cluster) -> None:
    cluster.with_delays()
    user.grant(*(each for name, each in RELAY.items() if name != "state"), Grant("Describe", "Topic", "{}.state"))
    done = CliRunner().invoke(cli.headway, ["relay", "--name", user.name, "--config-file", str(user.file)])
    assert done.exit_code == 1
    assert user.sentence(RELAY["state"]) in done.output


@pytest.mark.slow
def test_a_relay_that_may_not_delete_what_has_left_its_lines_says_so(
    user: User, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.with_delays()
    user.grant(*RELAY.values(), *CAN_DO_WITHOUT[:3])
    with caplog.at_level(logging.WARNING, "headway"), relay(user, "exactly-once").running():
        wait_until(lambda: "are not deleted, so they take up disk space permanently" in caplog.text, SOON)
    assert user.sentence(Grant("Delete", "Topic", "{}.line-")) in caplog.text


def lose_and_give_back(
    missing: Grant, mode: Any, user: User, cluster: Cluster, caplog: pytest.LogCaptureFixture, warning: str = ""
) -> None:
    """Run a relay that loses a right until it warns, and for 3 s; check that what is due arrives, and how often."""
    count = 40
    with (
        caplog.at_level(logging.WARNING, "headway"),
        relay(user, mode).running() as runs,
        cluster.scheduler() as scheduler,
    ):
        for number in range(10):
            scheduler.send_later(f"{number}", b"v", cluster.target, 0.2)
        cluster.wait_for(3)
        user.revoke(missing)
        for number in range(10, count):
            scheduler.send_later(f"{number}", b"v", cluster.target, number / 15)
        began = time.monotonic()
        wait_until(lambda: after(began) > 3.0 and warning in caplog.text)  # for what must not become of it
        # The others are only read, or written, at another time.
        needs = missing in (RELAY["group"], RELAY["commands"], RELAY["lines"])
        if needs or missing.operation == "Write":
            assert runs.refused is None or user.sentence(missing) in runs.refused
        if needs:
            assert runs.refused
            assert not runs.partitions
        user.grant(missing)
        cluster.wait_for_keys([str(number).encode() for number in range(count)])
        wait_until(lambda: runs.refused is None)
    found = Counter(message.key().decode() for message in cluster.read())
    assert set(found) == {str(number) for number in range(count)}
    if mode == "exactly-once":
        assert set(found.values()) == {1}
    assert not cluster.read(cluster.names.dead)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exactly-once", pytest.param("low-latency", marks=pytest.mark.slow)])
def test_a_target_whose_right_is_away_for_a_while_makes_no_dead_letters(
    mode: str, user: User, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.with_delays()
    user.grant(*RELAY.values(), *CAN_DO_WITHOUT)
    warning = f"The topic {cluster.target} cannot be written"
    lose_and_give_back(CAN_DO_WITHOUT[2], mode, user, cluster, caplog, warning)


@pytest.mark.slow
def test_a_relay_that_loses_its_lines_gives_up_its_partitions_and_goes_on_when_they_are_back(
    user: User, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.with_delays()
    user.grant(*RELAY.values(), *CAN_DO_WITHOUT)
    warning = "delivers nothing until a permission is granted"
    lose_and_give_back(RELAY["lines"], "exactly-once", user, cluster, caplog, warning)


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("missing", [*RELAY.values(), *CAN_DO_WITHOUT], ids=str)
def test_every_right_that_a_relay_loses_costs_nothing_but_time(
    missing: Grant, mode: str, user: User, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.with_delays()
    user.grant(*RELAY.values(), *CAN_DO_WITHOUT)
    lose_and_give_back(missing, mode, user, cluster, caplog)


# The sentence


def test_the_sentence_names_the_user_where_the_settings_say_it(user: User, cluster: Cluster) -> None:
    cluster.create(f"{user.name}-0")
    permission = Permission("Read", "Topic", f"{user.name}-0")
    with pytest.raises(AuthorizationError, match=f"Grant Read on it to User:{user.name} "):
        Admin(user.config).require([permission])
    certificate: Mapping[str, Any] = {key: value for key, value in user.config.items() if not key.startswith("sasl")}
    assert "to the principal of this client" in permission.missing(certificate)

"""`headway schedule` and `headway relay` against Apache Kafka, and what else takes a due time."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import CliRunner, Result

from headway import (
    AsyncProducer,
    AsyncScheduler,
    ConsumerRecord,
    Context,
    ParallelConsumer,
    Producer,
    RetryLater,
    Settled,
    cli,
)
from headway.broker import LocalBroker
from headway.delay.topics import create_topics
from headway.kafka.admin import Admin
from tests.broker.delay_cluster import LADDER, DelayCluster, wait_until


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    return DelayCluster(headway_broker.bootstrap_servers)


def run(cluster: DelayCluster, *arguments: str, text: str | bytes | None = None) -> Result:
    command = ["schedule", *arguments, "--name", cluster.name, "-b", cluster.config["bootstrap.servers"]]
    return CliRunner().invoke(cli.headway, command, input=text)


def test_the_relays_are_the_members_of_the_group_of_their_scheduler(cluster: DelayCluster) -> None:
    def settled() -> list[dict[str, Any]]:
        shown = CliRunner().invoke(cli.headway, ["offsets", "show", cluster.name, "--json", "-b", servers])
        found = json.loads(shown.stdout)["partitions"] if shown.exit_code == 0 else []
        return found if all(each["member"] for each in found) else []

    servers = cluster.config["bootstrap.servers"]
    with cluster.relay():
        partitions = wait_until(settled)
    assert [(each["topic"], each["partition"]) for each in partitions] == [
        (cluster.names.commands, 0),
        (cluster.names.commands, 1),
    ]
    assert len({each["member"]["client_id"] for each in partitions}) == 1


def test_what_is_added_is_listed_counted_and_cancelled(cluster: DelayCluster) -> None:
    added = run(cluster, "add", cluster.target, "--in", "1h", "--key", "k", text="one\ntwo\n")
    handles = added.output.split()
    assert added.exit_code == 0
    assert len(handles) == 2
    later = run(cluster, "add", cluster.target, "--in", "2d", text="three\n").output.strip()
    listed = [json.loads(line) for line in run(cluster, "list", "--json").output.splitlines()]
    assert [each["handle"] for each in listed] == [*handles, later]
    assert listed[0]["id"] == handles[0].split(".")[-1]
    stats = json.loads(run(cluster, "stats", "--json").output)
    assert stats["pending"] == 3
    assert stats["delay_topics"] == [{"topic_delay_ms": 4000, "pending": 3}]
    assert [hour["pending"] for hour in stats["hours"]] == [2, 1]
    assert "3 pending" in run(cluster, "stats").output
    with cluster.relay():
        cancelled = run(cluster, "cancel", *handles)
    assert cancelled.output == f"{handles[0]}: cancelled\n{handles[1]}: cancelled\n"
    assert [json.loads(line)["handle"] for line in run(cluster, "list", "--json").output.splitlines()] == [later]


@pytest.mark.slow
def test_a_schedule_for_a_topic_that_has_only_levels_is_for_the_lowest(cluster: DelayCluster) -> None:
    topic = f"{cluster.target}-levels"
    Admin(cluster.config).create([f"{topic}-0", f"{topic}-1"], 1)
    assert run(cluster, "add", topic, "--in", "1h", text="one\n").exit_code == 0
    for name in (topic, f"{topic}-0"):
        [listed] = [json.loads(line) for line in run(cluster, "list", "--json", "--topic", name).output.splitlines()]
        assert listed["topic"] == f"{topic}-0"
    other = cluster.target
    assert run(cluster, "list", "--topic", other).output == f"Nothing is pending for {other}.\n"


@pytest.mark.slow
def test_a_schedule_for_a_topic_that_does_not_exist_is_stored_and_a_warning_says_what_becomes_of_it(
    cluster: DelayCluster,
) -> None:
    missing = run(cluster, "add", f"{cluster.target}-not", "--in", "1h", text="one\ntwo\n")
    assert missing.exit_code == 0
    assert len(missing.stdout.split()) == 2
    assert missing.stderr == (
        f"headway: The topic {cluster.target}-not does not exist now. If it is still missing when a record is due, the "
        f"record becomes a dead letter in {cluster.name}.dead.\n"
    )
    topic = f"{cluster.target}-levels"
    Admin(cluster.config).create([f"{topic}-0", f"{topic}-1"], 1)
    high = run(cluster, "add", topic, "--level", "7", "--in", "1h", text="one\n")
    assert f"The topic {topic}-7 does not exist now. {topic} has 2 levels, from 0." in high.stderr
    assert run(cluster, "add", topic, "--level", "1", "--in", "1h", text="one\n").stderr == ""
    assert run(cluster, "add", cluster.target, "--in", "1h", text="one\n").stderr == ""
    impossible = run(cluster, "add", "no/topic", "--in", "1h", text="one\n")
    assert (impossible.exit_code, impossible.stdout) == (1, "")
    assert "does not exist now" not in impossible.stderr


@pytest.mark.slow
def test_a_schedule_is_replaced_rescheduled_and_cancelled_by_an_id_of_ones_own(cluster: DelayCluster) -> None:
    def add(*more: str) -> Result:
        return run(cluster, "add", cluster.target, "--in", "1h", "--id", "mine", *more, text="one\n")

    with cluster.relay():
        assert add().output == "id:mine\n"
        refused = add("--if-pending", "refuse")
        assert refused.exit_code == 1
        assert "A schedule with the id 'mine' is pending" in refused.output
        assert add().output == "id:mine\n"
        wait_until(cluster.pending)
        [listed] = [json.loads(line) for line in run(cluster, "list", "--json").stdout.splitlines()]
        assert (listed["handle"], listed["id"]) == ("id:mine", "mine")
        moved = run(cluster, "reschedule", "id:mine", "--in", "2d")
        assert (moved.exit_code, moved.output) == (0, "id:mine: rescheduled\n")
        assert [
            json.loads(run(cluster, "list", "--json", "--id", own).stdout)["id"] for own in ("mine", "id:mine")
        ] == ["mine"] * 2
        assert run(cluster, "list", "--id", "other").output == "Nothing is pending with the id other.\n"
        unknown = run(cluster, "cancel", "id:other")
        assert (unknown.exit_code, unknown.stdout) == (1, "id:other: unknown\n")
        assert "Unknown means that no such schedule is pending" in unknown.stderr
        assert run(cluster, "cancel", "id:mine").output == "id:mine: cancelled\n"
        again = run(cluster, "reschedule", "id:mine", "--in", "1h")
        assert (again.exit_code, again.output) == (1, "id:mine: cancelled\n")
    two = run(cluster, "add", cluster.target, "--in", "1h", "--id", "mine", text="one\ntwo\n")
    assert "The id 'mine' can identify one record only, but stdin has more than one line." in two.output


def test_a_schedule_is_given_another_due_time_by_its_handle_and_comes_once(cluster: DelayCluster) -> None:
    handles = run(cluster, "add", cluster.target, "--in", "1h", text="one\ntwo\n").output.split()
    with cluster.relay():
        moved = run(cluster, "reschedule", *handles, "--in", "100ms")
        assert moved.output == "".join(f"{handle}: rescheduled\n" for handle in handles)
        assert sorted(message.value() for message in cluster.wait_for(2)) == [b"one", b"two"]
        late = run(cluster, "reschedule", handles[0], "--at", "2030-01-31T17:00:00+01:00")
        assert (late.exit_code, late.output) == (1, f"{handles[0]}: already delivered\n")
    assert len(cluster.read()) == 2


def test_a_line_is_a_record_whatever_its_bytes_are(cluster: DelayCluster) -> None:
    added = run(cluster, "add", cluster.target, "--in", "1h", text=b"caf\xe9\r\n\xff\n")
    assert added.exit_code == 0
    assert sorted(each.message.value() for each in cluster.pending()) == [b"caf\xe9", b"\xff"]


@pytest.mark.slow
def test_without_a_relay_all_cancellations_are_stored_and_settled_by_the_next(cluster: DelayCluster) -> None:
    handles = run(cluster, "add", cluster.target, "--in", "1h", text="one\ntwo\n").output.split()
    result = run(cluster, "cancel", *handles, "--timeout", "0.2")
    assert result.exit_code == 1
    assert "".join(f"{handle}: not answered\n" for handle in handles) in result.output
    assert "No relay has answered within 0.2 s" in result.output
    with cluster.relay():
        wait_until(lambda: not cluster.pending())


@pytest.mark.slow
def test_a_long_wait_for_a_relay_is_told(cluster: DelayCluster) -> None:
    handle, later = run(cluster, "add", cluster.target, "--in", "1h", text="one\ntwo\n").output.split()
    told = "headway: No relay has answered yet. Waiting up to {} s more; start one with `headway relay`.\n"
    for change in (["cancel", handle], ["reschedule", handle, "--in", "2h"]):
        result = run(cluster, *change, "--timeout", "2.5")
        assert result.stderr.startswith(told.format("0.5"))
        assert "No relay has answered within 2.5 s" in result.stderr
    with cluster.relay():
        assert run(cluster, "cancel", handle).exit_code == 0
        assert run(cluster, "cancel", later).stderr == ""


@pytest.mark.slow
def test_a_schedule_that_may_be_refused_tells_of_a_long_wait_for_a_relay(cluster: DelayCluster) -> None:
    program = [sys.executable, "-c", "from headway.cli import main; main()", "schedule", "add", cluster.target]
    options = ["--in", "1h", "--id", "mine", "--if-pending", "refuse", "--name", cluster.name]
    command = [*program, *options, "-b", cluster.config["bootstrap.servers"]]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as adding:
        assert adding.stdin is not None
        assert adding.stderr is not None
        adding.stdin.write("one\n")
        adding.stdin.close()
        assert adding.stderr.readline().startswith("headway: No relay has answered yet. Waiting up to 30 s more")
        with cluster.relay():
            assert adding.wait(60) == 0


@pytest.mark.slow
def test_while_no_relay_runs_what_waits_for_one_is_told(cluster: DelayCluster) -> None:
    [handle] = run(cluster, "add", cluster.target, "--in", "1h", text="one\n").output.split()
    assert "relay" not in run(cluster, "list").output
    run(cluster, "add", cluster.target, "--in", "1h", "--id", "mine", text="two\n")
    one = "1 command waits for a relay: a schedule with an id, a cancellation or a reschedule."
    assert run(cluster, "list", "--json").stderr == f"{one} `headway relay --name {cluster.name}` carries it out.\n"
    run(cluster, "cancel", handle, "id:mine", "--timeout", "0")
    three = "3 commands wait for a relay: schedules with an id, cancellations, reschedules."
    listed, counted = run(cluster, "list", "--json"), run(cluster, "stats")
    assert [json.loads(line)["handle"] for line in listed.stdout.splitlines()] == [handle]
    assert three in listed.stderr
    assert three in counted.stderr
    assert json.loads(run(cluster, "stats", "--json").output)["commands_waiting"] == 3
    with cluster.relay():
        wait_until(lambda: run(cluster, "list").stderr == "Nothing is pending.\n")
    assert json.loads(run(cluster, "stats", "--json").output)["commands_waiting"] == 0


@pytest.mark.slow
def test_transactions_leave_nothing_in_the_commands_that_counts_as_waiting(cluster: DelayCluster) -> None:
    def send_in_transaction(value: bytes, *, commits: bool) -> None:
        producer.begin_transaction()
        producer.produce(cluster.names.commands, value, b"k", partition=0)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)()

    producer = ck.Producer({"log_level": 0, **cluster.config, "transactional.id": cluster.name})
    producer.init_transactions()
    send_in_transaction(b"aborted", commits=False)
    assert run(cluster, "list").stderr == "Nothing is pending.\n"
    send_in_transaction(b"a command", commits=True)
    listed = run(cluster, "list").stderr
    assert listed.startswith("Nothing is pending in the delay topics.\n1 command waits for a relay")
    producer.begin_transaction()
    producer.produce(cluster.names.commands, b"undecided", b"k", partition=0)
    producer.flush()
    assert run(cluster, "list").stderr == listed
    producer.abort_transaction()
    with cluster.relay():  # it passes over what is no command
        wait_until(lambda: run(cluster, "list").stderr == "Nothing is pending.\n")


def test_a_mistake_in_one_handle_cancels_none(cluster: DelayCluster) -> None:
    [handle] = run(cluster, "add", cluster.target, "--in", "1h", text="one\n").output.split()
    with cluster.relay():
        assert "is not a handle" in run(cluster, "cancel", handle, "nonsense").output
        assert f"{handle}: cancelled\n" in run(cluster, "cancel", handle).output


@pytest.mark.slow
def test_fitting_proposes_lines_and_puts_them_in_use(cluster: DelayCluster) -> None:
    run(cluster, "add", cluster.target, "--in", "1h", text="x\n" * 20)
    proposed = run(cluster, "fit", "--count", "2")
    assert "proposed: 1 s, 3600 s  (2 delay topics, 2.0 writes per record)" in proposed.output
    assert "from now on" in run(cluster, "fit", "--count", "2", "--apply").output
    assert "and the delays 1 s, 3600 s." in run(cluster, "init").output
    assert "1 s, 3600 s" in run(cluster, "init").output


def test_a_dry_run_says_what_would_be_created_and_creates_nothing(cluster: DelayCluster) -> None:
    cluster.name = f"{cluster.name}-other"
    shown = run(cluster, "init", "--dry-run", "--delays", "1s,1m", "--partitions", "3")
    assert f"{cluster.name}.line-60000  partitions=3" in shown.output
    assert "retention.ms=-1" in shown.output
    refused = run(cluster, "list")
    assert refused.exit_code == 1
    assert "has no topics" in refused.output


MISTAKES = [
    (["add", "t"], "one of --in, --at and --every"),
    (["add", "t", "--in", "soon"], "is not a delay"),
    (["add", "t", "--in", "-5s"], "'-5s' is in the past"),
    (["add", "t", "--at", "2030-01-31T17:00:00"], "has no time zone"),
    (["add", "t", "--at", "tomorrow"], "is not a time. Give a date, a time and its zone"),
    (["add", "t", "--every", "61 * * * *"], "cannot be read"),
    (["init", "--delays", "1s,1s"], "longer than the one before"),
    (["add", "t", "--every", "0 17 * * *", "--zone", "Europe"], "in the zone 'Europe' cannot be read"),
    (["add", "t", "--in", "1h", "-X", "message.timeout.ms=abc"], "must be a whole number"),
    (["cancel", "nonsense"], "is not a handle"),
    (["reschedule", "nonsense", "--in", "5m"], "is not a handle"),
    (["reschedule", "id:mine"], "one of --in and --at"),
    (["add", "t", "--in", "5m", "--id", "x" * 251], "text of 1 to 250 characters"),
    (["cancel", "nonsense", "--timeout", "inf"], "inf is not in the range"),
]


def test_mistakes_are_sentences(cluster: DelayCluster) -> None:
    for arguments, sentence in MISTAKES:
        result = run(cluster, *arguments, text="x\n")
        assert result.exit_code in (1, 2), arguments
        assert sentence in result.output, arguments


@pytest.mark.quick("15-0")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_relay_ends_at_once_when_it_is_told_to(cluster: DelayCluster, number: int, code: int) -> None:
    command = [sys.executable, "-c", "from headway.cli import main; main()", "relay", "--name", cluster.name]
    servers = ["-b", cluster.config["bootstrap.servers"]]
    with subprocess.Popen([*command, *servers], stderr=subprocess.PIPE, text=True) as relay:
        assert relay.stderr is not None
        wait_until(lambda: "has partitions" in str(relay.stderr.readline()))  # type: ignore[union-attr]
        relay.send_signal(number)
        assert relay.wait(20) == code


def test_a_producers_record_may_have_a_due_time(cluster: DelayCluster) -> None:
    create_topics(cluster.config, ladder=LADDER)
    cluster.name = "headway-delay"
    cluster.create_target(f"{cluster.target}-1")
    reports: list[object] = []
    config = {**cluster.config, "levels": 2, "message.max.bytes": 5_000_000}  # a schedule is smaller
    with cluster.relay(), Producer(config) as producer:
        began = time.time()
        future = producer.send(
            cluster.target, b"v", b"k", level=1, due=0.5, on_delivery=lambda *report: reports.append(report)
        )
        assert future.result(10).topic.startswith("headway-delay.line-")
        [message] = cluster.wait_for(1, f"{cluster.target}-1")
    assert message.timestamp()[1] / 1000 >= began + 0.5
    assert len(reports) == 1


async def test_an_async_producers_record_may_have_a_due_time(cluster: DelayCluster) -> None:
    cluster.create_target(f"{cluster.target}-1")
    config = {**cluster.config, "scheduler.name": cluster.name}
    with cluster.relay():
        async with AsyncProducer(config) as plain, AsyncProducer({**config, "levels": 2}) as by_level:
            stored = [
                plain.send(cluster.target, b"v", b"plain", due=0.3),
                by_level.send(cluster.target, b"v", b"by level", level=1, due=0.3),
            ]
            assert [(await each).topic for each in stored] == [cluster.names.delay_topic(0)] * 2
        for topic, key in ((cluster.target, b"plain"), (f"{cluster.target}-1", b"by level")):
            [message] = await asyncio.to_thread(cluster.wait_for, 1, topic)
            assert message.key() == key


@pytest.mark.slow
def test_a_setting_says_whose_relay_delivers_what_producers_and_handlers_schedule(cluster: DelayCluster) -> None:
    config = {**cluster.config, "scheduler.name": cluster.name}
    handled: list[ConsumerRecord] = []
    consumer = ParallelConsumer({**config, "group.id": cluster.target, "auto.offset.reset": "earliest"})

    def handle(record: ConsumerRecord, context: Context) -> None:
        handled.append(record)
        if len(handled) == 1:
            raise RetryLater(0.3)
        consumer.stop()

    with cluster.relay(), Producer(config) as producer:
        future = producer.send(cluster.target, b"v", b"k", due=0.3)
        assert future.result(10).topic == cluster.names.delay_topic(0)
        consumer.subscribe(cluster.target)
        consumer.run(handle)
    assert [record.value for record in handled] == [b"v", b"v"]


@pytest.mark.slow
async def test_the_async_twin_stores_cancels_and_reschedules(cluster: DelayCluster) -> None:
    with cluster.relay():
        async with AsyncScheduler(cluster.config, name=cluster.name) as scheduler:
            gone = await scheduler.send_later("gone", b"v", cluster.target, 60)
            moved = await scheduler.send_later("moved", b"v", cluster.target, 60)
            again = await scheduler.every(0.2, "again", b"v", cluster.target)
            assert await (await scheduler.cancel(gone)).settled() is Settled.CANCELLED
            assert await (await scheduler.reschedule(str(moved), 0.3)).settled() is Settled.RESCHEDULED
            found = wait_until(lambda: len({message.key() for message in cluster.read()}) == 2 and cluster.read())
            assert await (await scheduler.cancel(again)).settled() is Settled.CANCELLED
    assert {message.key() for message in found} == {b"moved", b"again"}


@pytest.mark.quick("True")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_may_ask_for_its_record_again_much_later(cluster: DelayCluster, is_async: bool) -> None:
    create_topics(cluster.config, ladder=LADDER)
    cluster.name = "headway-delay"
    called: list[tuple[float, ConsumerRecord]] = []
    config = {**cluster.config, "group.id": cluster.target, "auto.offset.reset": "earliest"}
    consumer = ParallelConsumer(config)

    def handle(record: ConsumerRecord, context: Context) -> None:
        called.append((time.time(), record))
        if len(called) == 1:
            raise RetryLater(1.2)
        consumer.stop()

    async def handle_async(record: ConsumerRecord, context: Context) -> None:
        handle(record, context)

    with Producer({**cluster.config, "levels": 1}) as producer:
        cluster.create_target(f"{cluster.target}-0")
        producer.send(cluster.target, b"v", b"k", headers=[("a", b"b")], partition=1)
    consumer.subscribe(f"{cluster.target}-0")
    with cluster.relay():
        consumer.run(handle_async if is_async else handle)
    (first, _), (second, record) = called
    assert 1.2 <= second - first < 30
    assert (record.raw_key, record.value, record.headers[:1], record.partition) == (b"k", b"v", [("a", b"b")], 1)
    assert [name for name, _ in record.headers[1:]] == ["headway.history"]

"""`headway dead` against Apache Kafka: letters are seen, sent again, acknowledged, and sent once."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import ConsumerRecord, Context, FatalError, Origin, ParallelConsumer, cli
from headway.kafka.reading.group_inspector import GroupInspector
from headway.records.history import History
from headway.records.record_types import Message
from tests.contract.conftest import Cluster

pytestmark = pytest.mark.kafka

OWN = [("trace", b"1"), ("trace", b"\xff"), ("none", None)]


class Shop:
    """A topic with three partitions, and the dead letters that came from it, in two."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.topic, self.dead = cluster, name, f"{name}-dead"
        self.producer = cluster.plain_producer()
        self.create(self.topic, 3)
        self.create(self.dead, 2)

    def create(self, topic: str, partitions: int, **config: str) -> None:
        admin = AdminClient(self.cluster.config({"log_level": 2}))
        new = NewTopic(topic, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        admin.create_topics([new])[topic].result(20)

    def bury(self, *values: bytes, exception: str = "builtins.ValueError", partition: int = 0, **story: str) -> None:
        """Write dead letters, as a parallel consumer does."""
        story = {"exception": exception, "topic": self.topic, "partition": "2", "offset": "7", "attempts": "5"} | story
        headers = OWN + [(f"headway.error.{name}", text.encode()) for name, text in story.items()]
        for value in values:
            self.producer.produce(self.dead, value, b"ann", partition=partition, headers=headers)  # type: ignore[arg-type]
            self.producer.poll(0)
        assert self.producer.flush(30) == 0

    def records(self, topic: str | None = None) -> list[Message]:
        """All that a topic holds."""
        topic = topic or self.topic
        with GroupInspector(self.cluster.config({"log_level": 2}), "nobody") as onlooker:
            partitions = [(topic, number) for number in range(3)]
            ends = onlooker.ends(partitions)
            return [each for partition, end in ends.items() for each in onlooker.read(partition, 0, end)]

    def values(self, topic: str | None = None) -> list[bytes | None]:
        return [each.value() for each in self.records(topic)]

    def send_again(self, *arguments: str, answer: str | None = None) -> Result:
        return dead("send-again", self.dead, *arguments, *([] if answer else ["--yes"]), answer=answer)

    def still_open(self) -> list[str]:
        """The places of the letters that are open."""
        found = map(json.loads, dead("list", self.dead, "--json").stdout.splitlines())
        return [f"{each['partition']}:{each['offset']}" for each in found]


def dead(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli.headway, ["dead", *arguments], input=answer)


@pytest.fixture
def shop(kafka_cluster: Cluster, headway_topic: str, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", kafka_cluster.bootstrap_servers)
    return Shop(kafka_cluster, headway_topic)


def test_the_list_shows_what_is_there_and_what_is_no_dead_letter(shop: Shop) -> None:
    shop.bury(b"1", b"2", message="no such customer")
    shop.producer.produce(shop.dead, b"stray", partition=1)
    shop.producer.flush(20)
    _, *rows = dead("list", shop.dead).stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["0:0", "0:1", "1:0"]
    assert f"{shop.topic} 2:7" in rows[0]
    assert rows[0].endswith("5  ValueError         no such customer  ann")
    assert "not a dead letter" in rows[2]


def test_a_list_can_be_filtered_and_limited_and_says_so(shop: Shop) -> None:
    shop.bury(b"1", b"2")
    shop.bury(b"3", exception="app.Declined", partition=1)
    assert [each["value"] for each in listed(shop, "--exception", "Declined")] == ["3"]
    assert [each["value"] for each in listed(shop, "--where", "error = Declined and attempts = 5")] == ["3"]
    assert [each["value"] for each in listed(shop, "--max", "2")] == ["1", "2"]
    limited = dead("list", shop.dead, "--max", "2")
    assert limited.stderr == "2 dead letters shown, and there are more. Raise --max to see them.\n"
    assert len(dead("list", shop.dead, "--max", "3").stdout.splitlines()) == 4


def listed(shop: Shop, *options: str) -> list[dict[str, Any]]:
    return list(map(json.loads, dead("list", shop.dead, "--json", *options).stdout.splitlines()))


def test_listing_joins_no_group_and_commits_nothing(shop: Shop) -> None:
    shop.bury(b"1")
    assert dead("list", shop.dead).exit_code == 0
    with GroupInspector(shop.cluster.config({"log_level": 2}), "nobody") as onlooker:
        assert f"headway-dead-{shop.dead}" not in onlooker.groups()


def test_an_empty_topic_and_one_that_there_is_not_are_sentences(shop: Shop) -> None:
    empty = dead("list", shop.dead)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr == f"{shop.dead} holds no dead letters.\n"
    shop.bury(b"1")
    filtered = dead("list", shop.dead, "--exception", "NoSuchError")
    assert filtered.stderr == f"{shop.dead} holds no such dead letters that are open.\n"
    shop.send_again("--all")
    assert dead("list", shop.dead).stderr.startswith(f"{shop.dead} holds no dead letters that are open.\n1 dead")
    missing = dead("list", f"{shop.dead}x")
    assert missing.exit_code == 1
    assert missing.stderr.startswith(f"headway: Kafka has no topic {shop.dead}x. Did you mean {shop.topic}")


def test_one_letter_is_shown_with_all_that_it_has(shop: Shop) -> None:
    shop.bury(b"\xff\x00", message="no such\ncustomer", reason="attempt 5 of 5 failed")
    text = dead("show", shop.dead, "0:0").stdout
    for part in (f"{shop.dead} 0:0 is open.", "no such\n", "attempt 5 of 5", "key", "ann", "trace: 0xff", "\nff 00\n"):
        assert part in text
    found = json.loads(dead("show", shop.dead, "0:0", "--json").stdout)
    assert (found["value_base64"], found["key"], found["failure"]["attempts"]) == ("/wA=", "ann", 5)
    missing = dead("show", shop.dead, "0:1")
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    assert f"{shop.dead} holds no record at 0:1: its partition 0 has the offsets 0 to 0." in missing.stderr


def test_a_letter_goes_back_as_it_came_and_is_not_open_any_more(shop: Shop) -> None:
    shop.bury(b"0", b"\xff\x00", b"2")
    result = shop.send_again("0:1")
    assert (result.exit_code, result.stdout) == (0, f"1 dead letter sent again to {shop.topic}.\n")
    [record] = shop.records()
    assert (record.partition(), record.key(), record.value()) == (2, b"ann", b"\xff\x00")
    assert record.headers() == [
        *OWN,
        ("headway.sent-again.from", f"{shop.dead}-0-1".encode()),
        History(shop.topic, Origin(shop.topic, 2, 7)).header(),
    ]
    assert shop.still_open() == ["0:0", "0:2"]
    shown = dead("list", shop.dead, "--settled-too").stdout.splitlines()[1:]
    assert [row.split()[-1] for row in shown] == ["no", "yes", "no"]


def test_a_letter_without_key_and_value_goes_back_without(shop: Shop) -> None:
    headers = [("headway.error.topic", shop.topic.encode())]
    shop.producer.produce(shop.dead, None, None, partition=0, headers=headers)  # type: ignore[arg-type]
    shop.producer.flush(20)
    assert shop.send_again("--all").exit_code == 0
    [record] = shop.records()
    assert (record.key(), record.value()) == (None, None)


def test_all_that_is_open_is_sent_once(shop: Shop) -> None:
    shop.bury(b"0", b"1")
    shop.bury(b"2", b"3", partition=1)
    assert shop.send_again("0:1", "1:0").exit_code == 0
    assert shop.send_again("--all").stdout == f"2 dead letters sent again to {shop.topic}.\n"
    assert shop.values() == [b"1", b"2", b"0", b"3"]
    again = shop.send_again("--all")
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr == f"Nothing to send: {shop.dead} holds no dead letters that are open.\n"
    shop.bury(b"4")
    assert shop.send_again("--all").exit_code == 0
    assert shop.values() == [b"1", b"2", b"0", b"3", b"4"]


@pytest.mark.slow
def test_what_was_dealt_with_in_another_way_is_settled_without_being_sent(shop: Shop) -> None:
    shop.bury(b"0", b"1", b"2")
    shop.bury(b"3", exception="app.Declined", partition=1)

    def settle(*arguments: str, answer: str | None = None) -> Result:
        return dead("settle", shop.dead, *arguments, answer=answer)

    assert settle("--all", "--dry-run").stdout == "4 dead letters would be settled.\n"
    refused = settle("0:1", answer="n\n")
    assert (refused.exit_code, shop.still_open()) == (1, ["0:0", "0:1", "0:2", "1:0"])
    assert "Nothing was done. In a script, add --yes." in settle("0:1").stderr
    assert settle("0:1", "--yes").stdout == "1 dead letter settled.\n"
    assert settle("--exception", "Declined", "--yes").stdout == "1 dead letter settled.\n"
    assert shop.still_open() == ["0:0", "0:2"]
    assert settle("0:1", "--yes").stderr == "Nothing to settle: none of these letters is open.\n"
    assert settle("1:7", "--yes").stderr.startswith(f"headway: {shop.dead} holds no record at 1:7")
    assert dead("show", shop.dead, "0:1").stdout.startswith(f"{shop.dead} 0:1 is settled.")
    shown = dead("list", shop.dead, "--max", "1")
    assert shown.stderr.endswith(
        "1 dead letter settled before among those read so far. Add --settled-too to see them.\n"
    )
    assert settle("--all", "--yes").stdout == "2 dead letters settled.\n"
    assert settle("--all").stderr == f"Nothing to settle: {shop.dead} holds no dead letters that are open.\n"
    assert shop.values() == []
    assert shop.send_again("0:1", "--settled-too").exit_code == 0
    assert shop.values() == [b"1"]


@pytest.mark.slow
def test_what_was_sent_is_sent_once_more_only_if_asked_for(shop: Shop) -> None:
    shop.bury(b"0", b"1")
    shop.send_again("0:0")
    refused = shop.send_again("0:0", "0:1")
    assert refused.exit_code == 1
    assert refused.stderr.startswith(
        f"headway: {shop.dead} 0:0 is already settled, by `headway dead send-again` or `headway dead settle`"
    )
    assert shop.values() == [b"0"]
    assert shop.send_again("0:0", "--settled-too").exit_code == 0
    assert shop.values() == [b"0", b"0"]
    assert shop.still_open() == ["0:1"]


def test_sending_asks_first_and_a_dry_run_only_tells(shop: Shop) -> None:
    shop.bury(b"0", b"1")
    told = shop.send_again("--all", "--dry-run")
    assert (told.exit_code, told.stdout) == (0, f"2 dead letters would be sent again to {shop.topic}.\n")
    refused = shop.send_again("--all", answer="n\n")
    assert refused.exit_code == 1
    assert f"Send 2 dead letters again to {shop.topic}? [y/N]" in refused.stderr
    assert shop.values() == []
    assert shop.still_open() == ["0:0", "0:1"]
    assert shop.send_again("--all", answer="y\n").exit_code == 0
    assert shop.values() == [b"0", b"1"]


def give_up(shop: Shop, key: bytes | None, value: bytes | None, offset: int) -> None:
    """Write a dead letter by hand in the format of Kafka 4.4's share groups (KIP-1191): no older broker writes any."""
    told = {"topic": shop.topic, "partition": 1, "offset": offset, "group": "billing", "delivery.count": 5}
    headers = [(f"__dlq.errors.{name}", f"{text}".encode()) for name, text in told.items()]
    headers.append(("__dlq.errors.message", b"Delivery count limit exceeded."))
    shop.producer.produce(shop.dead, value, key, partition=0, headers=headers)  # type: ignore[arg-type]
    assert shop.producer.flush(30) == 0


def test_dead_letters_of_share_groups_are_listed_shown_and_sent_again_if_they_have_their_records(shop: Shop) -> None:
    give_up(shop, None, None, 7)
    give_up(shop, b"ann", b"1", 8)
    _, *rows = dead("list", shop.dead).stdout.splitlines()
    assert [f"{shop.topic} 1:{offset}" in row for row, offset in zip(rows, (7, 8), strict=True)] == [True, True]
    assert all("5  -" in row and "Delivery count limit exceeded." in row for row in rows)
    shown = dead("show", shop.dead, "0:0").stdout
    assert "  share group   billing" in shown
    assert "no value" in shown
    assert "__dlq" not in shown
    assert json.loads(dead("show", shop.dead, "0:0", "--json").stdout)["failure"]["group"] == "billing"
    named = shop.send_again("0:0")
    assert named.exit_code == 1
    assert "because its share group does not copy records. Nothing was sent" in named.stderr
    rest = shop.send_again("--all")
    assert "Left out 1 dead letter, because the share group does not copy records." in rest.stderr
    [record] = shop.records()
    assert (record.key(), record.value(), record.partition()) == (b"ann", b"1", 1)
    assert [name for name, _ in record.headers() or ()] == ["headway.sent-again.from", "headway.history"]


def test_letters_whose_topic_is_gone_are_left_out_and_the_others_sent(shop: Shop) -> None:
    shop.bury(b"1")
    shop.bury(b"lost", topic="long-gone")
    shop.bury(b"round", topic=shop.dead, partition=1)
    shop.bury(b"2", partition=1)
    sent = shop.send_again("--all")
    assert sent.exit_code == 0
    assert sorted(filter(None, shop.values())) == [b"1", b"2"]
    assert (
        "Left out 1 dead letter, because the topic long-gone no longer exists. Create it, or name another topic"
        in sent.stderr
    )
    assert (
        f"Left out 1 dead letter, because the record came from {shop.dead} itself. Add --to to send such letters."
        in sent.stderr
    )
    assert shop.still_open() == ["0:1", "1:0"]
    named = shop.send_again("0:1")
    assert named.exit_code != 0
    assert "Kafka has no topic long-gone, where dead letters should go. Nothing was sent" in named.stderr


def test_what_was_shortened_is_never_sent_again_as_if_it_were_whole(shop: Shop) -> None:
    shop.bury(b"beginning", shortened="value 5000000 bytes, key 3 bytes, 0 headers")
    shop.bury(b"whole")
    sent = shop.send_again("--all")
    assert (sent.exit_code, shop.values()) == (0, [b"whole"])
    assert (
        sent.stderr
        == "headway: Left out 1 dead letter, because only the beginning of the record was kept in the letter.\n"
    )
    refused = shop.send_again("0:0", "--to", shop.topic)
    assert refused.exit_code == 1
    assert "holds only the beginning of its record" in refused.stderr
    assert "value 5000000 bytes" in dead("show", shop.dead, "0:0").stdout


def test_letters_can_go_to_another_topic_and_strays_only_there(shop: Shop) -> None:
    shop.create(f"{shop.topic}-other", 1)
    shop.bury(b"0")
    shop.producer.produce(shop.dead, b"stray", partition=0)
    shop.producer.flush(20)
    told = shop.send_again("--all", "--dry-run")
    assert told.stdout.startswith("1 dead letter would be sent")
    assert told.stderr == (
        "headway: Left out 1 dead letter, because the topic that the record came from is not named. "
        "Add --to to send such letters.\n"
    )
    assert shop.send_again("--all", "--to", f"{shop.topic}-other").exit_code == 0
    assert shop.values(f"{shop.topic}-other") == [b"0", b"stray"]
    assert shop.values() == []


def test_what_kafka_refuses_is_named_stays_open_and_the_exit_code_is_1(shop: Shop) -> None:
    shop.create(f"{shop.topic}-small", 1, max_message_bytes="1000")
    shop.bury(b"0", b"x" * 5000, b"2")
    result = shop.send_again("--all", "--to", f"{shop.topic}-small", "-X", "linger.ms=0", "-X", "batch.num.messages=1")
    assert result.exit_code == 1
    assert result.stdout == f"2 dead letters sent again to {shop.topic}-small.\n"
    assert f"headway: {shop.dead} 0:1 was not stored in {shop.topic}-small: " in result.stderr
    assert "1 dead letter not sent\n" in result.stderr
    assert shop.values(f"{shop.topic}-small") == [b"0", b"2"]
    assert shop.still_open() == ["0:1"]


def test_what_could_not_be_remembered_is_not_sent(shop: Shop) -> None:
    shop.bury(b"0")
    member = ck.Consumer(shop.cluster.config({"group.id": f"headway-dead-{shop.dead}", "log_level": 2}))
    joined = threading.Event()
    member.subscribe([shop.dead], on_assign=lambda *_: joined.set())
    while not joined.is_set():
        member.poll(1)
    result = shop.send_again("--all")
    member.close()
    assert result.exit_code == 1
    assert f"The group headway-dead-{shop.dead} has members, so Kafka accepts commits only from these" in result.stderr
    assert shop.values() == []
    assert shop.send_again("--all").exit_code == 0
    assert shop.values() == [b"0"]


def test_gaps_between_letters_hold_up_nothing(shop: Shop) -> None:
    with transactions(shop) as producer:
        for value in (b"0", b"1", b"2"):  # each with a marker behind it
            producer.begin_transaction()
            headers = [("headway.error.topic", shop.topic.encode())]
            producer.produce(shop.dead, value, partition=0, headers=headers)  # type: ignore[arg-type]
            producer.commit_transaction(20)
    assert shop.still_open() == ["0:0", "0:2", "0:4"]
    assert shop.send_again("--all").exit_code == 0
    shown = CliRunner().invoke(cli.headway, ["offsets", "show", f"headway-dead-{shop.dead}"]).stdout
    assert shown.splitlines()[1].split() == [shop.dead, "0", "5", "6", "1", "0", "-", "none"]


def test_a_letter_in_an_open_transaction_is_open_when_it_is_there(shop: Shop) -> None:
    shop.bury(b"0")
    with transactions(shop) as producer:
        producer.begin_transaction()
        headers = [("headway.error.topic", shop.topic.encode())]
        producer.produce(shop.dead, b"1", partition=0, headers=headers)  # type: ignore[arg-type]
        producer.flush(20)
        assert shop.send_again("--all").stdout == f"1 dead letter sent again to {shop.topic}.\n"
        producer.commit_transaction(20)
    assert shop.still_open() == ["0:1"]


@contextmanager
def transactions(shop: Shop) -> Iterator[ck.Producer]:
    producer = ck.Producer(shop.cluster.config({"transactional.id": shop.topic, "log_level": 2}))
    producer.init_transactions(30)
    yield producer
    producer.close()


@pytest.mark.slow
def test_ctrl_c_remembers_exactly_what_was_sent(shop: Shop) -> None:
    count = 20_000
    shop.bury(*(b"%d" % number for number in range(count)))
    # A hundred at a time, twenty times a second: it is in the midst of it when the first ones arrive.
    slowly = ("-X", "queue.buffering.max.messages=100", "-X", "linger.ms=50")
    with running("dead", "send-again", shop.dead, "--all", "--yes", *slowly) as process:
        wait_for_a_record(shop)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    arrived = shop.values()
    assert 0 < len(arrived) < count
    assert stdout.decode() == f"{len(arrived):,} dead letters sent again to {shop.topic}.\n"
    assert shop.still_open() == [f"0:{number}" for number in range(len(arrived), count)]


def wait_for_a_record(shop: Shop) -> None:
    config = {"group.id": f"{shop.topic}-watchers", "auto.offset.reset": "earliest", "log_level": 2}
    consumer = ck.Consumer({"log_level": 0, **shop.cluster.config(config)})
    consumer.assign([ck.TopicPartition(shop.topic, 2, 0)])
    assert consumer.consume(1, 30)
    consumer.close()


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`headway` as a process of its own, that can be interrupted."""
    command: Sequence[str] = [sys.executable, "-c", "from headway.cli import main; main()", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_record_that_failed_is_handled_when_its_letter_was_sent_again(shop: Shop) -> None:
    handled: list[tuple[Any, Origin, dict[str, Any]]] = []
    works, first = False, Origin(shop.topic, 1, 0)

    def bill(record: ConsumerRecord, context: Context) -> None:
        if not works:
            assert record.origin == first
            raise FatalError("no such customer")
        handled.append((record.value, record.origin, dict(record.headers)))
        consumer.stop()

    config = shop.cluster.config({"group.id": shop.topic, "auto.offset.reset": "earliest"})
    shop.producer.produce(shop.topic, b"order", b"ann", partition=1)
    shop.producer.flush(20)
    watcher = ck.Consumer(shop.cluster.config({"group.id": f"{shop.topic}-watchers", "log_level": 2}))
    with ParallelConsumer(config, dead_letter_topic=shop.dead) as consumer:
        consumer.subscribe(shop.topic)
        thread = threading.Thread(target=consumer.run, args=(bill,))
        thread.start()
        watcher.assign([ck.TopicPartition(shop.dead, number, 0) for number in range(2)])
        assert watcher.consume(1, 30)
        works = True
        [letter] = listed(shop)
        assert (letter["failure"]["message"], letter["failure"]["partition"]) == ("no such customer", 1)
        assert shop.send_again("--all").exit_code == 0
        thread.join(30)
        assert not thread.is_alive()
    watcher.close()
    [(value, origin, headers)] = handled
    place = f"{shop.dead}-{letter['partition']}-{letter['offset']}"
    assert (value, headers["headway.sent-again.from"], origin) == (b"order", place.encode(), first)

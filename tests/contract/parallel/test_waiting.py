"""Edits of records that wait, on a real Kafka: each record is handled, moved or dropped, and never two of them."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from headway import ConsumerRecord, Context, cli
from headway.waiting import Fate, RecordFate, UnfinishedRecord, WaitingRecords
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, Member, consumer, read, send, topic_of, wait_for

pytestmark = pytest.mark.kafka


class Blocked:
    """A group whose handler waits until it is let go, so that records wait behind it."""

    def __init__(self, cluster: Cluster, partitions: int = 1) -> None:
        self.cluster = cluster
        self.topic = topic_of(cluster, partitions)
        self.other = topic_of(cluster, 1)
        self.handled: Counter[tuple[bytes, int]] = Counter()
        self.started = 0
        self.go_on = threading.Event()
        self.members: list[Member] = []

    def join(self, **options: Any) -> Member:
        options = {"steered": True, "max_concurrency": 1} | options
        member = Member(consumer(self.cluster, self.topic, options, **OFTEN), self._handle)
        self.members.append(member)
        return member

    def _handle(self, record: ConsumerRecord, context: Context) -> None:
        self.started += 1
        self.go_on.wait(60)
        self.handled[record.key, record.offset] += 1

    def close(self) -> None:
        self.go_on.set()
        for member in self.members:
            member.stop(drain=False)

    def send(self, *keys: str) -> None:
        send(self.cluster, self.topic, [(key, f"value of {key}") for key in keys])


@pytest.fixture
def group(kafka_cluster: Cluster) -> Iterator[Blocked]:
    group = Blocked(kafka_cluster)
    yield group
    group.close()


@pytest.fixture
def waiting(group: Blocked) -> Iterator[WaitingRecords]:
    with WaitingRecords(group.cluster.config({}), group.topic, group.topic) as waiting:
        yield waiting


def explained(waiting: WaitingRecords, records: list[UnfinishedRecord]) -> list[Fate]:
    """Why records wait, as soon as a member that has just started answers for all of them."""
    found: dict[Any, RecordFate] = {}

    def is_complete() -> bool:
        found.update(waiting.why(records))
        return len(found) == len(records)

    wait_for(is_complete)
    return [found[each.place].fate for each in records]


def fates(found: Any) -> list[tuple[int, Fate]]:
    return [(each.offset, each.fate) for each in found]


@pytest.mark.parametrize("mode", ["async", "transactional"])
def test_records_that_wait_are_dropped_and_moved_once_and_the_others_are_handled(
    group: Blocked, waiting: WaitingRecords, mode: str
) -> None:
    group.send("a", "b", "a", "c", "b", "c")
    group.join(commit_mode=mode)
    wait_for(lambda: group.started == 1)
    listed = waiting.records()
    assert [(each.offset, each.key) for each in listed] == list(enumerate([b"a", b"b", b"a", b"c", b"b", b"c"]))
    assert explained(waiting, listed) == [
        Fate.RUNNING,
        Fate.READY,
        Fate.BEHIND,
        Fate.READY,
        Fate.BEHIND,
        Fate.BEHIND,
    ]
    assert fates(waiting.drop(waiting.records(key="a"))) == [(0, Fate.RUNNING), (2, Fate.DONE)]
    assert fates(waiting.move(waiting.records(offsets=[1]), group.other)) == [(1, Fate.ORDER)]
    assert fates(waiting.move(waiting.records(key="b"), group.other)) == [(1, Fate.DONE), (4, Fate.DONE)]
    assert [each.offset for each in waiting.records()] == [0, 3, 5]
    group.go_on.set()
    wait_for(lambda: group.handled.total() == 3)
    assert group.handled == {(b"a", 0): 1, (b"c", 3): 1, (b"c", 5): 1}
    copies = read(group.cluster, group.other, 2)
    assert [(copy.key(), copy.value()) for copy in copies] == [(b"b", b"value of b")] * 2


def run(group: Blocked, *words: str, code: int = 0) -> str:
    servers = str(group.cluster.config({})["bootstrap.servers"])
    done = CliRunner().invoke(cli.headway, ["waiting", *words, "--bootstrap-servers", servers])
    assert done.exit_code == code, done.output
    return done.output


def test_operators_list_drop_and_move_by_the_command(group: Blocked) -> None:
    group.send("a", "b", "a", "c")
    group.join()
    wait_for(lambda: group.started == 1)
    chosen = (group.topic, group.topic)
    with WaitingRecords(group.cluster.config({}), *chosen) as waiting:
        explained(waiting, waiting.records())
    listed = [json.loads(line) for line in run(group, "list", *chosen, "--json").splitlines()]
    assert [(each["offset"], each["key"], each["waits"]) for each in listed] == [
        (0, "a", "running, attempt 1"),
        (1, "b", "ready"),
        (2, "a", "behind, offset 0"),
        (3, "c", "ready"),
    ]
    assert "value of b" in run(group, "list", *chosen, "--key", "b", "--values")
    assert "1 record would be dropped" in run(group, "drop", *chosen, "--key", "b", "--dry-run")
    assert "1 record of 1 dropped" in run(group, "drop", *chosen, "--key", "b")
    assert "no such record waits" in run(group, "drop", *chosen, "--key", "b", code=1).lower()
    moved = run(group, "move", *chosen, "--to", group.other, "--where", "key in (a, c)", "--timeout", "6s", code=1)
    assert f"{group.topic} 0:0: running" in moved
    assert f"{group.topic} 0:2: waits, behind offset 0" in moved
    assert f"{group.topic} 0:3: moved to {group.other}" in moved
    group.go_on.set()
    assert [copy.key() for copy in read(group.cluster, group.other, 2)] == [b"c", b"a"]
    assert group.handled == {(b"a", 0): 1}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["drop"], "Choose records"),
        (["drop", "--where", "colour = red"], "the name of a field is expected"),
        (["promote", "--key", "a"], "has no level 1"),
        (["move", "--key", "a", "--to", "no-such-topic"], "no-such-topic"),
    ],
)
def test_a_mistake_at_the_command_line_is_one_sentence(group: Blocked, words: list[str], sentence: str) -> None:
    group.send("a")
    command, *options = words
    servers = str(group.cluster.config({})["bootstrap.servers"])
    done = CliRunner().invoke(
        cli.headway, ["waiting", command, group.topic, group.topic, *options, "--bootstrap-servers", servers]
    )
    assert done.exit_code != 0
    assert sentence in f"{done.output} {done.exception}"
    assert "Traceback" not in done.output


def test_records_that_are_not_fetched_yet_are_edited_too(group: Blocked, waiting: WaitingRecords) -> None:
    group.send(*(f"k{number}" for number in range(3000)))
    group.join(buffer_records=10)
    wait_for(lambda: group.started == 1)
    [last] = waiting.records(key="k2999")
    assert explained(waiting, [last]) == [Fate.UNREAD]
    assert fates(waiting.move([last], group.other)) == [(2999, Fate.DONE)]
    assert fates(waiting.drop(waiting.records(offsets=range(2000, 2500), limit=1000))) == [
        (offset, Fate.DONE) for offset in range(2000, 2500)
    ]
    assert [each.offset for each in waiting.records(limit=5000)] == [*range(2000), *range(2500, 2999)]
    group.go_on.set()
    wait_for(lambda: group.handled.total() == 2499)
    assert [copy.key() for copy in read(group.cluster, group.other, 1)] == [b"k2999"]
    wait_for(lambda: not waiting.records(limit=1))
    assert max(group.handled.values()) == 1
    assert not any(2000 <= offset < 2500 or offset == 2999 for _, offset in group.handled)


def test_a_record_that_is_put_first_starts_next_after_the_earlier_records_of_its_key(
    group: Blocked, waiting: WaitingRecords
) -> None:
    group.send("a", "b", "c", "d", "c", "e")
    group.join()
    wait_for(lambda: group.started == 1)
    assert fates(waiting.next(waiting.records(offsets=[0, 4]))) == [(0, Fate.RUNNING), (4, Fate.DONE)]
    group.go_on.set()
    wait_for(lambda: group.handled.total() == 6)
    assert [offset for _, offset in group.handled] == [0, 2, 4, 1, 3, 5]


def test_held_records_stay_held_in_the_next_run_until_they_are_released(group: Blocked) -> None:
    group.send("a", "b", "a", "c")
    chosen = (group.topic, group.topic)
    assert "2 records held" in run(group, "hold", *chosen, "--where", "key in (b, c)", "--why", "test")
    group.go_on.set()
    first = group.join()
    wait_for(lambda: group.handled.total() == 2)
    first.stop()
    group.join()
    listed = [json.loads(line) for line in run(group, "list", *chosen, "--json").splitlines()]
    assert [each["offset"] for each in listed] == [1, 3]
    assert all(each["waits"].startswith("held, by the rule held-") for each in listed)
    assert "1 record of 1 released" in run(group, "release", *chosen, "--offset", "3")
    wait_for(lambda: group.handled[b"c", 3] == 1)
    assert group.handled.total() == 3
    assert "1 record of 1 released" in run(group, "release", *chosen, "--key", "b")
    wait_for(lambda: group.handled[b"b", 1] == 1)


def test_without_a_member_the_asker_carries_out_the_edits_itself(group: Blocked, waiting: WaitingRecords) -> None:
    group.send("a", "b", "a", "c")
    group.go_on.set()
    first = group.join()
    wait_for(lambda: not waiting.records(limit=1))
    first.stop()
    group.handled.clear()
    group.send("d", "e", "d", "f", "e")
    assert waiting.why(waiting.records()) == {}
    assert [each.fate for each in waiting.drop(waiting.records(key="d"), timeout=60)] == [Fate.DONE] * 2
    assert [each.fate for each in waiting.move(waiting.records(key="f"), group.other, timeout=60)] == [Fate.DONE]
    assert [each.key for each in waiting.records()] == [b"e", b"e"]
    assert not group.handled
    group.join()
    wait_for(lambda: not waiting.records(limit=1))
    assert [key for key, _ in group.handled] == [b"e", b"e"]
    assert [copy.key() for copy in read(group.cluster, group.other, 1)] == [b"f"]


def test_an_asker_waits_until_the_turn_of_a_record_has_come(group: Blocked, waiting: WaitingRecords) -> None:
    group.send("a", "a", "b")
    group.join()
    wait_for(lambda: group.started == 1)
    seen: list[Fate] = []

    def note(fate: RecordFate) -> None:
        seen.append(fate.fate)
        if seen.count(Fate.TURN) == 3:  # it was asked for three times
            group.go_on.set()

    chosen = waiting.records(offsets=[0, 1])
    assert fates(waiting.move(chosen, group.other, on_fate=note)) == [(0, Fate.RUNNING), (1, Fate.DONE)]
    assert [copy.offset() for copy in read(group.cluster, group.other, 1)] == [0]
    wait_for(lambda: not waiting.records(limit=1))
    assert group.handled == {(b"a", 0): 1, (b"b", 2): 1}


def test_two_members_edit_the_records_of_their_partitions(kafka_cluster: Cluster) -> None:
    group = Blocked(kafka_cluster, partitions=4)
    try:
        group.join()
        group.join()
        wait_for(lambda: sorted(len(each.consumer.assignment()) for each in group.members) == [2, 2])
        group.send(*(f"k{number}" for number in range(200)))
        wait_for(lambda: group.started == 2)
        with WaitingRecords(kafka_cluster.config({}), group.topic, group.topic) as waiting:
            records = waiting.records(limit=300)
            seen = zip(records, explained(waiting, records), strict=True)
            chosen = [record for record, fate in seen if fate is not Fate.RUNNING][::2]
            ended = waiting.move(chosen[:50], group.other) + waiting.drop(chosen[50:])
            assert [each.fate for each in ended] == [Fate.DONE] * len(chosen)
            group.go_on.set()
            wait_for(lambda: not waiting.records(limit=1))
        assert group.handled.total() == 200 - len(chosen)
        assert {copy.key() for copy in read(kafka_cluster, group.other, 50)} == {each.key for each in chosen[:50]}
    finally:
        group.close()


def test_a_promoted_record_is_handled_at_the_higher_level_before_the_backlog(kafka_cluster: Cluster) -> None:
    topic, handled = kafka_cluster.topic(levels=2), list[tuple[int, bytes]]()
    go_on = threading.Event()

    def handle(record: ConsumerRecord, context: Context) -> None:
        go_on.wait(60)
        handled.append((record.level, record.key))

    send(kafka_cluster, f"{topic}-0", [(f"k{number}", "value") for number in range(2000)])
    options = {"steered": True, "max_concurrency": 1, "policy": "strict", "buffer_records": 10}
    member = Member(consumer(kafka_cluster, topic, options, levels=2, **OFTEN), handle)
    try:
        wait_for(lambda: len(member.consumer.assignment()) == 8)
        with WaitingRecords(kafka_cluster.config({}), topic, topic) as waiting:
            chosen = waiting.records(key="k1999")
            assert [each.level for each in chosen] == [0]
            assert [each.fate for each in waiting.promote(chosen, why="test")] == [Fate.DONE]
            assert [each.level for each in waiting.records(key="k1999")] == [1]
        go_on.set()
        wait_for(lambda: (1, b"k1999") in handled)
        assert handled.index((1, b"k1999")) < 200
    finally:
        go_on.set()
        member.stop(drain=False)

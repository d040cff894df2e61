"""What a stranger writes into a scheduler's topics, on a real Apache Kafka: it stops neither relays nor schedulers."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from headway import Settled
from headway.broker import LocalBroker
from headway.core.delay.ladder import Ladder
from headway.core.delay.schedule import HEADER, Schedule
from headway.delay.topics import create_topics
from headway.errors import ConfigError
from headway.records.record_types import Header
from tests.broker.delay_cluster import DelayCluster, wait_until

MODES = pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
FAR = 253_402_300_799_000
NESTED = b"[" * 30_000 + b"]" * 30_000


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    return DelayCluster(headway_broker.bootstrap_servers)


class Stranger:
    """Writes into partition 0 of any topic what no client of ours would."""

    def __init__(self, cluster: DelayCluster) -> None:
        own = {"message.max.bytes": 20_000_000, "compression.type": "zstd", "linger.ms": 0, "batch.num.messages": 1}
        self._producer = ck.Producer({"log_level": 0, **cluster.config, **own, "enable.idempotence": True})
        self.refused: list[Any] = []
        self._closed = False

    def put(self, topic: str, key: Any, value: Any, headers: list[Header] | None = None) -> None:
        self._producer.produce(topic, value, key, partition=0, headers=headers or [], on_delivery=self._report)

    def _report(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused.append(error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._producer.flush()
        self._producer.close()
        assert self.refused == []


@pytest.fixture
def stranger(cluster: DelayCluster) -> Iterator[Stranger]:
    stranger = Stranger(cluster)
    yield stranger
    stranger.close()


def source_of(letter: Any) -> tuple[bytes, bytes]:
    """The topic and the offset of the record that a dead letter is about."""
    headers = dict(letter.headers())
    return headers["headway.error.topic"], headers["headway.error.offset"]


def schedule_to(topic: str, delay: int = 0, **fields: Any) -> bytes:
    now = int(time.time() * 1000)
    return json.dumps({"id": "s", "due": now + delay, "at": now, "order": 0, "topic": topic, **fields}).encode()


def with_number(name: str, digits: str, field: bytes) -> bytes:
    return field.replace(b'"%s": 0' % name.encode(), b'"%s": %s' % (name.encode(), digits.encode()))


def bad_headers(cluster: DelayCluster) -> list[bytes | None]:
    """Headers of records in a delay topic, each of which is one dead letter."""
    good = schedule_to(cluster.target)
    names = cluster.names
    return [
        None,
        b"",
        b"\xff",
        b'{"due": 1',
        good[:-1] + b', "more": ' + NESTED + b"}",
        good[:-1] + b', "recurrence": {"interval": ' + b"9" * 4300 + b"}}",
        with_number("order", "1" + "0" * 30, good),
        with_number("order", "NaN", good),
        good.replace(b'"due": ', b'"due": ' + b"9" * 400),
        schedule_to(cluster.target, id="x" * 500_000),
        schedule_to(cluster.target, partition=-1),
        schedule_to(cluster.target, partition=7),
        schedule_to(cluster.target, recurrence={"cron": "1," * 100_000 + "1 * * * *"}),
        schedule_to("no-such-topic"),
        schedule_to("."),
        *(schedule_to(each) for each in (names.state, names.ladder, names.commands, names.answers, names.dead)),
        *(schedule_to(names.delay_topic(delay_topic)) for delay_topic in (0, 1000, 77)),
    ]


def bad_commands() -> list[bytes | None]:
    """Commands that nobody can settle or answer."""
    good = b'{"id":"nobody","due": 0,"at":0,"token":"t","reply": 0}'
    return [
        None,
        b"",
        b"\xff\xfe",
        b"null",
        b'{"id":',
        NESTED,
        with_number("due", "1" + "0" * 400, good),
        with_number("due", "9" * 5000, good),
        with_number("due", "NaN", good),
        *(with_number("reply", number, good) for number in ("99", "-5", str(2**40), "1e400")),
        good.replace(b"nobody", b"n" * 500_000),
        good.replace(b'"t"', b'"' + b"t" * 500_000 + b'"'),
        good.replace(b'"t"', b'"\\ud800"'),
        b'{"id":"nobody","due":%d,"at":0,"token":"t","reply":0,"to":1}' % FAR,
        b'{"id":"nobody","due":%d,"at":%d,"token":"t","reply":0,"to":5}' % (FAR, FAR),
        b'{"id":"nobody","due":5,"at":0,"token":"t","reply":0,"to":-1}',
    ]


def bad_states() -> list[tuple[bytes, bytes]]:
    """Keys and values of the state, none of which says how far a relay is."""
    return [
        (b"\xff\xfe", b"1"),
        (b"change:x", b"oops"),
        (b"change:y", b'{"generation":1,"live":0,"due":%s,"placed":0,"expires":0}' % (b"9" * 400)),
        (b"change:z", NESTED),
        (b"change:\xff", b"1"),
        (b"line:abc", b"1"),
        (b"line:" + b"9" * 5000, b"1"),
        (b"line:-5", b"1"),
        (b"line:2000", b"9" * 5000),
        (b"line:4000", b"-5"),
        (b"topics", b"["),
        (b"producers", b'["payments"'),
        (b"nothing", b""),
    ]


def put_all(cluster: DelayCluster, stranger: Stranger) -> int:
    """Put every bad record into its topic; return how many are to become dead letters."""
    names = cluster.names
    headers = bad_headers(cluster)
    for header in headers:
        stranger.put(names.delay_topic(0), b"change:bad", b"oops", [(HEADER, header)] if header is not None else [])
    for delay_topic, header in (
        (0, schedule_to(cluster.target)),
        (1000, schedule_to(cluster.target, 5_000)),
        (2000, b""),
    ):
        stranger.put(
            names.delay_topic(delay_topic), b"change:large", bytes(5_000_000), [("own", bytes(2_000)), (HEADER, header)]
        )
    for command in bad_commands():
        stranger.put(names.commands, b"nobody", command)
    for ladder in (b"\xff", b"{}", b"[1]", b"[1000, 1e400]", b"[1000, 2000, 1" + b"0" * 400 + b"]", NESTED):
        stranger.put(names.ladder, b"ladder", ladder)
    stranger.put(names.ladder, b"other", b"[1000]")
    stranger.put(names.ladder, b"\xff", b"[1000]")
    for key, value in ((b"t", b"\xff"), (b"\xff", b"cancelled"), (None, None), (b"t", b"x" * 500_000)):
        stranger.put(names.answers, key, value)
    return len(headers) + 3


@pytest.mark.slow
@MODES
def test_bad_records_in_all_topics_of_a_scheduler_stop_nothing_beside_them(
    cluster: DelayCluster, stranger: Stranger, mode: str
) -> None:
    letters = put_all(cluster, stranger)
    for key, value in bad_states():
        stranger.put(cluster.names.state, key, value)
    stranger.close()
    expected = Counter[bytes]()

    def schedule(name: str) -> None:
        for number in range(4):
            key = f"{name}-{number}".encode()
            scheduler.send_later(key, b"v", cluster.target, 0.1 + 0.35 * number)
            expected[key] += 1
        cancelled = scheduler.send_later(f"{name}-cancelled", b"v", cluster.target, 60)
        assert scheduler.cancel(cancelled).settled() is Settled.CANCELLED

    with cluster.scheduler() as scheduler:
        with cluster.relay(mode=mode):
            schedule("found")
            cluster.wait_for_keys(expected)
            more = Stranger(cluster)
            letters += put_all(cluster, more)
            more.close()
            schedule("beside")
            cluster.wait_for_keys(expected)
            found = cluster.dead_letters(letters)
        with cluster.relay(mode=mode):
            schedule("after a restart")
            cluster.wait_for_keys(expected)
    assert Counter(message.key() for message in cluster.read()) == expected
    sources = Counter(map(source_of, cluster.read(cluster.names.dead)))
    assert [source for source, count in sources.items() if count > 1] == []
    assert sources.total() == letters
    shortened = [letter["headway.error.shortened"] for letter in found if "headway.error.shortened" in letter]
    assert len(shortened) == 6
    assert all(b"5000000" in each for each in shortened)


@pytest.mark.slow
@MODES
def test_what_is_stored_beyond_the_end_of_a_log_or_cannot_be_read_is_begun_anew(
    cluster: DelayCluster, stranger: Stranger, mode: str
) -> None:
    for key, value in (
        (b"memory", b"[1000000000, 1000000000, [1,1,1,1], []]"),
        (b"line:1000", b"1000000000"),
        (b"commands", b"9223372036854775807"),
    ):
        stranger.put(cluster.names.state, key, value)
    stranger.close()
    with cluster.scheduler() as scheduler, cluster.relay(mode=mode):
        for number in range(8):
            scheduler.send_later(f"{number}", b"v", cluster.target, 0.2 * number)
        cluster.wait_for_keys([b"%d" % number for number in range(8)])
        handle = scheduler.send_later("x", b"v", cluster.target, 60)
        assert scheduler.cancel(handle).settled() is Settled.CANCELLED
    more = Stranger(cluster)
    for key, value in ((b"memory", b"oops"), (b"memory", b"[-1,-1,[1e400],[]]"), (b"commands", b"\xff 1")):
        more.put(cluster.names.state, key, value)
    more.close()
    with cluster.scheduler() as scheduler, cluster.relay(mode=mode):
        scheduler.send_later("last", b"v", cluster.target, 0.1)
        cluster.wait_for_keys([b"last"])


@pytest.mark.slow
def test_a_ladder_with_lines_that_are_not_there_delays_nothing(cluster: DelayCluster, stranger: Stranger) -> None:
    with cluster.scheduler() as scheduler, cluster.relay() as relay:
        stranger.put(cluster.names.ladder, b"ladder", b"[1000,1500]")
        stranger.close()
        wait_until(lambda: relay.partitions)
        scheduler.send_later("running", b"v", cluster.target, 1.6)
        cluster.wait_for_keys([b"running"])
    with cluster.scheduler() as scheduler, cluster.relay():
        scheduler.send_later("restarted", b"v", cluster.target, 1.6)
        cluster.wait_for_keys([b"restarted"])
        create_topics(cluster.config, cluster.name, Ladder((1000, 1500)), 2)  # what is there by now is used
        with cluster.scheduler() as other:
            other.send_later("created", b"v", cluster.target, 1.6)
        cluster.wait_for_keys([b"created"])
    assert b"created" in {message.key() for message in cluster.read(cluster.names.delay_topic(1500))}


def test_a_ladder_that_is_deleted_is_that_of_the_lines_that_are_there(
    cluster: DelayCluster, stranger: Stranger
) -> None:
    stranger.put(cluster.names.ladder, b"ladder", None)
    stranger.close()
    with cluster.scheduler() as scheduler, cluster.relay():
        scheduler.send_later("k", b"v", cluster.target, 1.1)
        cluster.wait_for_keys([b"k"])
    delay_topics = {
        topic
        for topic in cluster.admin.list_topics(timeout=10).topics
        if topic.startswith(cluster.names.delay_topic(1))
    }
    assert delay_topics == {cluster.names.delay_topic(delay_topic) for delay_topic in (1000,)}


def test_a_scheduler_refuses_its_own_topics_as_targets(cluster: DelayCluster) -> None:
    names = cluster.names
    with cluster.scheduler() as scheduler:
        for topic in (names.state, names.ladder, names.commands, names.answers, names.dead, names.delay_topic(0)):
            with pytest.raises(ConfigError, match=f"The topic {topic} is the scheduler's own"):
                scheduler.send_later("change:x", b"oops", topic, 0.1)
            with pytest.raises(ConfigError, match=f"The topic {topic} is the scheduler's own"):
                scheduler.every(60, "change:x", b"oops", topic)
        with pytest.raises(ConfigError, match="is the scheduler's own"):
            scheduler.send_later("change:x", b"oops", f"{names.name}.line", 0.1, level=1000)
        with pytest.raises(ConfigError, match=r"The topic is '\.', which is not a topic name"):
            scheduler.send_later("k", b"v", ".", 0.1)
        for wrong in ("x" * 251, "", "two\nlines", "\ud800", 42):
            with pytest.raises(ConfigError, match="it must be text of 1 to 250 characters"):
                scheduler.send_later("k", b"v", cluster.target, 0.1, id=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="if_pending is 'drop'; it must be one of replace, keep, refuse"):
            scheduler.send_later("k", b"v", cluster.target, 0.1, id="x", if_pending="drop")  # type: ignore[arg-type]
        for rule in ("keep", "refuse"):
            with pytest.raises(ConfigError, match=f"if_pending is '{rule}', which needs an id"):
                scheduler.send_later("k", b"v", cluster.target, 0.1, if_pending=rule)
        with pytest.raises(ConfigError, match=r"The header headway\.put is the scheduler's own"):
            scheduler.send_later("k", b"v", cluster.target, 0.1, headers=[("headway.put", b"")])
        scheduler.flush()
    assert cluster.pending() == []


def test_a_dead_letter_that_its_topic_refuses_for_its_size_is_shortened(cluster: DelayCluster) -> None:
    small = Schedule("1", int(time.time() * 1000), 0, 0, "no-such-topic").header()
    stranger = Stranger(cluster)
    stranger.put(cluster.names.delay_topic(0), b"k", b"x" * 900_000, [small])
    stranger.close()
    resource = ConfigResource("TOPIC", cluster.names.dead)
    entry = ConfigEntry("max.message.bytes", "20000", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(entry)
    cluster.admin.incremental_alter_configs([resource])[resource].result(30)
    with cluster.relay(mode="low-latency"):
        [letter] = cluster.wait_for(1, cluster.names.dead)
    assert 1_000 < len(letter.value()) < 20_000
    assert b"900000" in dict(letter.headers())["headway.error.shortened"]

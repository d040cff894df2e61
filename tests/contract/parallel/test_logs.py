"""Logs that are not plain: with holes, with transaction markers, with commits that somebody else made."""

import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, Context
from headway.broker import LocalBroker
from headway.kafka.binding import capi
from tests.contract.conftest import Cluster, cluster_of
from tests.contract.parallel.members import (
    Member,
    client_of,
    committed,
    consumer,
    handled_until_all_is_committed,
    log_ends,
    maps_of,
    send,
    topic_of,
    wait_for,
    write_transactions,
)

pytestmark = pytest.mark.kafka

KEYS, ROUNDS = 200, 20


@pytest.fixture(scope="module")
def cleaning_cluster() -> Iterator[Cluster]:
    """An Apache Kafka that compacts at once, and not every 15 seconds."""
    with LocalBroker(properties={"log.cleaner.backoff.ms": "50"}) as broker:
        yield cluster_of(broker)


# Compaction


def compacted_topic(cluster: Cluster) -> str:
    """A topic that was compacted: of each key only the last record is left, and for some that is a tombstone."""
    topic = topic_of(
        cluster,
        1,
        cleanup_policy="compact",
        segment_ms="500",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="0",
        min_compaction_lag_ms="0",
    )
    rounds = [[(f"key-{i}", f"{r}") for i in range(r % 3, KEYS, 1 + r % 3)] for r in range(ROUNDS)]
    deletions = [(f"key-{i}", None) for i in range(0, KEYS, 10)]
    write_segments(cluster, topic, [*rounds, deletions])
    return topic


def write_segments(cluster: Cluster, topic: str, segments: Sequence[Sequence[tuple[str, str | None]]]) -> None:
    """Write each of these into a segment of its own, and compact all: nothing is left of a key but the last record."""
    with closing(
        ck.Producer(cluster.config({"enable.idempotence": True, "log_level": 0, "linger.ms": 50}))
    ) as producer:
        # A segment ends where the timestamps say that it is too old, so nobody has to wait for that.
        moment = round(time.time() * 1000) - 1000 * len(segments)
        for number, segment in enumerate([*segments, [("the open segment's, which is not compacted", "")]]):
            for key, value in segment:
                producer.produce(topic, value, key, 0, timestamp=moment + 1000 * number)
            assert producer.flush(30) == 0
    keys = {key for segment in segments for key, _ in segment}
    wait_for(lambda: len(offsets_in(cluster, topic)) <= len(keys) + 2, 60)


def offsets_in(cluster: Cluster, topic: str, isolation: str = "read_committed") -> list[int]:
    """The offsets of partition 0 that a plain consumer finds records at."""
    settings = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": isolation}
    offsets: list[int] = []
    with client_of(cluster, "nobody", **settings) as client:
        client.assign([ck.TopicPartition(topic, 0, 0)])
        while True:
            for message in client.consume(10_000, 0.1):
                error = message.error()
                if error and error.code() == ck.KafkaError._PARTITION_EOF:
                    return offsets
                offset = message.offset()
                assert not error
                assert offset is not None
                offsets.append(offset)


@pytest.mark.slow
def test_holes_that_compaction_left_block_nothing_and_all_is_committed(cleaning_cluster: Cluster) -> None:
    topic = compacted_topic(cleaning_cluster)
    there, [end] = offsets_in(cleaning_cluster, topic), log_ends(cleaning_cluster, topic).values()
    assert len(there) < KEYS + 2 < end  # it was compacted
    handled = handled_until_all_is_committed(cleaning_cluster, topic)
    assert sorted(offset for _, offset in handled) == there
    send(cleaning_cluster, topic, [("new", "")], 0)
    assert handled_until_all_is_committed(cleaning_cluster, topic) == [(0, end)]


@pytest.mark.slow
def test_a_stuck_record_below_holes_is_the_only_one_that_a_restart_repeats(cleaning_cluster: Cluster) -> None:
    topic = compacted_topic(cleaning_cluster)
    there = offsets_in(cleaning_cluster, topic)
    stuck = leave_stuck(cleaning_cluster, topic, there)
    [(offset, done)] = maps_of(committed(cleaning_cluster, topic)).values()
    assert (offset, done) == (stuck, (1, there[-1] - stuck))  # holes count as done: two runs say it all
    assert handled_until_all_is_committed(cleaning_cluster, topic) == [(0, stuck)]


@pytest.mark.slow
def test_a_stuck_record_that_compaction_takes_away_before_the_restart_blocks_nothing(cleaning_cluster: Cluster) -> None:
    topic = compacted_topic(cleaning_cluster)
    leave_stuck(cleaning_cluster, topic, offsets_in(cleaning_cluster, topic))
    [end] = log_ends(cleaning_cluster, topic).values()
    write_segments(cleaning_cluster, topic, [[(f"key-{i}", "anew") for i in range(KEYS)]] * 2)
    fresh = offsets_in(cleaning_cluster, topic)
    assert fresh[0] >= end - 1  # the record at which the commit points is gone, and most of what its map has
    handled = handled_until_all_is_committed(cleaning_cluster, topic)
    assert sorted(offset for _, offset in handled) == [offset for offset in fresh if offset >= end]


def leave_stuck(cluster: Cluster, topic: str, there: list[int]) -> int:
    """Handle all but one record; returns its offset, above which there is a hole."""
    stuck = next(a for a, b in pairwise(there) if b - a > 1)
    handled: list[int] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.offset == stuck:
            raise OSError("not now")
        handled.append(record.offset)

    member = Member(consumer(cluster, topic), handle)
    wait_for(lambda: len(handled) == len(there) - 1)
    member.stop()
    return stuck


# Transactions


FATES = ["commit", "abort", "commit", "abort", "abort", "commit", "abort"]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transaction_markers_and_aborted_records_block_nothing(kafka_cluster: Cluster, isolation: str) -> None:
    topic = topic_of(kafka_cluster, 1)
    settings: dict[str, Any] = {"isolation.level": isolation}
    write_transactions(kafka_cluster, topic, FATES)
    send(kafka_cluster, topic, [("plain", "plain")], 0)
    there = offsets_in(kafka_cluster, topic, isolation)
    assert len(there) == 1 + 50 * (len(FATES) if isolation == "read_uncommitted" else FATES.count("commit"))
    handled = handled_until_all_is_committed(kafka_cluster, topic, **settings)
    assert sorted(offset for _, offset in handled) == there
    send(kafka_cluster, topic, [("plain", "new")], 0)
    assert handled_until_all_is_committed(kafka_cluster, topic, **settings) == [(0, there[-1] + 1)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_stuck_record_below_transaction_markers_is_the_only_one_that_a_restart_repeats(
    kafka_cluster: Cluster, isolation: str
) -> None:
    topic = topic_of(kafka_cluster, 1)
    settings: dict[str, Any] = {"isolation.level": isolation}
    write_transactions(kafka_cluster, topic, FATES)
    send(kafka_cluster, topic, [("plain", "plain")], 0)
    there = offsets_in(kafka_cluster, topic, isolation)
    stuck, handled = there[49], Counter[int]()

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.offset == stuck:
            raise OSError("not now")
        handled[record.offset] += 1

    member = Member(consumer(kafka_cluster, topic, **settings), handle)
    with_its_key = len(there) // 50  # one of each transaction
    wait_for(lambda: handled.total() == len(there) - with_its_key)
    member.stop()
    again = handled_until_all_is_committed(kafka_cluster, topic, **settings)
    assert sorted(again) == [(0, offset) for offset in there if offset not in handled]


# Commits that somebody else made


def base64(payload: bytes) -> bytes:
    return b64encode(payload)


FOREIGN = {
    "words": b"not ours!",
    "a map that ends with NUL": b"bAAFGgA=\0",
    "nothing but NUL": b"\0",
    "a map cut off in the middle": b"bAAFG",
    "run lengths cut off": base64(b"n\x00\x01\x00"),
    "run lengths below zero": base64(b"e\xff\xff\xff\xff\x00\x00\x00\x01"),
    "a bitset wider than its bytes": base64(b"l\x7f\xff\x01"),
    "a map of another log, beyond this one's end": base64(b"e\x00\x00\x00\x01\x00\x01\x00\x00"),
    "an encoding that is yet to come": base64(b"z\x00\x01\x00\x01"),
    "a zstd frame that is none": base64(b"s not a frame"),
    "Kafka Streams": b"AQAAAZrwQVAA",
    "Kafka Streams with a processor's": base64(b"\x02" + bytes(8) + b"\x00\x00\x00\x01key"),
    "bytes that are no text": bytes(range(128, 256)),
    "as much as a broker takes": b"\xc3\xa4" * 2048,
}


@pytest.mark.slow
def test_whatever_foreign_metadata_says_the_committed_offset_stands(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(kafka_cluster, len(FOREIGN))
    for partition in range(len(FOREIGN)):
        send(kafka_cluster, topic, [(f"{i}", "") for i in range(10)], partition)
    with client_of(kafka_cluster, topic) as client:
        commits = {(topic, partition): (4, metadata) for partition, metadata in enumerate(FOREIGN.values())}
        assert capi.PendingCommit(client, commits).refused(30) == {}
    handled = handled_until_all_is_committed(kafka_cluster, topic)
    for partition, kind in enumerate(FOREIGN):
        assert sorted(offset for where, offset in handled if where == partition) == list(range(4, 10)), kind
        said = f"partition {partition} of {topic} at level 0 begins at its committed offset 4 without an offset map"
        assert caplog.text.count(said) == 1, kind

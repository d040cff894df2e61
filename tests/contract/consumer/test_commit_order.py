"""A later commit is never replaced by an earlier one, which librdkafka repeats after a pause if it was refused."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import confluent_kafka as ck
import pytest

from headway import PriorityConsumer, TopicPartition
from headway.errors import KafkaError
from headway.kafka.consumer.commits import AsyncCommits, OffsetsOfCommit
from tests.contract.conftest import PARTITIONS, Cluster
from tests.contract.mock_brokers import MockBrokers, mock_brokers

_OFFSET_COMMIT = 8
_NOT_COORDINATOR = 16
PLACE = TopicPartition("orders", partition=0)


@contextmanager
def reading(**settings: Any) -> Iterator[tuple[MockBrokers, PriorityConsumer]]:
    with mock_brokers() as brokers:
        brokers.create("orders-0")
        cluster = Cluster(brokers.bootstrap_servers, lambda names: None)
        with cluster.producer(levels=1) as producer:
            for partition in range(PARTITIONS):
                for _ in range(9):
                    producer.send("orders", b"", partition=partition)
        with cluster.consumer("g", levels=1, **settings) as consumer:
            consumer.subscribe("orders")
            while PLACE not in consumer.assignment() or consumer.position(PLACE) < 9:
                consumer.poll(1)
            yield brokers, consumer


def stored(brokers: MockBrokers) -> int:
    consumer = ck.Consumer({"bootstrap.servers": brokers.bootstrap_servers, "group.id": "g-0", "log_level": 0})
    [found] = consumer.committed([ck.TopicPartition("orders-0", 0)], timeout=10)
    consumer.close()
    return found.offset


@pytest.mark.parametrize("how", ["asynchronous", "synchronous", "closing"])
def test_an_earlier_commit_that_is_repeated_does_not_replace_a_later_one(how: str) -> None:
    told: list[tuple[Exception | None, OffsetsOfCommit]] = []

    def on_commit(error: Exception | None, offsets: OffsetsOfCommit) -> None:
        told.append((error, offsets))

    with reading(**{"enable.auto.commit": how == "closing"}) as (brokers, consumer):
        brokers.refuse(_OFFSET_COMMIT, _NOT_COORDINATOR, times=1)
        consumer.commit({PLACE: 1}, asynchronous=True, on_commit=on_commit)
        expected = [(None, {PLACE: 1})]
        if how == "synchronous":
            consumer.commit({PLACE: 9})
            consumer.poll(0)
        elif how == "closing":
            consumer.close()
        else:
            for offset in (5, 9):
                consumer.commit({PLACE: offset}, asynchronous=True, on_commit=on_commit)
                expected.append((None, {PLACE: offset}))
            while len(told) < len(expected):
                consumer.poll(0.1)
        assert told == expected
        consumer.close()
        assert stored(brokers) == 9


def test_an_asynchronous_commit_that_waits_for_another_is_sent_before_the_consumer_closes() -> None:
    with reading(**{"enable.auto.commit": False}) as (brokers, consumer):
        consumer.commit({PLACE: 3}, asynchronous=True)
        consumer.commit({PLACE: 4}, asynchronous=True)
        consumer.close()
        assert stored(brokers) == 4


class Answering:
    """A commit on its way, which is answered when the test says so."""

    def __init__(self) -> None:
        self.is_answered = False
        self.refusal: KafkaError | None = None

    def error(self, timeout: float = 0) -> KafkaError | None:
        if not self.is_answered:
            raise TimeoutError
        return self.refusal


@pytest.mark.parametrize("seed", range(50))
def test_commits_are_made_one_at_a_time_and_each_is_told_of_once_in_order(seed: int) -> None:
    rng = random.Random(seed)
    places = [TopicPartition("orders", partition=number) for number in range(3)]
    sent: list[Answering] = []
    stored: dict[TopicPartition, int] = {}
    under_way: OffsetsOfCommit = {}
    told: list[tuple[int, bool]] = []
    made = 0

    def send(offsets: OffsetsOfCommit) -> Any:
        nonlocal under_way
        assert all(each.is_answered for each in sent)
        if rng.random() < 0.2:
            raise KafkaError("not sent")
        under_way = offsets
        sent.append(Answering())
        return sent[-1]

    def answer() -> None:
        if sent and not sent[-1].is_answered:
            sent[-1].is_answered = True
            if rng.random() < 0.3:
                sent[-1].refusal = KafkaError("refused")
            else:
                assert all(stored.get(each, 0) <= offset for each, offset in under_way.items())
                stored.update(under_way)

    def add() -> None:
        nonlocal made
        made += 1
        number = made

        def on_commit(error: Exception | None, offsets: OffsetsOfCommit) -> None:
            told.append((number, error is None))
            if rng.random() < 0.2:
                add()
            if rng.random() < 0.1:
                raise RuntimeError("of the callback")

        commits.add(dict.fromkeys(rng.sample(places, rng.randint(1, 3)), number), on_commit)

    def settle() -> None:
        with suppress(RuntimeError):
            commits.settle()

    def finish() -> None:
        commits.finish(0)

    commits = AsyncCommits(send)
    for _ in range(200):
        step: Callable[[], None] = rng.choice([add, answer, settle, finish])
        step()
    while commits or len(told) < made:
        answer()
        settle()
    assert [number for number, _ in told] == list(range(1, made + 1))


def test_what_was_not_sent_yet_is_left_out_for_partitions_that_were_lost() -> None:
    sent: list[tuple[OffsetsOfCommit, Answering]] = []
    told: list[tuple[Exception | None, OffsetsOfCommit]] = []

    def send(offsets: OffsetsOfCommit) -> Any:
        sent.append((offsets, Answering()))
        return sent[-1][1]

    lost, kept = PLACE, TopicPartition("orders", partition=1)
    commits = AsyncCommits(send)
    commits.add({lost: 1, kept: 1}, None)
    commits.add({lost: 2, kept: 2}, lambda *answer: told.append(answer))
    commits.drop([lost])
    sent[0][1].is_answered = True
    commits.settle()
    assert sent[1][0] == {kept: 2}
    sent[1][1].is_answered = True
    commits.settle()
    assert told == [(None, {kept: 2})]

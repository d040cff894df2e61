"""Outputs and offsets in one transaction: each output exactly once, on a real Apache Kafka."""

import contextlib
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, Context, FatalError, ParallelConsumer, Producer, ProducerRecord, Retries
from headway.broker import LocalBroker
from headway.core.engine.commit_tick import CommitTick
from headway.core.engine.engine import Engine
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError, HandlerError, KafkaError, TransactionError
from headway.kafka.producer.client_transactions import ClientTransactions
from headway.parallel.transactions import SentTransaction
from tests.broker.delay_cluster import MISSED_SOON
from tests.contract.conftest import PARTITIONS, Cluster, cluster_of
from tests.contract.parallel.members import (
    client_of,
    committed,
    consumer,
    maps_of,
    plain_topic,
    send,
    topic_of,
    wait_for,
)
from tests.contract.parallel.test_rebalance import CONSUMER_PROTOCOL, COOPERATIVE, EAGER
from tests.made import made_by
from tests.plain_python import plain_python

pytestmark = pytest.mark.kafka

OFTEN = {"auto.commit.interval.ms": 20}


def member(cluster: Cluster, topic: str, options: dict[str, Any] | None = None, **settings: Any) -> ParallelConsumer:
    return consumer(cluster, topic, {"commit_mode": "transactional"} | (options or {}), **OFTEN | settings)


class Reader:
    """Reads what is committed of a topic, on and on."""

    def __init__(self, client: ck.Consumer, topic: str) -> None:
        self._client = client
        self._partitions = [ck.TopicPartition(topic, partition, 0) for partition in client_partitions(client, topic)]
        self.read: list[ck.Message] = []
        client.assign(self._partitions)

    def snapshot(self) -> list[ck.Message]:
        """All that is committed at this moment, and before."""
        bounds = [self._client.get_watermark_offsets(each, 30)[1] for each in self._partitions]
        while any(
            position.offset < bound
            for position, bound in zip(self._client.position(self._partitions), bounds, strict=True)
            if bound
        ):
            self.read += self._client.consume(1000, 0.1)
        return self.read

    @property
    def values(self) -> list[str]:
        """The values in a snapshot."""
        return [(message.value() or b"").decode() for message in self.snapshot()]


def client_partitions(client: ck.Consumer, topic: str) -> list[int]:
    def partitions() -> list[int]:
        return list(client.list_topics(topic, 30).topics[topic].partitions)

    wait_for(partitions)  # the broker may not know of a new topic yet
    return partitions()


@contextmanager
def reader(cluster: Cluster, topic: str) -> Iterator[Reader]:
    with client_of(
        cluster, "reader", **{"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    ) as client:
        yield Reader(client, topic)


def parts(values: list[str]) -> dict[str, list[str]]:
    """Which parts there are of each input's outputs."""
    found: dict[str, list[str]] = defaultdict(list)
    for value in values:
        number, part = value.split("/")
        found[number].append(part)
    return found


def twice(out: str) -> Callable[[ConsumerRecord, Context], list[ProducerRecord]]:
    return lambda record, context: [ProducerRecord(out, record.value + part, record.key) for part in (b"/a", b"/b")]


class Running:
    """A consumer that produces in a thread of its own."""

    def __init__(self, parallel: ParallelConsumer, handler: Callable[..., Any]) -> None:
        self.consumer = parallel
        self._thread = threading.Thread(target=self._run, args=(handler,))
        self._thread.start()

    def _run(self, handler: Callable[..., Any]) -> None:
        with contextlib.suppress(BaseException):  # it is in `failure`
            self.consumer.run_and_produce(handler)

    def stop(self, *, drain: bool = True) -> None:
        self.consumer.close(drain=drain)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.consumer.failure:
            raise self.consumer.failure

    def wait(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


# Processes that end in the middle

PROGRAM = """
import sys
from headway import ParallelConsumer, ProducerRecord

servers, topic, out = sys.argv[1:]

def handle(record, context):
    for part in (b"/a", b"/b"):
        yield ProducerRecord(out, record.value + part, record.key)

def say(input, output, where):
    sys.stdout.write(f"{where.offset}\\n")
    sys.stdout.flush()

config = {"bootstrap.servers": servers, "group.id": topic, "group.instance.id": topic, "auto.offset.reset": "earliest",
          "session.timeout.ms": 6000, "heartbeat.interval.ms": 100, "auto.commit.interval.ms": 20}
with ParallelConsumer(config, max_concurrency=8, rate_limit=1000, commit_mode="transactional",
                      producer_config={"transactional.id": topic}) as consumer:
    consumer.subscribe(topic)
    consumer.run_and_produce(handle, say)
"""


@contextmanager
def started(cluster: Cluster, topic: str, out: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, cluster.bootstrap_servers, topic, out]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "times"),
    [(signal.SIGKILL, 5), (signal.SIGINT, 2), (signal.SIGTERM, 2)],
    ids=["kill", "ctrl-c", "terminate"],
)
def test_each_output_is_there_exactly_once_and_never_half_a_set_though_the_process_ends_again_and_again(
    kafka_cluster: Cluster, end: signal.Signals, times: int
) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 1000 * times
    send(kafka_cluster, topic, [(f"key-{i % 500}", str(i)) for i in range(count)])
    with reader(kafka_cluster, out) as found:
        for _ in range(times):
            with started(kafka_cluster, topic, out) as process:
                assert process.stdout
                for _ in range(random.randint(300, 1000)):
                    assert process.stdout.readline()
                process.send_signal(end)
                process.communicate(timeout=30)
            assert all(each == ["a", "b"] for each in parts(found.values).values())
        with started(kafka_cluster, topic, out):
            wait_for(lambda: len(found.values) >= 2 * count)
        assert parts(found.values) == {str(i): ["a", "b"] for i in range(count)}
        assert len(found.values) == 2 * count


# Ctrl-C at the worst moments


@pytest.mark.quick("send_offsets-after", "begin-before")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["begin", "send_offsets", "commit"])
def test_an_interrupt_at_any_step_of_a_transaction_neither_loses_nor_repeats_it(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, call: str, when: str
) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(10)], partition=0)
    whole: Callable[..., None] = getattr(ClientTransactions, call)
    interrupts = iter([signal.SIGINT])

    def interrupted(client: ClientTransactions, *args: Any) -> None:
        if when == "after":
            whole(client, *args)
        for interrupt in interrupts:  # in the control thread, which is not the one that is here
            signal.pthread_kill(threading.main_thread().ident or 0, interrupt)
        if when == "before":
            whole(client, *args)

    monkeypatch.setattr(ClientTransactions, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        member(kafka_cluster, topic).run_and_produce(twice(out))
    monkeypatch.undo()
    with reader(kafka_cluster, out) as found:
        second = Running(member(kafka_cluster, topic), twice(out))
        wait_for(lambda: committed(kafka_cluster, topic) == {0: (10, b"")})
        second.stop()
        assert parts(found.values) == {str(i): ["a", "b"] for i in range(10)}


@plain_python
@pytest.mark.quick("committed")
@pytest.mark.parametrize("call", ["tick", "committed"])
def test_an_interrupt_after_a_tick_is_taken_or_before_it_is_settled_neither_loses_nor_repeats_its_outputs(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(10)], partition=0)
    whole: Callable[..., Any] = getattr(Engine, call)
    interrupts = iter([KeyboardInterrupt])

    def interrupted(engine: Engine[Any], subject: Any) -> Any:
        tick = whole(engine, subject) if call == "tick" else subject
        if tick.outputs:
            for interrupt in interrupts:
                raise interrupt
        return tick if call == "tick" else whole(engine, subject)

    monkeypatch.setattr(Engine, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        member(kafka_cluster, topic).run_and_produce(twice(out))
    monkeypatch.undo()
    with reader(kafka_cluster, out) as found:
        second = Running(member(kafka_cluster, topic), twice(out))
        wait_for(lambda: committed(kafka_cluster, topic) == {0: (10, b"")})
        second.stop()
        assert parts(found.values) == {str(i): ["a", "b"] for i in range(10)}


# Several members


@pytest.mark.slow
@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE, CONSUMER_PROTOCOL], ids=["eager", "cooperative", "kip848"])
def test_members_that_come_and_go_under_load_repeat_nothing_and_lose_nothing(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 6000
    send(kafka_cluster, topic, [(f"key-{i % 300}", str(i)) for i in range(count)])
    all_came = threading.Event()

    def handle(record: ConsumerRecord, context: Context) -> list[ProducerRecord]:
        all_came.wait(0.05)  # so that partitions go while handlers run, and the last to come finds records
        return twice(out)(record, context)

    def join() -> Running:
        return Running(member(kafka_cluster, topic, {"max_concurrency": 8}, **settings), handle)

    def has_begun(each: Running) -> bool:
        return each.consumer.metrics().done > 100

    everyone = [join()]
    try:
        wait_for(lambda: has_begun(everyone[0]))
        everyone.append(join())
        wait_for(lambda: has_begun(everyone[1]))
        everyone.pop(0).stop()
        everyone.append(join())
        wait_for(lambda: has_begun(everyone[1]))
        all_came.set()
        with reader(kafka_cluster, out) as found:
            wait_for(lambda: len(found.values) >= 2 * count, 60)
            values = found.values
    finally:
        for each in everyone:
            each.stop()
    assert Counter(values) == Counter(f"{i}/{part}" for i in range(count) for part in "ab")
    of_key: dict[int, list[int]] = defaultdict(list)
    for value in values:
        number = int(value.split("/")[0])
        of_key[number % 300].append(number)
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


def test_a_second_producer_with_the_same_id_ends_the_run_of_the_first_with_a_sentence(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(5)], partition=0)
    go_on = threading.Event()
    options = {"producer_config": {"transactional.id": topic}}

    def handle(record: ConsumerRecord, context: Context) -> list[ProducerRecord]:
        if record.offset == 3:
            go_on.wait(30)
        return twice(out)(record, context)

    first = Running(member(kafka_cluster, topic, options), handle)
    try:
        wait_for(lambda: first.consumer.metrics().done == 3)  # before that the group may have no coordinator yet
        wait_for(lambda: committed(kafka_cluster, topic) == {0: (3, b"")})
        with made_by("headway.parallel.consumer.RunParts") as made:
            second = Running(member(kafka_cluster, topic, options), twice(out))
        try:
            wait_for(lambda: made[0].transactions)
            go_on.set()
            first.wait()
            failure = first.consumer.failure
            assert isinstance(failure, TransactionError)
            assert "If another process uses the same transactional.id, give each process an id of its own." in str(
                failure
            )
            wait_for(lambda: committed(kafka_cluster, topic) == {0: (5, b"")})
        finally:
            second.stop()
    finally:
        go_on.set()
    with reader(kafka_cluster, out) as found:
        assert parts(found.values) == {str(i): ["a", "b"] for i in range(5)}


# Failures


def test_dead_letters_are_in_the_transaction_and_each_is_there_once(kafka_cluster: Cluster) -> None:
    topic, out, dead, count = (*(plain_topic(kafka_cluster) for _ in range(3)), 300)
    send(kafka_cluster, topic, [(f"key-{i % 50}", str(i)) for i in range(count)])
    options = {"retries": Retries(fixed_backoff(0.01), max_attempts=3), "dead_letter_topic": dead}
    attempts: Counter[bytes] = Counter()

    def handle(record: ConsumerRecord, context: Context) -> list[ProducerRecord]:
        attempts[record.value] += 1
        if int(record.value) % 10 == 0:
            raise ValueError("never")
        if int(record.value) % 10 == 1:
            raise FatalError("no use")
        if int(record.value) % 10 == 2 and context.attempt < 3:
            raise OSError("not yet")
        return twice(out)(record, context)

    with reader(kafka_cluster, out) as found, reader(kafka_cluster, dead) as letters:
        running = Running(member(kafka_cluster, topic, options), handle)
        wait_for(lambda: len(found.values) + len(letters.values) >= 2 * count * 8 // 10 + count * 2 // 10)
        wait_for(lambda: running.consumer.work_remaining == 0)
        running.stop()
        assert sorted(map(int, letters.values)) == [i for i in range(count) if i % 10 < 2]
        assert parts(found.values) == {str(i): ["a", "b"] for i in range(count) if i % 10 >= 2}
        assert running.consumer.metrics().dead_letters == count // 5
    assert attempts.total() == count // 10 * (3 + 1 + 3 + 7)
    assert not any(metadata for _, metadata in committed(kafka_cluster, topic).values())


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["known here", "only by the broker"])
def test_an_output_that_kafka_refuses_becomes_one_dead_letter_and_holds_up_no_other(
    kafka_cluster: Cluster, known: bool
) -> None:
    topic, dead, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 200
    out = topic_of(kafka_cluster, 1, max_message_bytes="1000")
    send(kafka_cluster, topic, [(f"key-{i % 50}", str(i)) for i in range(count)])
    options = {
        "retries": Retries(fixed_backoff(0.01), max_attempts=2),
        "dead_letter_topic": dead,
        "producer_config": {"message.max.bytes": 1000} if known else {},
    }
    bad = [50, 51, 130]

    def handle(record: ConsumerRecord, context: Context) -> list[ProducerRecord]:
        outputs = twice(out)(record, context)
        if int(record.value) in bad:
            outputs.append(ProducerRecord(out, b"x" * 2000, record.key))
        return outputs

    with reader(kafka_cluster, out) as found, reader(kafka_cluster, dead) as letters:
        running = Running(member(kafka_cluster, topic, options, **{"auto.commit.interval.ms": 300}), handle)
        wait_for(lambda: sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count)
        running.stop()
        assert sorted(map(int, letters.values)) == bad
        assert parts(found.values) == {str(i): ["a", "b"] for i in range(count) if i not in bad}
        assert running.consumer.metrics().dead_letters == len(bad)
        told = {
            dict(letter.headers() or [])["headway.error.reason"]: dict(letter.headers() or [])["headway.error.message"]
            for letter in letters.read
        }
    if known:
        assert b"attempt 2 of 2 failed" in told
    else:
        [message] = told.values()
        assert b"Message size too large" in bytes(str(message), "utf-8")
        assert list(told) == [b"Kafka refuses an output"]


@pytest.mark.slow
def test_of_thousands_of_outputs_in_a_transaction_only_the_one_that_kafka_refuses_becomes_a_dead_letter(
    kafka_cluster: Cluster,
) -> None:
    """Once one of a transaction is refused, librdkafka refuses all that are sent after it, each with an error."""
    topic, dead, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 40
    out = topic_of(kafka_cluster, 1, max_message_bytes="200000")
    send(kafka_cluster, topic, [("key", str(i)) for i in range(count)])
    options = {"dead_letter_topic": dead, "producer_config": {"linger.ms": 0}}

    def handle(record: ConsumerRecord, context: Context) -> list[ProducerRecord]:
        if record.value == b"3":
            return [ProducerRecord(out, b"x" * 300_000)]
        return [ProducerRecord(out, record.value)] * 100

    with reader(kafka_cluster, out) as found, reader(kafka_cluster, dead) as letters:
        running = Running(member(kafka_cluster, topic, options), handle)
        wait_for(lambda: sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count)
        running.stop()
        assert list(letters.values) == ["3"]
        assert Counter(found.values) == {str(i): 100 for i in range(count) if i != 3}
    assert running.consumer.metrics().dead_letters == 1


def test_without_a_dead_letter_topic_an_output_that_kafka_refuses_ends_the_run(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), topic_of(kafka_cluster, 1, max_message_bytes="1000")
    send(kafka_cluster, topic, [("a", "1"), ("b", "2")], partition=0)
    parallel = member(kafka_cluster, topic)
    with pytest.raises(HandlerError, match=r"Kafka refuses an output.*Message size too large.*dead_letter_topic"):
        parallel.run_and_produce(lambda record, context: ProducerRecord(out, b"x" * 2000))
    assert isinstance(parallel.failure, HandlerError)
    assert committed(kafka_cluster, topic) == {}


def test_a_commit_that_kafka_refuses_for_now_is_made_later_with_all_its_outputs(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(10)], partition=0)
    whole, refusals = ClientTransactions.send_offsets, iter([KafkaError("Not now.")] * 3)

    def refused(client: ClientTransactions, *args: Any) -> None:
        for refusal in refusals:
            raise refusal
        whole(client, *args)

    monkeypatch.setattr(ClientTransactions, "send_offsets", refused)
    running = Running(member(kafka_cluster, topic), twice(out))
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (10, b"")})
    running.stop()
    with reader(kafka_cluster, out) as found:
        assert parts(found.values) == {str(i): ["a", "b"] for i in range(10)}


# Offsets


def test_offsets_and_maps_of_several_levels_are_in_one_transaction_byte_for_byte(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out, count = kafka_cluster.topic(), plain_topic(kafka_cluster), 90
    with Producer(kafka_cluster.config({"levels": 3, "linger.ms": 0})) as producer:
        for i in range(count):
            producer.send(topic, str(i), key=str(i), level=i % 3)
    go_on = threading.Event()
    ticks: list[CommitTick] = []

    def handle(record: ConsumerRecord, context: Context) -> list[ProducerRecord]:
        if int(record.value) < 6:
            go_on.wait(30)
        return twice(out)(record, context)

    with made_by("headway.parallel.consumer.RunParts") as made:
        parallel = member(kafka_cluster, topic, {}, **{"levels": 3, "auto.commit.interval.ms": 600_000})
    running = Running(parallel, handle)
    try:
        wait_for(lambda: parallel.metrics().done == count - 6)
        transactions = made[0].transactions
        assert transactions
        commit: Callable[[CommitTick], SentTransaction] = transactions.commit

        def note(tick: CommitTick) -> SentTransaction:
            ticks.append(tick)
            return commit(tick)

        monkeypatch.setattr(transactions, "commit", note)
        parallel.request_commit()
        with reader(kafka_cluster, out) as found:
            wait_for(lambda: len(found.values) == 2 * (count - 6))
        [tick] = ticks
        assert {partition.level for partition in tick.commits} == {0, 1, 2}
        in_kafka: dict[tuple[int, int], tuple[int, bytes]] = {
            (level, partition): answer
            for level in range(3)
            for partition, answer in committed(kafka_cluster, f"{topic}-{level}").items()
        }
        assert in_kafka == {
            (each.level, each.partition): (commit.offset, commit.metadata.encode())
            for each, commit in tick.commits.items()
        }
        done = sum(len(run) for offsets in maps_of_all(in_kafka) for run in offsets)
        assert done == count - 6
    finally:
        go_on.set()
        running.stop()


def maps_of_all(in_kafka: dict[tuple[int, int], tuple[int, bytes]]) -> list[list[range]]:
    maps = maps_of(dict(enumerate(in_kafka.values())))
    return [[range(each.offset), *each.complete] for each in maps.values()]


def test_records_without_outputs_are_committed_too(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    for partition in range(PARTITIONS):
        send(kafka_cluster, topic, [("a", "1")], partition)
    running = Running(member(kafka_cluster, topic), lambda record, context: None)
    wait_for(lambda: committed(kafka_cluster, topic) == dict.fromkeys(range(PARTITIONS), (1, b"")))
    running.stop()


@pytest.mark.slow
def test_transactions_go_on_when_all_brokers_were_away() -> None:
    with LocalBroker(properties=MISSED_SOON) as broker:
        cluster = cluster_of(broker)
        topic, out = plain_topic(cluster), plain_topic(cluster)
        send(cluster, topic, [("k", "before")])
        running = Running(member(cluster, topic), twice(out))
        wait_for(lambda: 1 in [offset for offset, _ in committed(cluster, topic).values()])
        broker.nodes[0].kill()
        broker.nodes[0].start()
        send(cluster, topic, [("k", "after")])
        wait_for(lambda: 2 in [offset for offset, _ in committed(cluster, topic).values()], seconds=60)
        running.stop()
        with reader(cluster, out) as found:
            assert sorted(found.values) == ["after/a", "after/b", "before/a", "before/b"]


def test_input_that_could_yet_be_aborted_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"isolation.level is 'read_uncommitted', so the consumer would read"):
        ParallelConsumer({"group.id": "g", "isolation.level": "read_uncommitted"}, commit_mode="transactional")

"""Schedules in transactions on a real Apache Kafka: an abort leaves nothing, a commit is delivered once."""

import asyncio
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headway import (
    AsyncProducer,
    ConsumerRecord,
    ParallelConsumer,
    Producer,
    ProducerRecord,
    Retries,
    Scheduler,
    Settled,
)
from headway.broker import LocalBroker
from headway.core.delay.ladder import Ladder
from headway.delay.topics import create_topics
from headway.errors import ConfigError, DeliveryError
from tests.broker.delay_cluster import DelayCluster, wait_until

SOON = 0.3


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    return DelayCluster(headway_broker.bootstrap_servers)


def transactional(cluster: DelayCluster, **more: Any) -> dict[str, Any]:
    own = {"transactional.id": f"{cluster.name}-transactions", "scheduler.name": cluster.name}
    return cluster.config | own | more


@contextmanager
def producer_of(cluster: DelayCluster, **more: Any) -> Iterator[Producer]:
    with Producer(transactional(cluster, **more)) as producer:
        producer.init_transactions()
        yield producer


class GivenUpError(Exception):
    """What a block of a transaction raises here."""


def values(cluster: DelayCluster) -> Counter[bytes]:
    return Counter(message.value() for message in cluster.read())


def test_an_abort_leaves_no_schedule_and_a_commit_makes_each_due_once(cluster: DelayCluster) -> None:
    with producer_of(cluster) as producer:
        for fate in ("aborted", "committed"):
            try:
                with producer.transaction():
                    producer.send(cluster.target, f"{fate} by send", due=SOON).result(30)
                    producer.send(
                        ProducerRecord(cluster.target, f"{fate} as a record", due=SOON, headers=[("h", b"1")])
                    )
                    producer.send(cluster.target, f"{fate} under an id", due=SOON, id=f"id of {fate}").result(30)
                    producer.scheduler.send_later("k", f"{fate} by send_later", cluster.target, 3).wait(30)
                    producer.scheduler.every(3600, "k", f"{fate} by every", cluster.target).wait(30)
                    if fate == "aborted":
                        raise GivenUpError
            except GivenUpError:
                assert cluster.pending() == []
        kinds = ("by send", "as a record", "under an id", "by send_later")
        expected = {f"committed {kind}".encode(): 1 for kind in kinds}
        with cluster.relay():
            found = cluster.wait_for(4)
        assert values(cluster) == expected
        assert [message.headers() for message in found if message.value() == b"committed as a record"] == [
            [("h", b"1")]
        ]
        wait_until(lambda: [each.message.value() for each in cluster.pending()] == [b"committed by every"])


def test_schedules_of_a_transaction_are_seen_with_its_commit_and_what_is_sent_outside_at_once(
    cluster: DelayCluster,
) -> None:
    with producer_of(cluster) as producer, cluster.relay():
        producer.send(cluster.target, b"outside", due=SOON).result(30)
        with producer.transaction():
            producer.send(cluster.target, b"inside", b"k", due=0).result(30)
            assert cluster.wait_for(1)[0].value() == b"outside"
            assert cluster.pending() == []
        cluster.wait_for(2)
    assert values(cluster) == {b"outside": 1, b"inside": 1}


@pytest.mark.slow
def test_the_record_of_a_serialising_producer_with_levels_is_serialised_once_and_has_its_level(
    cluster: DelayCluster,
) -> None:
    cluster.create_target(f"{cluster.target}-1")
    settings = {"levels": 2, "value.serializer": lambda number: f"number {number}".encode()}
    with Producer(transactional(cluster, **settings)) as producer, cluster.relay():
        producer.init_transactions()
        with producer.transaction():
            producer.send(cluster.target, 7, level=1, due=0.1)
            assert producer.flush(30) == 0
        assert [message.value() for message in cluster.wait_for(1, f"{cluster.target}-1")] == [b"number 7"]
        assert producer.metrics().delivered == [1, 0]  # it takes room of the lowest level


def test_a_schedule_that_is_not_stored_fails_its_transaction(cluster: DelayCluster) -> None:
    with producer_of(cluster) as producer:
        producer.begin_transaction()
        producer.send(cluster.target, b"stored", due=60)
        with pytest.raises(DeliveryError, match="Message size too large"):
            producer.send(cluster.target, bytes(2_000_000), due=60).result(30)
        with pytest.raises(DeliveryError, match="of the transaction were not sent"):
            producer.commit_transaction()
        producer.abort_transaction()
        assert cluster.pending() == []
        with producer.transaction():
            producer.send(cluster.target, b"goes on", due=60)
        wait_until(lambda: [each.message.value() for each in cluster.pending()] == [b"goes on"])
    with (
        producer_of(cluster, **{"message.max.bytes": 5_000_000}) as producer,
        pytest.raises(DeliveryError, match="relays can move at most 2031616"),
        producer.transaction(),
    ):
        producer.send(cluster.target, bytes(2_031_616), due=60)


@pytest.mark.slow
def test_what_a_relay_has_to_answer_is_refused_within_a_transaction(cluster: DelayCluster) -> None:
    with producer_of(cluster) as producer:
        handle = producer.scheduler.send_later("k", b"v", cluster.target, 60)
        with producer.transaction():
            with pytest.raises(ConfigError, match="cannot be cancelled or rescheduled while a transaction"):
                producer.scheduler.cancel(handle)
            with pytest.raises(ConfigError, match="cannot be cancelled or rescheduled while a transaction"):
                producer.scheduler.reschedule(str(handle), 5)
            with pytest.raises(ConfigError, match="relays do not see records of a transaction before it is committed"):
                producer.scheduler.send_later("k", b"v", cluster.target, 60, id="1", if_pending="refuse")
            producer.scheduler.send_later("k", b"v", cluster.target, 60, id="1", if_pending="keep")
        with cluster.relay():
            assert producer.scheduler.cancel(handle).settled() is Settled.CANCELLED


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"id": "1"}, "has an id or if_pending, but no due time"),
    ({"due": 1, "id": "1", "timestamp": 5}, "gets the time of its delivery"),
    ({"due": 1, "id": "1", "if_pending": "refuse"}, "must be 'replace' or 'keep'"),
    ({"due": 1, "if_pending": "keep"}, "needs an id"),
    ({"due": 1, "id": ""}, "must be text of 1 to 250 characters"),
]


@pytest.mark.quick("fields3-needs an id")
@pytest.mark.parametrize(("fields", "said"), REFUSED)
def test_fields_that_do_not_go_together_are_refused(cluster: DelayCluster, fields: dict[str, Any], said: str) -> None:
    with Producer(cluster.config | {"scheduler.name": cluster.name}) as producer:
        with pytest.raises(ConfigError, match=said):
            producer.send(cluster.target, b"v", **fields)
        with pytest.raises(ConfigError, match=said):
            producer.send(ProducerRecord(cluster.target, b"v", **fields))
        with pytest.raises(ConfigError, match="Call send"):
            producer.try_send(ProducerRecord(cluster.target, b"v", due=1))
        with pytest.raises(ConfigError, match="has an id or if_pending, but no due time"):
            producer.send(ProducerRecord(cluster.target, b"v", if_pending="keep"))


@pytest.mark.slow
def test_the_lines_of_a_longer_delay_are_made_before_its_record_is_sent(cluster: DelayCluster) -> None:
    name = f"{cluster.name}-short"
    create_topics(cluster.config, name, Ladder((1000, 2000, 4000)), 2, delay=0)
    with producer_of(cluster, **{"scheduler.name": name}) as producer, producer.transaction():
        record = producer.send(cluster.target, b"v", due=60).result(30)
    assert record.topic == f"{name}.line-4000"


DIES = """
import sys
from headway import Producer
servers, name, target = sys.argv[1:]
producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "scheduler.name": name})
producer.init_transactions()
producer.begin_transaction()
for delay in (0, 0.5, 60):
    producer.send(target, b"ghost", due=delay).result(30)
producer.send(target, b"ghost", due=0, id="1").result(30)
print("stored", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_process_that_is_killed_between_send_and_commit_leaves_nothing(cluster: DelayCluster) -> None:
    name = cluster.name
    command = [sys.executable, "-c", DIES, cluster.config["bootstrap.servers"], name, cluster.target]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"stored\n"
        program.send_signal(signal.SIGKILL)
    with Producer(cluster.config | {"transactional.id": name, "scheduler.name": name}) as successor, cluster.relay():
        successor.init_transactions()  # ends what the dead one left open
        with successor.transaction():
            successor.send(cluster.target, b"after it", due=0.5)
        cluster.wait_for(1)
        assert cluster.pending() == []
    assert values(cluster) == {b"after it": 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AsyncProducer])
async def test_async_producers_have_schedules_in_their_transactions(
    cluster: DelayCluster, kind: Callable[..., Any]
) -> None:
    levels = {"levels": 1} if kind is AsyncProducer else {}
    target = cluster.target + ("-0" if levels else "")
    if levels:
        cluster.create_target(target)
    with cluster.relay():
        async with kind(transactional(cluster, **levels)) as producer:
            await producer.init_transactions()
            for fate in ("aborted", "committed"):
                try:
                    async with producer.transaction():
                        for number in range(20):  # not awaited: the end of the transaction comes behind them
                            producer.send(cluster.target, f"{fate} {number:02}", "k", due=1.5)
                        if fate == "aborted":
                            raise GivenUpError
                except GivenUpError:
                    await asyncio.to_thread(lambda: wait_until(lambda: cluster.pending() == []))
            found = await asyncio.to_thread(cluster.wait_for, 20, target)
    assert {message.value() for message in found} == {b"committed %02d" % number for number in range(20)}
    assert len(found) == 20


async def test_an_async_producer_stores_schedules_in_the_order_of_the_calls_and_before_it_is_closed(
    cluster: DelayCluster,
) -> None:
    async with AsyncProducer(cluster.config | {"scheduler.name": cluster.name}) as producer:
        sent = [producer.send(cluster.target, b"%d" % number, b"k", due=60) for number in range(30)]
        assert await producer.flush(30) == 0
        [later] = [producer.send(cluster.target, b"last", b"k", due=60)]
    assert later.done()
    assert sorted(each.message.value() for each in cluster.pending()) == sorted(
        [*(b"%d" % number for number in range(30)), b"last"]
    )
    pending = sorted(cluster.pending(), key=lambda each: each.schedule.order)
    assert [each.message.value() for each in pending] == [*(b"%d" % number for number in range(30)), b"last"]
    assert all(each.done() for each in sent)


def run(cluster: DelayCluster, handler: Callable[..., Any], until: Callable[[], Any], **options: Any) -> None:
    """Run a consumer until something is true."""
    config = cluster.config | {
        "group.id": cluster.name,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 20,
        "scheduler.name": cluster.name,
    }
    consumer = ParallelConsumer(config, max_concurrency=4, **options)
    consumer.subscribe(f"{cluster.name}-in")
    running = threading.Thread(target=consumer.run_and_produce, args=(handler,))
    running.start()
    try:
        wait_until(until)
    finally:
        consumer.stop()
        running.join()


def doubled(record: ConsumerRecord) -> list[ProducerRecord]:
    topic, number = record.value.decode().split()
    return [
        ProducerRecord(topic, f"now {number}"),
        ProducerRecord(topic, f"later {number}", record.key, due=0.5),
        ProducerRecord(topic, "one of all", due=2, id="one of all"),
    ]


async def doubled_in_a_loop(record: ConsumerRecord) -> list[ProducerRecord]:
    return doubled(record)


@pytest.mark.quick("doubled-options0-transactional")
@pytest.mark.parametrize("mode", ["async", "sync", "transactional"])
@pytest.mark.parametrize(
    ("handler", "options"), [(doubled, {}), (doubled_in_a_loop, {}), (doubled, {"executor": "process", "processes": 1})]
)
def test_outputs_of_handlers_may_be_due_later(
    cluster: DelayCluster, mode: str, handler: Callable[..., Any], options: dict[str, Any]
) -> None:
    cluster.create_target(f"{cluster.name}-in")
    with Producer(cluster.config) as producer:
        for number in range(20):
            producer.send(f"{cluster.name}-in", f"{cluster.target} {number}", key=f"{number % 5}")
    with cluster.relay():
        run(cluster, handler, lambda: len(cluster.read()) >= 41, commit_mode=mode, **options)
    expected = Counter({f"{when} {number}".encode(): 1 for when in ("now", "later") for number in range(20)})
    assert values(cluster) == expected | {b"one of all": 1}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "transactional"])
def test_an_output_that_cannot_be_scheduled_fails_its_record_and_no_other(cluster: DelayCluster, mode: str) -> None:
    cluster.create_target(f"{cluster.name}-in")
    cluster.create_target(f"{cluster.name}-dead")
    wrong: dict[bytes, dict[str, Any]] = {
        b"1": {"due": "tomorrow"},
        b"2": {"due": 1, "timestamp": 5},
        b"3": {"id": "3"},
        b"4": {"due": 10**15},
    }

    def handle(record: ConsumerRecord) -> ProducerRecord:
        return ProducerRecord(cluster.target, record.value, **wrong.get(record.value, {"due": SOON}))

    with Producer(cluster.config) as producer:
        for number in range(8):
            producer.send(f"{cluster.name}-in", b"%d" % number)
    with cluster.relay():
        dead = f"{cluster.name}-dead"
        run(
            cluster,
            handle,
            lambda: len(cluster.read()) >= 4 and len(cluster.read(dead)) >= 4,
            commit_mode=mode,
            dead_letter_topic=dead,
            retries=Retries(max_attempts=1),
        )
    assert values(cluster) == {b"0": 1, b"5": 1, b"6": 1, b"7": 1}
    assert {message.value() for message in cluster.read(dead)} == set(wrong)


@pytest.mark.slow
def test_other_schedulers_in_the_same_lines_are_not_kept_by_a_transaction_for_longer_than_it_is_open(
    cluster: DelayCluster,
) -> None:
    with producer_of(cluster) as producer, Scheduler(cluster.config, name=cluster.name) as other, cluster.relay():
        with producer.transaction():
            producer.send(cluster.target, b"inside", b"k", due=0.5).result(30)
            handle = other.send_later(b"k", b"behind it", cluster.target, 0.5)  # in the same delay topic and partition
            handle.wait(30)
            assert cluster.pending() == []  # Kafka's readers do not see it yet
        cluster.wait_for(2)
    assert values(cluster) == {b"inside": 1, b"behind it": 1}


@pytest.mark.slow
async def test_an_async_producer_begins_and_ends_transactions_and_its_scheduler_is_part_of_them(
    cluster: DelayCluster,
) -> None:
    async with AsyncProducer(transactional(cluster)) as producer:
        await producer.init_transactions()
        for fate, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
            await producer.begin_transaction()
            sent = producer.try_send(ProducerRecord(cluster.target, f"{fate} now"))
            assert sent is not None
            await sent
            handle = await producer.scheduler.send_later("k", f"{fate} later", cluster.target, 60)
            with pytest.raises(ConfigError, match="cannot be cancelled or rescheduled while a transaction"):
                await producer.scheduler.cancel(handle)
            await producer.scheduler.every(3600, "k", f"{fate} again", cluster.target, id=fate)
            await end()
        with pytest.raises(ConfigError, match="Call send"):
            producer.try_send(ProducerRecord(cluster.target, b"v", due=1))
        assert values(cluster) == {b"committed now": 1}
        wait_until(lambda: [each.message.value() for each in cluster.pending()] == [b"committed later"])
        with cluster.relay():
            assert await (await producer.scheduler.cancel(handle)).settled() is Settled.CANCELLED
            assert await (await producer.scheduler.cancel("id:committed")).settled() is Settled.CANCELLED
            assert await (await producer.scheduler.cancel("id:aborted")).settled() is Settled.UNKNOWN


async def test_a_cancelled_transaction_is_aborted_with_its_schedules_also_with_those_not_sent_yet(
    cluster: DelayCluster,
) -> None:
    async with AsyncProducer(transactional(cluster)) as producer:
        await producer.init_transactions()
        begun = asyncio.Event()

        async def sends() -> None:
            async with producer.transaction():
                for number in range(50):
                    producer.send(cluster.target, b"ghost", b"%d" % number, due=60)
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(sends())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with producer.transaction():
            producer.send(cluster.target, b"committed", b"k", due=60)
        wait_until(lambda: [each.message.value() for each in cluster.pending()] == [b"committed"])


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_sends_commits_and_aborts_leaves_what_was_committed(cluster: DelayCluster, seed: int) -> None:
    chance = random.Random(seed)
    with producer_of(cluster) as producer:
        committed, open_one = Counter[bytes](), Counter[bytes]()
        is_open = False
        sends: list[Callable[[bytes], object]] = [
            lambda value: producer.send(cluster.target, value, due=chance.uniform(60, 90)),
            lambda value: producer.send(ProducerRecord(cluster.target, value, key=value[:3], due=3600)),
            lambda value: producer.scheduler.send_later(value[:2], value, cluster.target, chance.choice([60, 100_000])),
            lambda value: producer.scheduler.every(3600, value[:2], value, cluster.target),
            lambda value: producer.send(cluster.target, value, due=61).result(30),
        ]
        for number in range(150):
            step = chance.random()
            if step < 0.8:
                value = b"%d" % number
                chance.choice(sends)(value)
                (open_one if is_open else committed)[value] += 1
            elif not is_open:
                producer.begin_transaction()
                is_open = True
            else:
                if step < 0.9:
                    producer.commit_transaction()
                    committed += open_one
                else:
                    producer.abort_transaction()
                is_open, open_one = False, Counter[bytes]()
        if is_open:
            # What was sent just before it can stand behind its records, and readers of committed records stop there.
            producer.abort_transaction()
        assert producer.scheduler.flush(30) == 0
        # Kafka has decided when the commit returns, and writes the markers that readers wait for a moment later.
        wait_until(lambda: _stored(cluster) == committed)


def _stored(cluster: DelayCluster) -> Counter[bytes]:
    """The values in the delay topics, and of schedules with an id, which are commands until a relay runs."""
    commands = [message.value() for message in cluster.read(cluster.names.commands)]
    return Counter([*(each.message.value() for each in cluster.pending()), *filter(None, commands)])

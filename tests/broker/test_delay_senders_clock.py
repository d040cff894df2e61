"""Delays of a process whose wall clock is wrong: they count by the brokers' clock, in each way there is to delay."""

import asyncio
import threading
import time
from typing import Any

import pytest

from headway import (
    AsyncScheduler,
    ConsumerRecord,
    Context,
    ParallelConsumer,
    Producer,
    ProducerRecord,
    RetryLater,
)
from headway.broker import LocalBroker
from headway.records.expiry import expiry_of
from tests.broker.delay_cluster import DelayCluster

HOUR = 3600
DELAY = 2.0
EXPIRES = 1800.0
WAYS = ("scheduler", "recurring", "async", "moved", "producer", "transaction", "output", "retry")


def put_clock_to(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    permission = time.time
    monkeypatch.setattr(time, "time", lambda: permission() + step)


def send(cluster: DelayCluster) -> None:
    config = {**cluster.config, "scheduler.name": cluster.name, "transactional.id": cluster.name}
    with Producer(config) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(cluster.target, b"", "start")  # the broker stamps it before anything else is sent
        producer.send(cluster.target, b"", "producer", due=DELAY, expires=EXPIRES)
        with producer.transaction():
            producer.send(cluster.target, b"", "transaction", due=DELAY)
    with cluster.scheduler() as scheduler:
        scheduler.send_later("scheduler", b"", cluster.target, DELAY, expires=EXPIRES)
        scheduler.every(DELAY, "recurring", b"", cluster.target)
        scheduler.reschedule(scheduler.send_later("moved", b"", cluster.target, 1000), DELAY).settled()
    asyncio.run(send_async(cluster))


async def send_async(cluster: DelayCluster) -> None:
    async with AsyncScheduler(cluster.config, name=cluster.name) as scheduler:
        await scheduler.send_later("async", b"", cluster.target, DELAY)


def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
    """Delay what the record asks for; its value is the target."""
    if record.key == b"retry" and context.attempt == 1:
        raise RetryLater(DELAY)
    due = DELAY if record.key == b"output" else None
    return ProducerRecord(record.value.decode(), b"", record.key, due=due, expires=EXPIRES)


@pytest.mark.quick("behind")
@pytest.mark.parametrize(("step", "mode"), [(-HOUR, "async"), (HOUR, "transactional")], ids=["behind", "ahead"])
def test_delays_count_by_the_brokers_clock_in_a_process_whose_own_clock_is_wrong_by_an_hour(
    headway_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, step: int, mode: Any
) -> None:
    cluster = DelayCluster(headway_broker.bootstrap_servers)
    cluster.create_target(work := f"{cluster.target}-in")
    config = {**cluster.config, "scheduler.name": cluster.name, "group.id": f"{cluster.name}-workers"}
    consumer = ParallelConsumer({**config, "auto.offset.reset": "earliest"}, commit_mode=mode)
    consumer.subscribe(work)
    put_clock_to(step, monkeypatch)
    with cluster.relay():
        send(cluster)
        with Producer(cluster.config) as producer:
            for key in ("output", "retry"):
                producer.send(work, cluster.target, key)
        running = threading.Thread(target=consumer.run_and_produce, args=(handle,))
        running.start()
        try:
            cluster.wait_for_keys([way.encode() for way in WAYS])
        finally:
            consumer.stop()
            running.join()
    found = {message.key().decode(): message for message in reversed(cluster.read())}  # the first of each
    began = found["start"].timestamp()[1]
    waited = {way: found[way].timestamp()[1] - began for way in WAYS}
    assert min(waited.values()) >= DELAY * 1000, waited
    expires = {way: expiry_of(found[way].headers() or ()) or 0 for way in ("scheduler", "producer", "output")}
    assert all(0 <= at - began - EXPIRES * 1000 < 100_000 for at in expires.values()), expires
    assert cluster.read(cluster.names.dead) == []


@pytest.mark.slow
def test_a_clock_that_is_set_while_a_scheduler_runs_makes_nothing_early(
    headway_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = DelayCluster(headway_broker.bootstrap_servers)
    with cluster.relay(), cluster.scheduler() as scheduler:
        began = scheduler.send_later("right", b"", cluster.target, 1).due
        put_clock_to(-HOUR, monkeypatch)
        assert 1 <= scheduler.send_later("put back", b"", cluster.target, 2).due - began < 60
        put_clock_to(2 * HOUR, monkeypatch)
        assert 1 <= scheduler.send_later("put forward", b"", cluster.target, 2).due - began < 60
        cluster.wait_for_keys([b"right", b"put back", b"put forward"])

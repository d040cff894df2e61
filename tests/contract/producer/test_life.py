"""A producer that is closed, or that was made before its process was forked, says so at once, whatever it is asked."""

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headway import AsyncProducer, Producer
from headway.core.outgoing_record import OutgoingRecord
from headway.errors import ClosedError, DeliveryError, KafkaError
from headway.kafka.producer.client import ProducerClient
from tests.contract.conftest import Cluster
from tests.contract.mock_brokers import mock_brokers

INIT_PRODUCER_ID, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 22, 53  # as Kafka's protocol numbers them

NOWHERE: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "transactional.id": "t"}

CALLS: dict[str, Callable[[Any], Any]] = {
    "send": lambda sends: sends.send("orders", b"v"),
    "send later": lambda sends: sends.send("orders", b"v", due=1.0),
    "try_send": lambda sends: sends.try_send("orders", b"v"),
    "partitions_for": lambda sends: sends.partitions_for("orders"),
    "init_transactions": lambda sends: sends.init_transactions(),
    "begin_transaction": lambda sends: sends.begin_transaction(),
    "send_offsets": lambda sends: sends.send_offsets(None),
    "commit_transaction": lambda sends: sends.commit_transaction(),
    "abort_transaction": lambda sends: sends.abort_transaction(),
    "transaction": lambda sends: sends.transaction().__enter__(),
    "with": lambda sends: sends.__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_producer_says_so_whatever_it_is_asked(call: str) -> None:
    closed = Producer(NOWHERE)
    closed.close(0)
    with pytest.raises(ClosedError, match="The producer is closed"):
        CALLS[call](closed)


def test_a_closed_producer_has_nothing_to_wait_for_and_can_be_closed_again() -> None:
    closed = Producer(NOWHERE)
    closed.close(0)
    assert (closed.flush(), closed.purge(), closed.metrics().queued, closed.close()) == (0, 0, 0, 0)


def test_a_producer_that_kafka_has_ended_flushes_and_closes_without_an_error() -> None:
    with mock_brokers() as brokers:
        brokers.refuse(INIT_PRODUCER_ID, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        brokers.create("orders")
        config = {"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0, "enable.idempotence": True}
        for _ in range(10):  # since the end is told to whichever thread asks first
            ended = Producer(config)
            refused = [ended.send("orders", b"v") for _ in range(1_000)]
            assert (ended.flush(10), ended.close(1)) == (0, 0)
            assert all(isinstance(each.exception(0), DeliveryError) for each in refused)


@pytest.mark.slow
def test_a_record_that_comes_at_the_moment_at_which_kafka_ends_a_producer_is_reported_on() -> None:
    def send_until_refused(client: ProducerClient) -> None:
        with contextlib.suppress(BufferError, DeliveryError):
            while True:
                client.produce(OutgoingRecord("orders", b"v", None, 0), lambda error, message: None)

    with mock_brokers() as brokers, ThreadPoolExecutor(4) as threads:
        brokers.refuse(INIT_PRODUCER_ID, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        brokers.create("orders")
        config = {"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0, "enable.idempotence": True}
        for _ in range(5):
            client = ProducerClient(config)
            client.partitions("orders", 10)
            for sent in [threads.submit(send_until_refused, client) for _ in range(4)]:
                sent.result(30)
            assert client.flush(10) == 0
            client.close(0)


def test_a_closed_producer_of_a_loop_says_so_too() -> None:
    async def transact(sends: AsyncProducer) -> None:
        async with sends.transaction():
            pass

    async def run() -> None:
        closed = AsyncProducer(NOWHERE | {"levels": 1})
        await closed.close(0)
        for call in (
            lambda: closed.send("orders", b"v"),
            lambda: closed.send("orders", b"v", due=1.0),
            lambda: closed.partitions_for("orders"),
            closed.init_transactions,
            lambda: transact(closed),
        ):
            with pytest.raises(ClosedError, match="The producer is closed"):
                await call()
        assert await closed.flush() == await closed.close() == 0

    asyncio.run(run())


FORK = """
    import os, signal, sys, threading
    from headway import Producer
    from headway.errors import ClosedError
    from tests.contract.producer.test_life import CALLS

    signal.alarm(60)
    config = {"bootstrap.servers": sys.argv[1], "linger.ms": 0, "log_level": 0}
    first = Producer(config)
    first.send(sys.argv[2], b"parent", partition=0).result(30)
    nowhere = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    under_way = nowhere.send(sys.argv[2], b"parent", on_delivery=lambda *_: None)
    child = os.fork()
    if not child:
        signal.alarm(30)
        more = {"flush": lambda sends: sends.flush(), "purge": lambda sends: sends.purge()}
        more["result"] = lambda _: under_way.result()
        for name, call in {**CALLS, **more}.items():
            try:
                call(first if name == "send" else nowhere)
            except ClosedError as error:
                assert "created before the process was forked" in str(error), name
            else:
                raise AssertionError(name)
        assert first.close() == nowhere.close() == 0
        with Producer(config) as second:
            second.send(sys.argv[2], b"child", partition=0).result(30)
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    first.send(sys.argv[2], b"parent", partition=0).result(30)
    assert (first.close(), nowhere.close(0)) == (0, 1)
    print("both went on")
"""


@pytest.mark.slow
def test_in_a_forked_process_a_producer_is_an_error_at_once_and_a_new_one_works(mock_cluster: Cluster) -> None:
    program = [sys.executable, "-c", textwrap.dedent(FORK), mock_cluster.bootstrap_servers, mock_cluster.topic()]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=90, check=False)
    assert ended.stdout == "both went on\n", ended.stderr


def test_a_producer_whose_transactions_never_began_closes_though_warnings_are_errors() -> None:
    filters = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sends = Producer(NOWHERE)
        with pytest.raises(KafkaError):
            sends.init_transactions(0.2)
        assert sends.close(5) == 0
    assert list(warnings.filters) == filters

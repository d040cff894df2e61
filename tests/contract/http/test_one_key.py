"""A record's requests have one `Idempotency-Key`, wherever the record goes until it is done."""

import threading
from collections.abc import Callable

import pytest

from headway import ConsumerRecord, Context, Retries, RetryLater
from headway.broker import LocalBroker
from headway.http import HttpHandler
from tests.broker.delay_cluster import DelayCluster, wait_until
from tests.contract.cli.test_dead import dead as run_dead
from tests.contract.delay.test_long_retries import consumer_of, running, send
from tests.contract.http.test_http import Answer, Seen, Server, post, serve

__all__ = ["serve"]

pytestmark = pytest.mark.kafka


@pytest.fixture
def cluster(headway_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> DelayCluster:
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", headway_broker.bootstrap_servers)
    cluster = DelayCluster(headway_broker.bootstrap_servers)
    cluster.create_target(f"{cluster.target}-dead")
    return cluster


@pytest.mark.slow
def test_the_key_is_the_same_after_retries_after_retry_later_and_sent_again_from_the_dead_letters(
    cluster: DelayCluster, serve: Callable[..., Server]
) -> None:
    answers = iter([503, 503, 422, 200])

    def answer(seen: Seen) -> Answer:
        return Answer(status=next(answers))

    server, done = serve(answer), threading.Event()
    ask = HttpHandler(post(server))

    async def handle(record: ConsumerRecord, context: Context) -> None:
        try:
            await ask(record)
        except Exception as error:
            if context.attempt == 2 and len(server.seen) == 2:
                raise RetryLater(0.2) from error
            raise
        done.set()

    letters = f"{cluster.target}-dead"
    consumer = consumer_of(cluster, retries=Retries(lambda attempt, chance: 0.01), dead_letter_topic=letters)
    send(cluster, b"pay", [])
    with cluster.relay(), consumer, running(consumer, handle):
        cluster.wait_for(1, letters)
        assert run_dead("send-again", letters, "--all", "--yes").exit_code == 0
        wait_until(done.is_set)
    keys = [each.headers["Idempotency-Key"] for each in server.seen]
    assert keys == [f"{cluster.target}-1-0"] * 4  # a retry, one later, and one by hand


def test_a_record_that_is_sent_a_second_time_has_another_key(
    cluster: DelayCluster, serve: Callable[..., Server]
) -> None:
    server = serve(lambda seen: Answer(status=200))
    consumer = consumer_of(cluster)
    send(cluster, b"pay", [])
    send(cluster, b"pay", [])

    with consumer, running(consumer, HttpHandler(post(server))):
        wait_until(lambda: len(server.seen) == 2)
    keys = [each.headers["Idempotency-Key"] for each in server.seen]
    assert sorted(keys) == [f"{cluster.target}-1-0", f"{cluster.target}-1-1"]

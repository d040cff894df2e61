"""Functions and errors of a user's own that do what they should not: no record gets stuck over them."""

from typing import Any

import pytest

from headway import ConsumerRecord, Context, FatalError, ParallelConsumer, Retries
from headway.core.retry import fixed_backoff
from headway.errors import HandlerError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, Member, committed, consumer, send, topic_of, wait_for

pytestmark = pytest.mark.kafka


def fail_once(record: ConsumerRecord, context: Context) -> None:
    if context.attempt == 1:
        raise OSError("not now")


def broken(*_: Any) -> float:
    raise KeyError("a function that fails")


def exiting(*_: Any) -> float:
    raise SystemExit("a function that would end the program")


@pytest.mark.parametrize(
    "retries",
    [Retries(broken), Retries(fixed_backoff(0.01), delay=exiting)],
    ids=["backoff raises", "delay raises SystemExit"],
)
def test_a_record_whose_delay_cannot_be_told_is_tried_again(kafka_cluster: Cluster, retries: Retries) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [("a", "")])
    member = Member(consumer(kafka_cluster, topic, {"retries": retries}, **OFTEN), fail_once)
    try:
        wait_for(lambda: committed(kafka_cluster, topic) == {0: (1, b"")})
    finally:
        member.consumer.close(timeout=1)


def test_a_delay_function_may_ask_the_consumer_how_much_remains(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [("a", "")])
    consumers: list[ParallelConsumer] = []
    retries = Retries(delay=lambda record, attempt, error: 0.01 * consumers[0].work_remaining)
    consumers.append(consumer(kafka_cluster, topic, {"retries": retries}, **OFTEN))
    member = Member(consumers[0], fail_once)
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (1, b"")})
    member.stop()


class UnspeakableError(FatalError):
    """An error whose text cannot be made."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_a_text_ends_the_run_like_any_other(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [("a", "")])

    def refuse(record: ConsumerRecord, context: Context) -> None:
        raise UnspeakableError

    member = Member(consumer(kafka_cluster, topic), refuse)
    try:
        wait_for(lambda: member.error)
    finally:
        member.consumer.close(timeout=1)
    assert isinstance(member.error, HandlerError)

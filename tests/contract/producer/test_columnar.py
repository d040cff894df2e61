"""The producer for the rows of a task: what one sees whose transactional id another attempt has taken over."""

from collections.abc import Callable
from itertools import repeat

import pytest

from headway.broker import LocalBroker
from headway.errors import FencedError
from headway.kafka.admin import Admin
from headway.kafka.producer.columnar import ColumnarProducer, Columns

pytestmark = pytest.mark.kafka


def rows(topic: str, count: int = 100) -> Columns:
    return Columns(count, 10 * count, repeat(topic), ["value"] * count, repeat(None), repeat(-1), None)


def go_on_sending(producer: ColumnarProducer, topic: str) -> None:
    while True:
        producer.send(rows(topic))
        producer.flush()


def mark_and_commit(producer: ColumnarProducer, topic: str) -> None:
    producer.mark(topic, 0, b"k", b"v")
    producer.commit()


STEPS: dict[str, Callable[[ColumnarProducer, str], None]] = {
    "sends": go_on_sending,
    "marks": mark_and_commit,
    "commits": lambda producer, _: producer.commit(),
}


@pytest.mark.parametrize("step", STEPS)
def test_who_is_fenced_off_is_told_so_whatever_it_does_next(
    headway_broker: LocalBroker, headway_topic: str, step: str
) -> None:
    config = {"bootstrap.servers": headway_broker.bootstrap_servers}
    Admin(config).create([headway_topic], 1)
    with ColumnarProducer(config, headway_topic) as first:
        first.send(rows(headway_topic))
        first.flush()
        with ColumnarProducer(config, headway_topic) as second:
            second.send(rows(headway_topic))
            second.commit()
        with pytest.raises(FencedError, match="Another attempt at this task has fenced off"):
            STEPS[step](first, headway_topic)

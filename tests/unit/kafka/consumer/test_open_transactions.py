"""Open transactions in the input are named, and a log that merely ends with a mark costs no question."""

import logging
from typing import Any, cast

import pytest

from headway.kafka.consumer.open_transactions import OpenTransactions
from headway.records.record_types import TopicPartition

ORDERS = TopicPartition("orders", partition=0)
POSITION = 10


class Broker:
    """Answers at once where a partition ends, at each isolation level, and counts the questions."""

    def __init__(self, committed: int, uncommitted: int) -> None:
        self.ends = {"read_committed": committed, "read_uncommitted": uncommitted}
        self.asked = 0

    def ask(self, partition: TopicPartition, place: int, within: float, isolation: str) -> Any:
        self.asked += 1
        return Answered(self.ends[isolation])


class Answered:
    """A question that has its answer."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def answer(self) -> dict[tuple[str, int], int]:
        return {("orders", 0): self._offset}

    def forget(self) -> None:
        pass


def watch(broker: Broker, seconds: int) -> None:
    """The partition stands at its position while its log goes on behind it."""
    transactions = OpenTransactions(cast(Any, broker.ask))
    for now in range(0, seconds, 5):
        transactions.look({ORDERS: POSITION}, lambda partition: broker.ends["read_uncommitted"], float(now))


def test_an_open_transaction_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watch(Broker(committed=POSITION, uncommitted=15), seconds=100)
    told = [message for message in caplog.messages if "Nothing can be read from partition 0 of orders" in message]
    assert len(told) == 2
    assert "from offset 10 on" in told[0]
    assert "The 5 offsets from there to the end of the log can be read only when" in told[0]


def test_a_log_that_ends_with_the_mark_of_a_transaction_is_asked_about_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(committed=11, uncommitted=11)
    with caplog.at_level(logging.WARNING):
        watch(broker, seconds=1000)
    assert broker.asked == 2
    assert caplog.messages == []


def test_a_partition_that_is_read_to_its_end_is_not_asked_about() -> None:
    broker = Broker(committed=POSITION, uncommitted=POSITION)
    watch(broker, seconds=1000)
    assert broker.asked == 0

"""Commits of a query that is not a member of its group, which shows its progress to other tools."""

import confluent_kafka as ck
import pytest

from headway.kafka.consumer.external_commits import ExternalCommits
from headway.records.record_types import TopicPartition
from tests.contract.mock_brokers import MockBrokers, mock_brokers

_OFFSET_COMMIT = 8
_INVALID_COMMIT_OFFSET_SIZE = 28
_REQUEST_TIMED_OUT, _COORDINATOR_LOADS, _NOT_COORDINATOR = 7, 14, 16
ORDERS = TopicPartition("orders", partition=0)
OFFSETS = {ORDERS: 4}


def committed(brokers: MockBrokers) -> int:
    consumer = ck.Consumer({"bootstrap.servers": brokers.bootstrap_servers, "group.id": "shown-0", "log_level": 0})
    [partition] = consumer.committed([ck.TopicPartition("orders-0", 0)], timeout=10)
    consumer.close()
    return partition.offset


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
def test_a_refused_commit_is_sent_again_although_the_query_has_nothing_new(ends: bool) -> None:
    with mock_brokers() as brokers:
        brokers.create("orders-0")
        brokers.refuse(_OFFSET_COMMIT, _INVALID_COMMIT_OFFSET_SIZE, times=1)
        commits = ExternalCommits({"bootstrap.servers": brokers.bootstrap_servers}, "shown")
        commits.commit(OFFSETS)
        if ends:
            commits.finish(OFFSETS)
            assert committed(brokers) == 4
        while committed(brokers) != 4:
            commits.commit(OFFSETS)
        commits.close()


def test_what_is_committed_is_sent_once() -> None:
    with mock_brokers() as brokers:
        brokers.create("orders-0")
        commits = ExternalCommits({"bootstrap.servers": brokers.bootstrap_servers}, "shown")
        brokers.count_requests()
        for _ in range(5):
            commits.finish(OFFSETS)
        brokers.wait_for(_OFFSET_COMMIT, 1)
        brokers.refuse(_OFFSET_COMMIT, _INVALID_COMMIT_OFFSET_SIZE)
        commits.finish(OFFSETS)  # at once, since there is nothing to send
        assert committed(brokers) == 4
        commits.close()


@pytest.mark.parametrize("error", [_COORDINATOR_LOADS, _NOT_COORDINATOR, _REQUEST_TIMED_OUT])
def test_a_commit_that_librdkafka_repeats_does_not_replace_a_later_one(error: int) -> None:
    with mock_brokers() as brokers:
        brokers.create("orders-0")
        commits = ExternalCommits({"bootstrap.servers": brokers.bootstrap_servers}, "shown")
        commits.finish({ORDERS: 1})
        brokers.refuse(_OFFSET_COMMIT, error, times=1)
        commits.commit({ORDERS: 2})
        commits.commit({ORDERS: 3})
        commits.finish({ORDERS: 4})
        commits.close()  # which waits for what librdkafka still repeats
        assert committed(brokers) == 4

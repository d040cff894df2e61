"""librdkafka's statistics become samples, with base units, and the user's own callback still gets them."""

import json
from typing import Any

import pytest

from headway.kafka.binding.statistics import Statistics


def broker(nodeid: int, **fields: Any) -> dict[str, Any]:
    return {"nodename": "kafka:9092", "nodeid": nodeid, "state": "UP", **fields}


STATISTICS = {
    "msg_cnt": 7,
    "msg_size": 700,
    "brokers": {
        "kafka:9092/bootstrap": broker(-1, tx=100),
        "kafka:9092/1": broker(
            1,
            tx=10,
            txerrs=1,
            req_timeouts=2,
            txbytes=1000,
            rxbytes=2000,
            rtt={"avg": 2500},
            throttle={"avg": 40},
        ),
        # The connection to the coordinator, whose statistics are part of the same broker's.
        "GroupCoordinator": broker(1, state="DOWN", tx=5, txbytes=100, rxbytes=10, rtt={"avg": 500}),
    },
    "topics": {
        "orders-0": {
            "topic": "orders-0",
            "batchcnt": {"avg": 25},
            "batchsize": {"avg": 2048},
            "partitions": {"0": {"fetchq_cnt": 3, "fetchq_size": 300}, "1": {"fetchq_cnt": 1, "fetchq_size": 50}},
        },
        "quiet": {"topic": "quiet", "batchcnt": {"avg": 0}, "partitions": {"0": {"fetchq_cnt": 2}}},
    },
    "cgrp": {"rebalance_cnt": 4},
}
CLIENT, BROKER, TOPIC = ("till",), ("till", "kafka:9092"), ("till", "orders-0")
EXPECTED = {
    "librdkafka_broker_up": {BROKER: 1},
    "librdkafka_requests_total": {BROKER: 15},
    "librdkafka_request_errors_total": {BROKER: 1},
    "librdkafka_request_timeouts_total": {BROKER: 2},
    "librdkafka_sent_bytes_total": {BROKER: 1100},
    "librdkafka_received_bytes_total": {BROKER: 2010},
    "librdkafka_round_trip_seconds": {BROKER: 0.0025},
    "librdkafka_throttle_seconds": {BROKER: 0.04},
    "librdkafka_fetch_queue_records": {CLIENT: 6},
    "librdkafka_fetch_queue_bytes": {CLIENT: 350},
    "librdkafka_batch_records": {TOPIC: 25},
    "librdkafka_batch_bytes": {TOPIC: 2048},
    "librdkafka_queued_records": {CLIENT: 7},
    "librdkafka_queued_bytes": {CLIENT: 700},
    "librdkafka_rebalances_total": {CLIENT: 4},
}


def statistics_of(text: str, **settings: Any) -> Statistics:
    statistics = Statistics({"statistics.interval.ms": 1000, **settings})
    statistics.settings["stats_cb"](text)
    return statistics


@pytest.mark.parametrize("name", EXPECTED)
def test_a_metric_has_the_value_of_the_statistics(name: str) -> None:
    samples = statistics_of(json.dumps(STATISTICS)).samples("till")
    assert {each.labels: each.value for each in samples if each.name == f"headway_{name}"} == EXPECTED[name]
    assert {each.name for each in samples} == {f"headway_{each}" for each in EXPECTED}


def test_the_users_callback_gets_them_too() -> None:
    seen: list[str] = []
    statistics_of("{}", stats_cb=seen.append)
    assert seen == ["{}"]


def test_without_an_interval_there_are_none_and_the_client_is_created_as_before() -> None:
    for interval in ({}, {"statistics.interval.ms": 0}, {"statistics.interval.ms": "0"}):
        assert Statistics(interval).settings == {}
        assert Statistics(interval).samples("till") == []


@pytest.mark.parametrize("text", ["", "[]", '{"msg_cnt": "many"}', '{"brokers": {"a": 1}}'])
def test_statistics_of_another_form_are_left_out(text: str) -> None:
    assert statistics_of(text).samples("till") == []

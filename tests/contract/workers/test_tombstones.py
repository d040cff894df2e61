"""Tombstones for typed workers. On librdkafka's mock."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from headway import ConsumerRecord, ProducerRecord, Retries, worker
from headway.testing import MockCluster, run_until_idle


@dataclass
class Order:
    number: int


@pytest.mark.parametrize(("value", "eight"), [(Order | None, Order(8)), (json.loads, {"number": 8})])
def test_a_tombstone_that_is_expected_reaches_the_handler_as_none(value: Any, eight: Any) -> None:
    seen: dict[bytes, Any] = {}

    @worker("orders", group="billing", value=value, retries=Retries(max_attempts=1), dead_letter_topic="orders-dead")
    def bill(record: ConsumerRecord) -> None:
        seen[record.key] = record.value

    with MockCluster() as mock:
        stored = [ProducerRecord("orders", None, "7"), ProducerRecord("orders", b'{"number": 8}', "8")]
        run = run_until_idle(bill, mock.settings, stored)
    assert (seen, run.dead_letters) == ({b"7": None, b"8": eight}, [])

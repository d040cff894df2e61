"""A group's rates follow demand: what some members leave others use, on a real Apache Kafka."""

import time
from typing import Any

import pytest

from headway import ConsumerRecord, Context, Ordering
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import Member, consumer, send, topic_of, wait_for

pytestmark = pytest.mark.kafka

RATE = 40
MEMBERS = 4
MEASURED = 5.0  # seconds
BY_TENANT: dict[str, Any] = {"tenant": "key:/", "tenant_rate_limit": {"flood": RATE, "*": 1000}}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"rate_limit": RATE}, BY_TENANT], ids=["group", "tenant"])
def test_a_rate_is_used_in_full_though_one_partition_has_all_its_records(
    kafka_cluster: Cluster, options: dict[str, Any]
) -> None:
    topic = topic_of(kafka_cluster, MEMBERS)
    times: list[float] = []

    def note(record: ConsumerRecord, context: Context) -> None:
        times.append(time.monotonic())

    members = [
        Member(consumer(kafka_cluster, topic, options | {"ordering": Ordering.UNORDERED}), note) for _ in range(MEMBERS)
    ]
    wait_for(lambda: [len(member.consumer.assignment()) for member in members] == [1] * MEMBERS, 60)
    send(kafka_cluster, topic, [("flood/1", "v")] * 3000, 2)

    def in_last(seconds: float) -> int:
        since = time.monotonic() - seconds
        return sum(at >= since for at in times)

    wait_for(lambda: in_last(2.0) >= 0.95 * RATE * 2.0, 60)
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() >= begin + MEASURED)
    count = sum(begin <= at < begin + MEASURED for at in times)
    for member in members:
        member.stop(drain=False)
    assert count / MEASURED == pytest.approx(RATE, rel=0.05)
    # In no second more than the rate, and of each member one burst: a record, and a twentieth of a second's worth.
    assert max(sum(at <= each < at + 1 for each in times) for at in times) <= RATE + MEMBERS + RATE / 20

"""A consumer gives records as Arrow columns: the records, the order, the positions and the errors of its polls."""

import inspect
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from headway.errors import ConfigError, WakeupError
from headway.priority.async_consumer import AsyncPriorityConsumer
from headway.priority.consumer import PriorityConsumer
from headway.records.record_types import ConsumerRecord
from tests.contract.conftest import LEVELS, PARTITIONS, Cluster

Row = tuple[Any, ...]
COLUMNS = ["key", "value", "topic", "level", "partition", "offset", "timestamp"]
STAMP = 1_767_323_045_678


def fill(cluster: Cluster, topic: str, per_level: int) -> None:
    """Records with and without keys, values, headers and timestamps of their own."""
    with cluster.producer() as producer:
        for number in range(per_level):
            for level in range(LEVELS):
                producer.send(
                    topic,
                    None if number % 5 == 0 else b"%d" % number,
                    None if number % 3 == 0 else b"key",
                    level=level,
                    partition=number % PARTITIONS,
                    headers=[("name", b"value"), ("name", None)] if number % 2 else [],
                    timestamp=STAMP + number,
                )


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    batch.validate(full=True)
    columns = [batch.column(name) for name in COLUMNS]
    columns[-1] = columns[-1].cast(pa.int64())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def row_of(record: ConsumerRecord) -> Row:
    own = record.raw_key, record.raw_value, record.topic, record.level
    return (*own, record.partition, record.offset, record.timestamp)


def read(consume: Callable[[], list[Row]], count: int) -> list[Row]:
    rows: list[Row] = []
    while len(rows) < count:
        found = consume()
        assert found
        rows += found
    return rows


def by_place(rows: list[Row]) -> dict[Row, list[Row]]:
    places: dict[Row, list[Row]] = {}
    for row in rows:
        places.setdefault(row[2:5], []).append(row)
    return places


def test_batches_have_the_records_of_polls_in_the_order_of_each_partition(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 200)
    with cluster.consumer(uuid.uuid4().hex) as polls, cluster.consumer(uuid.uuid4().hex) as batches:
        polls.subscribe(topic)
        batches.subscribe(topic)
        polled = read(lambda: [row_of(record) for record in polls.poll(30)], 200 * LEVELS)
        batched = read(lambda: rows_of(batches.consume_arrow(1_000, 30)), 200 * LEVELS)
    assert by_place(batched) == by_place(polled)


def test_a_batch_may_have_more_records_than_a_poll_and_never_more_than_were_asked_for(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 100)
    with cluster.consumer(topic, **{"max.poll.records": 7}) as consumer:
        consumer.subscribe(topic)
        sizes: list[int] = []
        while sum(sizes) < 100 * LEVELS:
            time.sleep(0.05)
            sizes.append(len(consumer.consume_arrow(50, 30)))
            assert 0 < sizes[-1] <= 50
    assert max(sizes) > 7


def test_a_commit_covers_the_returned_records_and_a_poll_returns_the_next(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 50)
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        first = read(lambda: rows_of(consumer.consume_arrow(1, 30)), 10)
        consumer.commit()
        assert sum(offset or 0 for offset in consumer.committed(consumer.assignment()).values()) == 10
        rest = read(lambda: [row_of(record) for record in consumer.poll(30)], 50 * LEVELS - 10)
        found = by_place(first + rest)
        assert all([row[5] for row in rows] == list(range(len(rows))) for rows in found.values())


def test_headers_are_a_column_on_demand(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 2)
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        found: list[Any] = []
        while len(found) < 2 * LEVELS:
            batch = consumer.consume_arrow(100, 30, headers=True)
            found += zip(batch["value"].to_pylist(), batch["headers"].to_pylist(), strict=True)
    both = [{"key": "name", "value": b"value"}, {"key": "name", "value": None}]
    assert sorted(found, key=str) == sorted([(None, None), (b"1", both)] * LEVELS, key=str)


def test_deserialisers_are_not_used(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        producer.send(topic, b"not JSON", b"k", level=0)
    with cluster.consumer(topic, **{"value.deserializer": json.loads}) as consumer:
        consumer.subscribe(topic)
        assert consumer.consume_arrow(1, 30)["value"].to_pylist() == [b"not JSON"]


def test_a_batch_without_records_has_the_same_columns(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 1)
    with cluster.consumer(topic) as consumer:
        empty = consumer.consume_arrow(10, 0)
        with_headers = consumer.consume_arrow(10, 0, headers=True)
        consumer.subscribe(topic)
        assert empty.num_rows == 0
        assert empty.schema == consumer.consume_arrow(10, 30).schema
        assert with_headers.schema.names == [*COLUMNS, "headers"]


def test_a_wakeup_ends_the_wait_and_costs_no_record(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 1)
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.consume_arrow(10)
        assert len(read(lambda: rows_of(consumer.consume_arrow(10, 30)), LEVELS)) == LEVELS


def test_without_pyarrow_the_error_says_how_to_install_it(
    mock_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.priority.consumer.find_spec", lambda name: None)
    with (
        mock_cluster.consumer("nobody") as consumer,
        pytest.raises(ConfigError, match=r"^consume_arrow needs pyarrow\. Install it: pip install "),
    ):
        consumer.consume_arrow(10, 0)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "5"])
def test_a_number_of_records_that_is_not_at_least_one_is_refused(mock_cluster: Cluster, wrong: Any) -> None:
    with mock_cluster.consumer("nobody") as consumer, pytest.raises(ConfigError, match="max_records is"):
        consumer.consume_arrow(wrong, 0)


async def test_an_awaited_batch_has_the_same_records(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 20)
    async with AsyncPriorityConsumer(cluster.consumer_config(topic)) as consumer:
        consumer.subscribe(topic)
        assert (await consumer.consume_arrow(10, 0)).num_rows == 0
        rows: list[Row] = []
        while len(rows) < 20 * LEVELS:
            rows += rows_of(await consumer.consume_arrow(25, 30))
        await consumer.commit()
    assert {row[3] for row in rows} == set(range(LEVELS))
    assert len(set(rows)) == len(rows) == 20 * LEVELS


def test_the_plain_and_the_awaited_call_take_the_same_arguments() -> None:
    plain, awaited = (inspect.signature(each.consume_arrow) for each in (PriorityConsumer, AsyncPriorityConsumer))
    assert plain == awaited

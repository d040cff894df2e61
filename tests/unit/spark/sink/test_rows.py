"""Arrow batches as records: where each row goes, and what is refused."""

import re
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from headway.errors import DeliveryError
from headway.records.expiry import expiry_header
from headway.spark.sink.digest import RowsDigest
from headway.spark.sink.rows import chunks

PARTITIONS = {"orders": 3, "orders-0": 1, "orders-2": 4}


def rows(batch: pa.RecordBatch, topic: str | None = None) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for chunk in chunks(batch, topic, lambda name: PARTITIONS.get(name, 0)):
        columns = [chunk.topics, chunk.values, chunk.keys, chunk.partitions, *filter(None, [chunk.headers])]
        found += islice(zip(*columns, strict=False), chunk.rows)
    return found


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_row_goes_to_the_topic_of_its_level_and_to_any_partition_if_it_names_none() -> None:
    levels = batch(topic=["orders", "orders"], level=pa.array([0, 2], pa.int8()), value=[b"a", b"b"])
    assert rows(levels) == [("orders-0", b"a", None, -1), ("orders-2", b"b", None, -1)]
    named = batch(value=["a", None], key=["k", None], partition=pa.array([2, None], pa.int32()))
    assert rows(named, topic="orders") == [("orders", "a", "k", 2), ("orders", None, None, -1)]


def test_headers_are_pairs_and_an_empty_list_is_none() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], [], None], kind)
    found = rows(batch(value=[b"x"] * 3, headers=headers), topic="orders")
    assert [row[-1] for row in found] == [[("a", b"1"), ("a", None)], None, None]


def test_large_rows_come_in_small_chunks_and_in_order() -> None:
    large = batch(value=[bytes([number]) * 2**20 for number in range(30)])
    sizes = [chunk.size for chunk in chunks(large, "orders", lambda name: 3)]
    assert max(sizes) <= 9 * 2**20
    assert [value[0] for _, value, _, _ in rows(large, "orders")] == list(range(30))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": ["orders", None]}, "Row 2 of its task has no topic"),
        ({"topic": ["orders", "orders"], "level": pa.array([0, None], pa.int32())}, "Row 2 of its task has no level"),
        (
            {"topic": ["orders", "orders"], "level": [0, 3]},
            "Row 2 of its task is for level 3 of orders, but Kafka has no topic orders-3",
        ),
        ({"topic": ["orders", "odrers"]}, "Row 2 of its task is for 'odrers', but Kafka has no such topic"),
        (
            {"topic": ["orders", "orders"], "partition": [0, 3]},
            "Row 2 of its task is for partition 3 of orders, whose partitions are 0 to 2",
        ),
        (
            {"topic": ["orders-2", "orders"], "partition": [3, -1]},
            "Row 2 of its task is for partition -1 of orders, whose partitions are 0 to 2",
        ),
    ],
)
def test_a_row_without_a_place_is_one_sentence(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DeliveryError, match=sentence):
        rows(batch(value=[b"x", b"y"], **columns))


TOMORROW = datetime(2030, 1, 2, tzinfo=UTC)


def test_a_row_that_expires_has_the_header_that_says_so_and_its_digest_does_not() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "a", "value": b"1"}], None, None], kind)
    expires = pa.array([TOMORROW, TOMORROW, None], pa.timestamp("us", "UTC"))
    found = rows(batch(value=[b"x"] * 3, headers=headers, expires=expires), topic="orders")
    header = expiry_header(round(TOMORROW.timestamp() * 1000))
    assert [row[-1] for row in found] == [[("a", b"1"), header], [header], None]
    digests = [RowsDigest(), RowsDigest()]
    for digest, columns in zip(digests, ({"expires": expires}, {}), strict=True):
        list(chunks(batch(value=[b"x"] * 3, headers=headers, **columns), "orders", lambda name: 3, digest=digest))
    assert digests[0].what == digests[1].what


@pytest.mark.parametrize(
    ("expires", "due", "sentence"),
    [
        (
            datetime(1969, 12, 31, tzinfo=UTC),
            None,
            "Row 2 of its task expires -86400000 ms after 1970; the time must be",
        ),
        (
            TOMORROW,
            TOMORROW,
            "expires 1893542400000 ms after 1970, but is due 1893542400000 ms after 1970, so it would",
        ),
    ],
)
def test_a_row_whose_expiry_cannot_be_is_one_sentence(expires: datetime, due: datetime | None, sentence: str) -> None:
    columns = {
        name: pa.array([None, at], pa.timestamp("us", "UTC")) for name, at in (("expires", expires), ("due", due))
    }
    with pytest.raises(DeliveryError, match=re.escape(sentence)):
        rows(batch(value=[b"x", b"y"], **columns), topic="orders")

"""Odd rows on their way to Kafka: what is wrong with one is a sentence that says which row it is."""

from itertools import islice
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from headway.errors import DeliveryError
from headway.spark.sink.rows import chunks

PARTITIONS = {"orders": 3, "orders-0": 1, "__consumer_offsets": 50}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TEXT_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


def rows(batch: pa.RecordBatch, topic: str | None = "orders", first: int = 0) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for chunk in chunks(batch, topic, lambda name: PARTITIONS.get(name, 0), first=first):
        columns = [chunk.topics, chunk.values, chunk.keys, chunk.partitions, *filter(None, [chunk.headers])]
        found += islice(zip(*columns, strict=False), chunk.rows)
    return found


def batch(**columns: Any) -> pa.RecordBatch:
    rows = max(map(len, columns.values()))
    return pa.RecordBatch.from_pydict({"value": [b"x"] * rows, **columns})


def not_utf8(*values: bytes) -> pa.Array:
    data = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(data), data.buffers())


def headers(name: bytes, value: bytes, kind: pa.DataType = TEXT_HEADERS) -> pa.Array:
    """A row with a good header, and one with these bytes as name and value."""
    pairs = pa.StructArray.from_arrays([not_utf8(b"a", name), not_utf8(b"b", value)], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs)


def test_a_header_that_is_null_is_none_and_names_may_repeat() -> None:
    given = [[None, {"key": "a", "value": b"1"}, None, {"key": "a", "value": None}], [None], [], None]
    found = [row[-1] for row in rows(batch(headers=pa.array(given, HEADERS)))]
    assert found == [[("a", b"1"), ("a", None)], None, None, None]


def test_text_that_is_not_utf8_is_written_as_the_bytes_that_it_is() -> None:
    odd = batch(value=not_utf8(b"a", b"\xff"), key=not_utf8(b"\xed\xa0\x80", b"k"), headers=headers(b"b", b"\xfe"))
    assert rows(odd) == [
        ("orders", "a", b"\xed\xa0\x80", -1, [("a", "b")]),
        ("orders", b"\xff", "k", -1, [("b", b"\xfe")]),
    ]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"headers": pa.array([[], [{"key": None, "value": b"v"}]], HEADERS)}, "has a header whose name is null"),
        ({"headers": pa.array([[], [{"key": "a\0b", "value": b"v"}]], HEADERS)}, "name is 'a.x00b', with a NUL char"),
        ({"headers": headers(b"\xff", b"v")}, "has a header whose name is not UTF-8"),
        ({"topic": ["orders", None]}, "has no topic: it is null"),
        ({"topic": ["orders", ""]}, "is for '', but Kafka has no such topic. This is not a valid name in Kafka"),
        ({"topic": ["orders", "a/b"]}, "is for 'a/b', but Kafka has no such topic. This is not a valid name in Kafka"),
        ({"topic": ["orders", "é" * 300]}, "This is not a valid name in Kafka"),
        ({"topic": ["orders", "__consumer_offsets"]}, "is for __consumer_offsets, which is one of Kafka's internal"),
        ({"topic": ["orders", "a\0"]}, "This is not a valid name in Kafka"),
        ({"topic": not_utf8(b"orders", b"o\xff")}, "but Kafka has no such topic. This is not a valid name in Kafka"),
        ({"topic": ["orders"] * 2, "level": pa.array([0, None], pa.int32())}, "has no level: it is null"),
        ({"topic": ["orders"] * 2, "level": [0, -1]}, "is for level -1, but levels are numbered from 0"),
        ({"topic": ["orders"] * 2, "level": [0, 2**63 - 1]}, "A topic can have at most 1000 levels"),
        ({"topic": ["orders"] * 2, "level": [0, 7]}, "Create it with `headway topics create orders --levels 8`"),
        ({"partition": [0, 2**40]}, "is for partition 1099511627776 of orders, whose partitions are 0 to 2"),
        ({"partition": pa.array([None, -2], pa.int64())}, "is for partition -2 of orders, whose partitions are 0 to 2"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(columns: dict[str, Any], sentence: str) -> None:
    topic = None if "topic" in columns else "orders"
    with pytest.raises(DeliveryError, match=f"^Row 8 of its task .*{sentence}"):
        rows(batch(**columns), topic, first=6)
    with pytest.raises(DeliveryError, match=f"^The row whose identity is 'orders/0/5' .*{sentence}"):
        rows(batch(**columns, identity=["orders/0/4", "orders/0/5"]), topic)
    skipped = batch(**columns, identity=pa.array([1, 22]), skip=[True, None])
    with pytest.raises(DeliveryError, match=f"^The row whose identity is 22 .*{sentence}"):
        rows(skipped, topic)


def test_a_row_without_an_identity_is_named_by_its_place_behind_rows_that_are_skipped() -> None:
    with pytest.raises(DeliveryError, match=r"^Row 3 of its task is for partition 9"):
        rows(batch(partition=[9, 0, 9], skip=[True, False, False]))


def test_an_identity_that_is_null_or_no_utf8_is_a_row_as_any_other() -> None:
    assert rows(batch(value=[b"x"], identity=not_utf8(b"\xff"))) == [("orders", b"x", None, -1)]
    with pytest.raises(DeliveryError, match="Row 2 of its task has no identity"):
        rows(batch(identity=["a", None]))


def test_the_rows_that_a_broker_may_refuse_are_known_for_each_topic() -> None:
    topics = ["orders-0", "orders", "orders", "orders-0"]
    many = batch(value=[b"x", None, b"xyz", b""], topic=topics, key=["k", "k", None, "k"])
    [chunk] = chunks(many, None, lambda name: 3)
    assert chunk.suspects == {
        "orders-0": (1, "Row 1 of its task", None),
        "orders": (3, "Row 3 of its task", "Row 3 of its task"),
    }
    [chunk] = chunks(batch(value=pa.array([None], pa.string())), "orders", lambda name: 3)
    assert chunk.suspects == {"orders": (0, "Row 1 of its task", "Row 1 of its task")}

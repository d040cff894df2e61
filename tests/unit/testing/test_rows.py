"""Rows for tests of handlers on Spark, without a session."""

from datetime import UTC, datetime
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.spark import InputRow
from headway.testing import context, record, row


def charge(order: InputRow, about: Any) -> tuple[str, int]:
    return f"charged {order.value.decode()} of {order.customer}", about.attempt


def test_a_row_of_a_record_has_the_columns_of_the_source_and_what_a_record_has() -> None:
    order = record("book", "a", topic="orders", level=2, partition=1, offset=7, headers=[("kind", b"new")], timestamp=5)
    made = row(order)
    assert (made.key, made.value, made.topic, made.level) == (b"a", b"book", "orders", 2)
    assert (made.partition, made.offset, made.timestamp) == (1, 7, datetime.fromtimestamp(0.005, UTC))
    assert dict(made.headers) == {"kind": b"new"}
    assert (made.kafka_topic, made.origin, made.raw_key, made.raw_value) == ("orders-2", order.origin, b"a", b"book")
    assert row(record("book")).headers is None
    assert row(record("book", topic="orders")).kafka_topic == "orders"


def test_a_handler_is_called_with_a_row_as_the_function_that_it_is() -> None:
    assert charge(row(record("book"), customer="Ada"), context(2)) == ("charged book of Ada", 2)


def test_further_columns_come_as_they_are_and_a_missing_one_is_named() -> None:
    made = row(key="a", amounts={"net": 1.5})
    assert (made.key, made["amounts"], made.asDict()) == ("a", {"net": 1.5}, {"key": "a", "amounts": {"net": 1.5}})
    with pytest.raises(AttributeError, match=r"no column `amount`. It has key, amounts\."):
        _ = made.amount
    assert row(record("book", "a"), key="b").key == "b"


def test_what_is_no_record_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"The record is 'book'; make it with headway\.testing\.record"):
        row("book")  # type: ignore[arg-type]

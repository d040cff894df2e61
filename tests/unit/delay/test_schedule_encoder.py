"""Schedules as they are encoded, without a client."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.delay.schedule import read_schedule
from headway.core.outgoing_record import OutgoingRecord
from headway.core.untrusted import LATEST
from headway.delay.limits import MOST_BYTES
from headway.delay.schedule_encoder import ScheduleEncoder, check_size
from headway.delay.topic_names import TopicNames
from headway.errors import ConfigError, DeliveryError, SerializationError

TIMES = st.integers(0, LATEST)
HEADERS = st.lists(st.tuples(st.text("abc", min_size=1), st.none() | st.binary(max_size=9)), max_size=3)


@given(
    key=st.none() | st.binary(max_size=9),
    value=st.none() | st.binary(max_size=9),
    due=TIMES,
    at=TIMES,
    headers=HEADERS,
    level=st.none() | st.integers(0, 9),
    partition=st.none() | st.integers(0, 2**31 - 1),
    id_=st.none() | st.text("xyz:", min_size=1, max_size=250),
)
def test_what_is_encoded_is_read_again(
    key: bytes | None,
    value: bytes | None,
    due: int,
    at: int,
    headers: list[Any],
    level: int | None,
    partition: int | None,
    id_: str | None,
) -> None:
    encoder = ScheduleEncoder(TopicNames("delay"), None, None)
    first = encoder.encode(key, value, "orders", due, at, headers, level, partition, id_)
    second = encoder.encode(key, value, "orders", due, at, headers, level, partition, id_)
    for order, (schedule, written, under, fields) in enumerate((first, second)):
        assert (written, under, fields[:-1]) == (value, key, headers)
        assert read_schedule(fields[-1][1]) == schedule
        assert (schedule.due, schedule.at, schedule.order, schedule.partition) == (due, at, order, partition)
        assert schedule.topic == ("orders" if level is None else f"orders-{level}")
    assert (first[0].id == second[0].id == f"id:{id_}") if id_ is not None else first[0].id != second[0].id


def test_a_clock_that_is_corrected_by_a_little_keeps_the_order_of_records() -> None:
    encoder = ScheduleEncoder(TopicNames("delay"), None, None)

    def scheduled(at: int) -> tuple[int, int]:
        schedule, *_ = encoder.encode(b"k", b"v", "orders", 9_000_000, at)
        return schedule.at, schedule.order

    steps = [1_000_000, 1_000_003, 1_000_001, 1_000_002, 1_000_004, 999_900, 1_000_004]
    found = [scheduled(at) for at in steps]
    assert found == sorted(found)
    assert max(at for at, _ in found) == max(steps)
    assert scheduled(900_000)[0] == 900_000  # a clock that was set back is followed
    assert scheduled(900_001)[0] == 900_001


def test_a_target_is_refused_each_time_and_one_that_was_checked_is_not_looked_at_again() -> None:
    encoder = ScheduleEncoder(TopicNames("delay"), None, None)
    for _ in range(2):
        for topic in ("delay.state", "no topic", ["orders"], None):
            with pytest.raises(ConfigError):
                encoder.encode(b"k", b"v", topic, 5, 1)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="beyond the year 9999"):
            encoder.encode(b"k", b"v", "orders", 10**15, 1)
        with pytest.raises(ConfigError, match="The partition is -1"):
            encoder.encode(b"k", b"v", "orders", 5, 1, None, None, -1)
        with pytest.raises(SerializationError):
            encoder.encode(b"k", b"v", "orders", 5, 1, [("\0", b"v")])
        encoder.encode(b"k", b"v", "orders", 5, 1)
    for number in range(2_500):  # as many as are remembered, twice
        encoder.encode(b"k", b"v", f"orders-{number}", 5, 1)
    with pytest.raises(ConfigError):
        encoder.encode(b"k", b"v", "delay.state", 5, 1)


@pytest.mark.parametrize("value", [bytes(MOST_BYTES - 3), "ü" * ((MOST_BYTES - 3) // 2)])
def test_a_record_that_relays_could_not_move_is_refused(value: Any) -> None:
    check_size(OutgoingRecord("delay.line-0", value, "k", headers=[("h", b"")]))
    with pytest.raises(DeliveryError, match="relays can move at most 2031616"):
        check_size(OutgoingRecord("delay.line-0", value, b"key", headers=[("h", b"12")]))

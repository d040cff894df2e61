"""The flights of the demo as records."""

import json
from collections import Counter

import pytest

from demo.flights import COUNT, FlightRecord, disruption_level, flight_record, records

ROW = {
    "year": "2013",
    "month": "1",
    "day": "1",
    "sched_dep_time": "515",
    "dep_delay": "2",
    "arr_delay": "11",
    "carrier": "UA",
    "flight": "1545",
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": "227",
    "distance": "1400",
    "time_hour": "2013-01-01T10:00:00Z",
}


@pytest.mark.parametrize(
    ("dep_delay", "arr_delay", "level"),
    [(0, 15, 0), (0, 16, 1), (0, 60, 1), (0, 61, 2), (90, -5, 0), (None, None, 2), (61, None, 2), (15, None, 0)],
)
def test_the_level_follows_the_delay_at_arrival_or_else_at_departure(
    dep_delay: int | None, arr_delay: int | None, level: int
) -> None:
    assert disruption_level(dep_delay, arr_delay) == level


def test_a_flight_becomes_a_record_with_its_tail_number_as_key() -> None:
    record = flight_record(ROW)
    assert (record.key, record.level) == (b"N14228", 0)
    value = json.loads(record.value)
    assert (value["carrier"], value["flight"], value["arr_delay"]) == ("UA", 1545, 11)


def test_what_is_not_known_is_null() -> None:
    record = flight_record(ROW | {"tailnum": "NA", "dep_delay": "NA", "arr_delay": "NA", "air_time": "NA"})
    assert (record.key, record.level) == (None, 2)
    value = json.loads(record.value)
    assert (value["tailnum"], value["dep_delay"], value["air_time"]) == (None, None, None)


@pytest.mark.slow
def test_all_flights_of_the_year_are_there_once_with_the_counts_of_their_levels() -> None:
    flights = list(records())
    assert len(flights) == COUNT
    identities = {(value["carrier"], value["flight"], value["time_hour"]) for value in map(_value, flights)}
    assert len(identities) == COUNT
    assert Counter(record.level for record in flights) == {0: 250_405, 1: 50_075, 2: 36_296}


def test_flights_come_in_the_order_of_their_scheduled_departures_and_a_limit_takes_the_first() -> None:
    first = list(records(10_000))
    scheduled = [(value["month"], value["day"], value["sched_dep_time"]) for value in map(_value, first)]
    assert scheduled == sorted(scheduled)
    assert list(records(100)) == first[:100]


def _value(record: FlightRecord) -> dict[str, int | str | None]:
    return json.loads(record.value)  # type: ignore[no-any-return]

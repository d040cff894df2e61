"""Writes the records of one partition, starting at an offset, without a group."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import methodcaller
from typing import IO

import click

from headway.cli.display.streams import silence
from headway.cli.display.terminal import count
from headway.cli.options.due_times import Moment
from headway.cli.options.topic_choice import TopicChoice
from headway.cli.records.record_lines import Encode
from headway.core.levels.naming import level_topic
from headway.errors import ConfigError
from headway.kafka.reading.catalog import Catalog
from headway.kafka.reading.range_reader import Range, RangeReader, fetched_ahead, name_of
from headway.kafka.reading.topic_naming import PlainPartition, TopicNaming
from headway.records.record_types import ConsumerRecord, RecordSource, TopicPartition
from headway.settings.config import Config

_key, _value = methodcaller("key"), methodcaller("value")


@dataclass(frozen=True, slots=True)
class OnePartition:
    """A partition, the offset or time to start at, and how many records to write at most."""

    partition: int
    level: int | None
    begin: str | None
    limit: int | None

    def write(self, config: Config, topics: TopicChoice, file: IO[bytes], encode: Encode) -> str:
        """Write the records up to the current end of the partition, and return a summary.

        Raises `ConfigError` for a partition or an offset that does not exist.
        """
        at = self._partition(topics)
        catalog = Catalog(config)
        _require(catalog, at, topics)
        first, end = catalog.starts([at])[at], catalog.ends([at])[at]
        start = self._start(catalog, at, first, end)
        written = 0
        try:
            for record in _records(config, Range(at, start, end)) if start < end else ():
                file.write(encode(record))
                written += 1
                if written == self.limit:
                    break
            file.flush()
        except BrokenPipeError:
            silence(file.fileno())
        done = f"{count(written, 'record')} written, from offset {start:,} on"
        return f"{done}; the partition holds offsets from {first:,} to before {end:,}; nothing was committed"

    def _partition(self, topics: TopicChoice) -> TopicPartition:
        if len(topics.names) != 1 or topics.names[0].startswith("^"):
            raise click.UsageError("--partition reads a partition of one topic. Name only one topic.")
        [name] = topics.names
        if topics.priorities is not None:
            if self.level not in (None, own := topics.priorities[name]):
                raise ConfigError(f"The topic {name} has no levels. Leave out --level.")
            return PlainPartition(name, partition=self.partition, level=own)
        if self.level is None and topics.levels > 1:
            raise click.UsageError(f"{name} has {topics.levels} levels. Choose one with --level.")
        level = self.level or 0
        if level >= topics.levels:
            raise ConfigError(f"The topic {name} has no level {level}, only 0 to {topics.levels - 1}.")
        return TopicPartition(name, partition=self.partition, level=level)

    def _start(self, catalog: Catalog, at: TopicPartition, first: int, end: int) -> int:
        if self.begin is None:
            return first
        if not self.begin.isdecimal():
            return catalog.at(max(0, Moment().convert(self.begin, None, None)), [at])[at]
        start = int(self.begin[:20])
        if not first <= start <= end:
            raise ConfigError(
                f"The offset {start} is not in {name_of(at)}. Choose an offset from {first} to {end}, the end."
            )
        return start


def _require(catalog: Catalog, at: TopicPartition, topics: TopicChoice) -> None:
    naming = TopicNaming(topics.levels if topics.priorities is None else None, topics.priorities or {})
    there = {each for each in catalog.find([at.topic], naming).partitions if each.level == at.level}
    if at not in there:
        raise ConfigError(f"There is no {name_of(at)}: the topic has {count(len(there), 'partition')}, counted from 0.")


def _records(config: Config, wanted: Range) -> Iterator[ConsumerRecord]:
    at = wanted.partition
    suffix = "" if isinstance(at, PlainPartition) else level_topic("", at.level)
    source = RecordSource(at.level, suffix, _key, _value)
    with RangeReader({**fetched_ahead([wanted]), **_without_group(config)}) as reader:
        for _, messages in reader.read([wanted]):
            for message in messages:
                yield ConsumerRecord(message, source, message.value())


def _without_group(config: Config) -> Config:
    """Return the settings without `group.id`, which the reader sets itself."""
    return {name: value for name, value in config.items() if name != "group.id"}

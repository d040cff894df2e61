"""Encodes offsets as JSON for Spark's checkpoint, and decodes them from there and from the option `startingOffsets`.

With levels, offsets are nested by topic, level and partition. Without levels, they are nested by topic and partition,
as in Spark's Kafka source. The JSON does not contain the priority of a topic, so priorities can change when a query is
restarted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.kafka.reading.range_reader import Offsets
from headway.kafka.reading.topic_naming import PlainPartition, TopicNaming
from headway.records.record_types import TopicPartition

OffsetJson = Mapping[str, Mapping[str, Any]]


def to_json(offsets: Offsets) -> OffsetJson:
    """Encode offsets as JSON. They are sorted, because Spark compares the text.

    >>> to_json({TopicPartition("orders", partition=0, level=1): 7, TopicPartition("orders", partition=0): 5})
    {'orders': {'0': {'0': 5}, '1': {'0': 7}}}
    >>> to_json({PlainPartition("clicks", partition=0, level=1): 7})
    {'clicks': {'0': 7}}
    """
    form: dict[str, dict[str, Any]] = {}
    for at in sorted(offsets, key=lambda at: (at.topic, at.level, at.partition)):
        by_partition = form.setdefault(at.topic, {})
        if not isinstance(at, PlainPartition):
            by_partition = by_partition.setdefault(str(at.level), {})
        by_partition[str(at.partition)] = offsets[at]
    return form


def from_json(form: OffsetJson, naming: TopicNaming) -> dict[TopicPartition, Any]:
    """Decode the value for each partition from JSON. Raises `AttributeError` or `ValueError` for malformed JSON."""
    return {
        naming.partition(topic, int(partition), int(level)): offset
        for topic, level, partition, offset in _entries(form, naming)
    }


def _entries(form: OffsetJson, naming: TopicNaming) -> Iterator[tuple[str, str, str, Any]]:
    for topic, found in form.items():
        for level, partitions in ({"0": found} if naming.levels is None else found).items():
            for partition, offset in partitions.items():
                yield topic, level, partition, offset

"""Detects offsets that Kafka no longer has, when a micro-batch is planned."""

from typing import NamedTuple

from headway.kafka.reading.range_reader import Offsets, Range, name_of, no_longer_holds
from headway.records.record_types import TopicPartition
from headway.spark.source.stream_offset import StreamOffset


class Bridged(NamedTuple):
    """The offset at which reading resumes in each existing partition, and a sentence for each loss."""

    start: Offsets
    losses: list[str]


def bridge(begin: StreamOffset, seen: StreamOffset, first: Offsets) -> Bridged:
    """Resume from `begin` in the partitions of `seen`, which hold offsets from `first` on.

    A partition that is not in `begin` is new, and starts at its first offset.

    >>> at = TopicPartition("orders", partition=0)
    >>> bridge(StreamOffset({at: 5}, {}), StreamOffset({at: 9}, {}), {at: 0})
    Bridged(start={TopicPartition(topic='orders', partition=0, level=0): 5}, losses=[])
    >>> print(*bridge(StreamOffset({at: 5}, {}), StreamOffset({at: 9}, {}), {at: 7}).losses)
    Partition 0 of the Kafka topic orders-0 no longer holds all offsets from 5 to before 9 (it begins at 7).
    """
    losses = [_gone(at) for at in begin.offsets if at not in seen.offsets]
    start: Offsets = {}
    for at, end in seen.offsets.items():
        reached = begin.offsets.get(at, first[at])
        if end < reached and begin.is_surely_same_topic(seen, at):
            losses.append(_lost_its_end(at, reached, end))
            start[at] = end
            continue
        loss = _loss(at, reached, begin, seen, first[at])
        losses += [loss] if loss else []
        start[at] = min(end, first[at] if loss else reached)
    return Bridged(start, losses)


def _lost_its_end(at: TopicPartition, reached: int, end: int) -> str:
    return (
        f"The query has read {name_of(at)} up to offset {reached}, but Kafka only holds offsets before {end}: a broker "
        "that did not have the last records became its leader, so they are lost."
    )


def _loss(at: TopicPartition, reached: int, begin: StreamOffset, seen: StreamOffset, first: int) -> str | None:
    end = seen.offsets[at]
    if not begin.same_topic(seen, at) or end < reached:
        return (
            f"The query has read {name_of(at)} up to offset {reached}, but the topic was deleted and recreated: it now "
            f"holds offsets from {first} to before {end}."
        )
    if reached < first:
        return no_longer_holds(Range(at, reached, end), f"it begins at {first}")
    return None


def _gone(at: TopicPartition) -> str:
    return f"The query has read {name_of(at)}, but it no longer exists, or the options no longer name it or its level."

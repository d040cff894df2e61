"""Reads the records between given offsets, and commits the offsets at which a new group will begin."""

from collections.abc import Iterator, Mapping

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.kafka.binding.factory import make_client
from headway.kafka.reading.unjoined_consumer import UnjoinedConsumer, unjoined_consumer
from headway.records.record_types import Message
from headway.settings.config import Config

_AWAITED_FOR = 1.0  # seconds


def commit_starts(config: Config, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit the offsets at which a group that has no members yet will begin."""
    client = make_client(cimpl.Consumer, {"log_level": 2, **config, "group.id": group, "enable.auto.commit": False})
    try:
        client.commit(
            offsets=[ck.TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False
        )
    finally:
        client.close()


def read_between(
    config: Config, starts: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]
) -> Iterator[Message]:
    """Yield the readable records between the given offsets, one partition after the other.

    The record at the end offset is not included.
    """
    client = unjoined_consumer(
        {
            "log_level": 2,
            "fetch.wait.max.ms": 10,
            **config,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        for place, end in sorted(ends.items()):
            if starts.get(place, 0) < end:
                yield from _read(client, place, starts.get(place, 0), end)
    finally:
        client.close()


def _read(client: UnjoinedConsumer, place: tuple[str, int], start: int, end: int) -> Iterator[Message]:
    client.assign([ck.TopicPartition(*place, start)])
    while start < end:
        for message in client.take(500, _AWAITED_FOR):
            if message.error() is not None:
                return  # the end of the partition was reached, so only transaction markers follow
            start = (message.offset() or 0) + 1
            yield message

"""Formats a snapshot as JSON."""

from dataclasses import asdict
from typing import Any

from headway.cli.records.record_lines import text_or_base64
from headway.core.offsets.offset_map import OffsetMap
from headway.inspection.snapshot import LevelStatus, PartitionStatus, Snapshot, StuckRecord


def describe_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as an object for JSON. Keys that are not UTF-8 are in Base64, as `key_base64`."""
    return {
        "taken_at": snapshot.taken_at,
        "queues": [
            {
                "topic": queue.topic,
                "group": queue.group,
                "not_done": queue.not_done,
                "handler_seconds": queue.handler_seconds,
                "levels": [*map(_level, queue.levels)],
            }
            for queue in snapshot.queues
        ],
        "members": [*map(asdict, snapshot.members)],
        "dead_letters": [*map(asdict, snapshot.dead_letters)],
        "schedulers": [*map(asdict, snapshot.schedulers)],
        "tenants": [*map(asdict, snapshot.tenants)],
        "handlers": [*map(asdict, snapshot.handlers)],
        "rules": [*map(asdict, snapshot.rules)],
        "changes": [*map(asdict, snapshot.changes)],
        "notes": snapshot.notes,
        "requests_per_second": snapshot.requests_per_second,
    }


def _level(level: LevelStatus) -> dict[str, Any]:
    return {
        "level": level.level,
        "kafka_topic": level.kafka_topic,
        "group": level.group,
        "not_done": level.not_done,
        "oldest_seconds": level.oldest_seconds,
        "arrived_per_second": level.arrived_per_second,
        "done_per_second": level.done_per_second,
        "seconds_of_work": level.seconds_of_work,
        "queue_seconds": level.queue_seconds,
        "partitions": [*map(_partition, level.partitions)],
    }


def _partition(partition: PartitionStatus) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "log_start": partition.log_start,
        "log_end": partition.log_end,
        "committed": partition.committed,
        "not_done": partition.not_done,
        "deleted": partition.deleted,
        "incomplete": _ranges(partition.offset_map),
        "failed": [{"offset": offset, **each._asdict()} for offset, each in partition.tried.items()],
        "reason": partition.reason,
        "member": partition.member,
        "since": partition.since,
        "oldest": partition.oldest,
        "moved": partition.moved,
        "stuck": partition.stuck and _stuck(partition.stuck),
    }


def _ranges(offset_map: OffsetMap) -> list[dict[str, int]]:
    """Return the ranges that are not done, as `headway offsets show --json` does."""
    return [{"start": each.start, "end": each.stop} for each in offset_map.incomplete]


def _stuck(record: StuckRecord) -> dict[str, Any]:
    described = asdict(record)
    del described["key"]
    headers = [{"name": name, **text_or_base64("value", value)} for name, value in record.headers]
    return described | text_or_base64("key", record.key) | {"headers": headers}

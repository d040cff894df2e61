"""Creates a topic with its levels, as `headway topics create` does."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from headway.core.levels.naming import MOST_LEVELS, how_to_create, is_topic_name, level_topic
from headway.declarations import check_kind, check_whole, is_whole, shown
from headway.errors import ConfigError, KafkaError
from headway.kafka.admin import Admin
from headway.settings.config import Config

KEPT_FOR: Final = timedelta(days=30)
"""How long a topic keeps its records by default.

Kafka deletes a record by its age, whether or not it was handled, and its own default is seven days: a worker that
stands still over a holiday would lose work.
"""

_RETENTION = "retention.ms"
_FOREVER = "-1"
_LEAST_RETENTION = timedelta(milliseconds=1)
_MOST_RETENTION = timedelta(days=36_500)


def create_topic(
    settings: Config,
    topic: str,
    *,
    levels: int | None = None,
    partitions: int = 1,
    replication_factor: int | None = None,
    retention: timedelta | None = KEPT_FOR,
    config: Mapping[str, str] | None = None,
    exist_ok: bool = False,
) -> list[str]:
    """Create a topic: one Kafka topic for each level, or a single one; wait until the brokers know it.

    Args:
        settings: Where Kafka is, as for every client.
        topic: The name; without levels, the Kafka topic has exactly this name.
        levels: The number of levels; by default the topic has none.
        partitions: The number of partitions of each level.
        replication_factor: The number of copies of each partition; by default the broker decides.
        retention: How long Kafka keeps a record, handled or not; None means as long as the disks have space.
        config: Other settings of the topics, such as {"segment.bytes": "104857600"}; a `retention.ms` in it overrides
            `retention`.
        exist_ok: Whether to create only the topics that are missing, and leave the others as they are. Then every
            process of a service can call this when it starts.

    Returns the names of the Kafka topics. Raises `ConfigError` for an argument out of bounds, and `KafkaError` if one
    of the topics exists already or Kafka refuses.
    """
    if levels is not None and (not is_whole(levels) or not 1 <= levels <= MOST_LEVELS):
        raise ConfigError(f"levels is {shown(levels)}; it must be a whole number from 1 to {MOST_LEVELS}, or left out.")
    check_whole("partitions", partitions, 1)
    if replication_factor is not None:
        check_whole("replication_factor", replication_factor, 1)
    names = [topic] if levels is None else [level_topic(topic, level) for level in range(levels)]
    if not all(map(is_topic_name, names)):
        raise ConfigError(f"The topic is {shown(topic)}. {how_to_create('')}")
    if retention is not None:
        check_kind(
            "retention", retention, timedelta, "a timedelta, such as timedelta(days=30), or None to keep all records"
        )
    if retention is not None and not _LEAST_RETENTION <= retention <= _MOST_RETENTION:
        raise ConfigError(f"retention is {retention}; it must be from a millisecond to 100 years, or None.")
    kept = _FOREVER if retention is None else str(retention // _LEAST_RETENTION)
    admin = Admin(settings)
    existing = admin.topics() if exist_ok else ()
    wanted = [name for name in names if name not in existing]
    try:
        if wanted:
            admin.create(wanted, partitions, replication_factor, {_RETENTION: kept, **(config or {})})
    except KafkaError:
        if not exist_ok or not all(
            map(admin.topics().__contains__, names)
        ):  # unless another process has just created them
            raise
    return names

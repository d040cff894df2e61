"""Creates a topic with its levels, as the command `headway topics create` does."""

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

Kafka deletes records by age, whether or not they were handled. With Kafka's own default of seven days, records would be
lost if the workers are stopped over a holiday.
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
    """Create a topic as one Kafka topic for each level, or as a single one, and wait until the brokers list it.

    Args:
        settings: The settings of a client, such as bootstrap.servers.
        topic: The name. Without levels, the Kafka topic has exactly this name.
        levels: The number of priority levels. By default the topic has no levels.
        partitions: The number of partitions of each level.
        replication_factor: The number of replicas of each partition. By default the brokers decide.
        retention: The time after which Kafka deletes a record, whether or not it was handled. None means that Kafka
            never deletes records.
        config: Other settings of the topics, such as {"segment.bytes": "104857600"}. A `retention.ms` among them
            overrides `retention`.
        exist_ok: Whether existing topics are accepted. If True, only missing topics are created, and existing topics
            stay unchanged. So every process of a service can call this function when it starts.

    Returns the names of the Kafka topics. Raises `ConfigError` for an argument outside its allowed range, and
    `KafkaError` if one of the topics already exists or Kafka refuses to create it.
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
        raise ConfigError(f"retention is {retention}; it must be from 1 millisecond to 100 years, or None.")
    kept = _FOREVER if retention is None else str(retention // _LEAST_RETENTION)
    admin = Admin(settings)
    existing = admin.topics(named=names) if exist_ok else ()
    wanted = [name for name in names if name not in existing]
    try:
        if wanted:
            admin.create(wanted, partitions, replication_factor, {_RETENTION: kept, **(config or {})})
    except KafkaError:
        # Another process may have created the missing topics at this moment.
        if not exist_ok or len(admin.topics(named=names).look_up(names)) < len(names):
            raise
    return names

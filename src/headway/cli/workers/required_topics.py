"""Checks that all topics of the workers exist in Kafka, before any worker starts."""

from collections.abc import Mapping

from headway.cli.options.kafka_options import ConnectionSettings
from headway.cli.options.logical_topics import count_levels, near_topic, require_levels
from headway.core.levels.naming import how_to_create, level_topic
from headway.errors import ConfigError
from headway.kafka.admin import Admin
from headway.kafka.topic_listing import TopicListing
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of
from headway.workers.worker import Worker


def list_topics(workers: Mapping[str, Worker], connection: ConnectionSettings) -> dict[str, TopicListing]:
    """Return Kafka's topics for each worker, requested with the connection settings that the worker declares.

    Workers with the same settings share one request. Raises `KafkaError` if no broker answers.
    """
    seen: list[tuple[Config, TopicListing]] = []
    found: dict[str, TopicListing] = {}
    for name, worker in workers.items():
        config = connection_of({**worker.config, **connection.over(worker.config)})
        topics = next((topics for known, topics in seen if known == config), None)
        if topics is None:
            topics = Admin(config).topics("Read")  # all topics, for the number of levels and for similar names
            seen.append((config, topics))
        found[name] = topics
    return found


def require_topics(workers: Mapping[str, Worker], kafka_topics: Mapping[str, Mapping[str, int]]) -> None:
    """Raise `ConfigError` if a topic is missing, or if two workers would share the records of a topic.

    The message explains how to create a missing topic. `kafka_topics` are the topics that each worker can see.
    """
    for name, worker in workers.items():
        there = kafka_topics[name]
        for topic in worker.topics:
            _require(name, worker, topic, there)
        written = there.wanting("Write") if isinstance(there, TopicListing) else there
        letters = [] if worker.options.dead_letter_topic is None else [worker.options.dead_letter_topic]
        targets = [(each, "dead letters") for each in letters] + [(each, "outputs") for each in worker.produces]
        for topic, what in targets:
            if not topic.endswith("*") and topic not in written:
                hint = f"{near_topic(topic, written)}{how_to_create(topic)}"
                raise ConfigError(f"Kafka has no topic {topic}, where {what} of {name} go. {hint}")
    _require_own_records(workers)


def _require(name: str, worker: Worker, topic: str, kafka_topics: Mapping[str, int]) -> None:
    if topic.startswith("^"):
        return
    if worker.levels is not None and not isinstance(worker.topics, Mapping):
        found = count_levels(topic, kafka_topics, worker.levels)
        if 0 < found < worker.levels:
            missing, partitions = level_topic(topic, found), kafka_topics[level_topic(topic, 0)]
            raise ConfigError(
                f"{name} declares levels={worker.levels}, but {topic} has {found} levels in Kafka: {missing} is "
                f"missing. Declare levels={found}, or run `headway topics create {missing} --partitions {partitions}`."
            )
        require_levels(topic, kafka_topics, worker.levels)
    elif topic not in kafka_topics:
        levels = count_levels(topic, dict(kafka_topics))
        if levels:
            advice = f"There are topics for {levels} levels of {topic}. Declare levels={levels}."
        else:
            advice = f"{near_topic(topic, kafka_topics)}{how_to_create(topic)}"
        raise ConfigError(f"Kafka has no topic {topic}, which {name} reads. {advice}")


def _require_own_records(workers: Mapping[str, Worker]) -> None:
    readers: dict[tuple[str, str], str] = {}
    for name, worker in workers.items():
        for topic in worker.kafka_topics():
            other = readers.setdefault((worker.group, topic), name)
            if other != name:
                raise ConfigError(
                    f"{other} and {name} both read {topic} in the group {worker.group}, so each record would go "
                    "to only one of them. Give each worker its own group."
                )

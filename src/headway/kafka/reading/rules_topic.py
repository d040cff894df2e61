"""Reads the topic in which the rules of all groups are stored, and its changes."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from headway.core.rules.rule import RULES_TOPIC
from headway.errors import KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.missing_permissions import why_not_readable
from headway.kafka.reading.compacted import TopicReader
from headway.kafka.reading.tail import Tail
from headway.settings.config import Config

_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}


class StoredRules(NamedTuple):
    """The value of each stored rule by its key, and the offset of the next change."""

    values: Mapping[str, bytes]
    end: int


def create_rules_topic(admin: Admin) -> None:
    """Create the topic if it does not exist. Raises `KafkaError` if this is refused."""
    if RULES_TOPIC in admin.topics("Read"):
        return
    try:
        admin.create([RULES_TOPIC], 1, config=_COMPACTED)
    except KafkaError:
        # Another process may have created the topic in the meantime.
        if RULES_TOPIC not in admin.topics("Read"):
            raise


def read_rules(config: Config, is_over: Callable[[], bool]) -> StoredRules:
    """Read all rules. Raises `KafkaError` if this is not possible, or if `is_over` returns True."""
    with TopicReader(config) as reader:
        create_rules_topic(reader.admin)
        end = reader.bounds().ends([(RULES_TOPIC, 0)])[RULES_TOPIC, 0]
        values = reader.compacted(RULES_TOPIC, [0], BROKER_ANSWERS_WITHIN, is_over=is_over)[0]
    return StoredRules(values, end)


class RuleChanges:
    """Reads the changes of rules from an offset on. Raises `KafkaError` if the topic cannot be read."""

    def __init__(self, config: Config, start: int) -> None:
        self._config = config
        self._tail = Tail({**config, "auto.offset.reset": "earliest"}, RULES_TOPIC, 0, start)

    def take(self) -> tuple[str, bytes | None] | None:
        """Return the key and the value of the next change, or None if nothing arrives at once.

        The value is None if a rule was ended. Raises `AuthorizationError` if this client may no longer read the topic.
        """
        message = self._tail.take()
        if message is None:
            return None
        if (error := message.error()) is not None:
            if missing := why_not_readable(error, RULES_TOPIC, self._config):
                raise missing
            return None  # librdkafka tries again
        return (message.key() or b"").decode(errors="replace"), message.value()

    def close(self) -> None:
        """Close the connections."""
        self._tail.close()

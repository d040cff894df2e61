"""Reports subscribed topics that do not exist.

In a classic group, librdkafka itself reports them. In a group of KIP-848, the brokers do not report them, so a member
with a misspelt topic would wait silently.
"""

import contextlib
from collections.abc import Callable, Collection

from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.runtime.background import in_background
from headway.settings.config import Config, settings_beside

_BROKERS_ANSWER_WITHIN = 30.0


def look_for_missing(topics: Collection[str], config: Config, tell: Callable[[str], None]) -> None:
    """In a background thread, call `tell` with each subscribed topic that does not exist.

    Patterns are not checked. If no broker answers, or the client is not permitted to see a topic, `tell` is not called,
    because the member reports such problems itself.
    """
    named = [topic for topic in topics if not topic.startswith("^")]

    def look() -> None:
        with contextlib.suppress(HeadwayError):
            there = Admin(settings_beside(config), _BROKERS_ANSWER_WITHIN).topics("Read").look_up(named)
            for topic in named:
                if topic not in there:
                    tell(topic)

    in_background(look)


def missing_topic(kafka_topic: str | None) -> str:
    """Return the sentence about a subscribed topic that does not exist."""
    return (
        f"Kafka has no topic {kafka_topic}. It will be read as soon as it is created. Check its name: `headway topics "
        "list` shows all topics."
    )


def deleted_topic(kafka_topic: str) -> str:
    """Return the sentence about a topic that was deleted while it was being read."""
    return (
        f"The topic {kafka_topic} was deleted, together with all records that had not been read. If it is created "
        f"again, for example with `headway topics create {kafka_topic}`, it is read from its beginning."
    )

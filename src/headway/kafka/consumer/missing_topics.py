"""A check for subscribed topics that do not exist.

In a classic group librdkafka checks that itself. In a group of KIP-848 the brokers do not report it, and a member would
wait for a misspelt topic in silence.
"""

import contextlib
from collections.abc import Callable, Collection

from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.runtime.background import in_background
from headway.settings.config import Config, settings_beside

_BROKERS_ANSWER_WITHIN = 30.0


def look_for_missing(topics: Collection[str], config: Config, tell: Callable[[str], None]) -> None:
    """Call `tell` with each topic that does not exist, in a separate thread, and return at once.

    Patterns are skipped. If no broker answers, or the right to see a topic is missing, `tell` is not called, because
    the member itself then reports the same problem.
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
    """Return the sentence about a topic that was read and was deleted."""
    return (
        f"Kafka has no topic {kafka_topic} any more: it was deleted, with all records that were not read. If it is "
        f"created again, it is read from its beginning. `headway topics create {kafka_topic}` creates it."
    )

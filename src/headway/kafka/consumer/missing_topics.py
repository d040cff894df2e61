"""The look for subscribed topics that Kafka lacks.

In a classic group librdkafka looks itself. The brokers of a KIP-848 group say nothing, and a member would wait for a
misspelt topic in silence.
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

    Patterns are skipped. If no broker answers, or the client has no right to see a topic, `tell` is not called: the
    group meets the same problem and reports it.
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
    """Return the sentence about a topic that is read and that Kafka lacks."""
    return (
        f"Kafka has no topic {kafka_topic}, which is read as soon as it is there. Check its name: `headway topics "
        "list` shows all that there are."
    )


def deleted_topic(kafka_topic: str) -> str:
    """Return the sentence about a topic that was read, and that Kafka lacks now."""
    return (
        f"Kafka has no topic {kafka_topic} any more: it was deleted, with all records that were not read. A topic of "
        f"this name that is created again is read from its beginning. `headway topics create {kafka_topic}` creates it."
    )

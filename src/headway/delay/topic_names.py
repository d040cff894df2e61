"""The names of a scheduler's topics."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.levels.naming import is_topic_name
from headway.core.untrusted import LATEST
from headway.declarations import shown
from headway.errors import ConfigError
from headway.settings.config import DEFAULT_SCHEDULER

DEFAULT_NAME = DEFAULT_SCHEDULER

_OWN = frozenset({"commands", "answers", "state", "ladder", "dead"})
_DELAY_TOPIC = "line-"
_is_delay_topic = re.compile(r"0|[1-9][0-9]{0,14}").fullmatch


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of one scheduler's topics."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not is_topic_name(self.delay_topic(LATEST)):
            raise ConfigError(
                f"The name of the scheduler is {shown(self.name)}, but its topics are named after it. Use letters, "
                f"digits, dots, underscores and hyphens, as in {DEFAULT_NAME!r}."
            )

    def delay_topic(self, delay_topic: int) -> str:
        """Return the name of the delay topic for a delay in milliseconds."""
        return f"{self.name}.{_DELAY_TOPIC}{delay_topic}"

    @property
    def commands(self) -> str:
        """The name of the topic for cancellations, for new due times, and for schedules whose id the user chose."""
        return f"{self.name}.commands"

    @property
    def answers(self) -> str:
        """The name of the topic for the relays' answers to commands."""
        return f"{self.name}.answers"

    @property
    def state(self) -> str:
        """The name of the topic for the relays' state."""
        return f"{self.name}.state"

    @property
    def ladder(self) -> str:
        """The name of the topic that states which delay topics are in use."""
        return f"{self.name}.ladder"

    @property
    def dead(self) -> str:
        """The name of the topic for records that could not be delivered."""
        return f"{self.name}.dead"

    def owns(self, topic: str) -> bool:
        """Return whether a topic is one of the scheduler's own topics.

        Relays trust the content of these topics, so a schedule that would be delivered to one of them is refused.
        """
        if not topic.startswith(f"{self.name}."):
            return False
        end = topic.removeprefix(f"{self.name}.")
        return end in _OWN or end.startswith(_DELAY_TOPIC)

    def delay_topics_of(self, topics: Mapping[str, int]) -> dict[int, int]:
        """Return the delay topics among `topics`: the delay of each, and its number of partitions."""
        prefix = f"{self.name}.{_DELAY_TOPIC}"
        ends = {topic.removeprefix(prefix): count for topic, count in topics.items() if topic.startswith(prefix)}
        return {int(end): count for end, count in sorted(ends.items()) if _is_delay_topic(end)}

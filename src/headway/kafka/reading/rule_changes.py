"""Reads the changes of the rules of all groups."""

import logging
import time

from headway.core.rules.rule import RULES_TOPIC
from headway.kafka.missing_permissions import why_not_readable
from headway.kafka.reading.tail import Tail
from headway.settings.config import Config

log = logging.getLogger(__name__)

_WARN_EVERY = 60.0  # the minimum time between two warnings that the topic cannot be read, in seconds


class RuleChanges:
    """Reads the changes of rules from an offset on. Raises `KafkaError` if the topic cannot be read."""

    def __init__(self, config: Config, start: int) -> None:
        self._config = config
        self._warn_at = 0.0
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
            self._warn(error.str())
            return None  # librdkafka tries again
        return (message.key() or b"").decode(errors="replace"), message.value()

    def _warn(self, reason: str) -> None:
        if time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + _WARN_EVERY
            log.warning("The rules could not be read, so the known ones apply. The read is tried again: %s", reason)

    def close(self) -> None:
        """Close the connections."""
        self._tail.close()

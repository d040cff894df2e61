"""Reads the topic of operators' requests about waiting records, from its end on."""

from headway.core.waiting.requests import REQUESTS_TOPIC
from headway.kafka.admin import Admin
from headway.kafka.missing_permissions import why_not_readable
from headway.kafka.reading.tail import Tail
from headway.settings.config import Config

_A_DAY = {"retention.ms": "86400000", "cleanup.policy": "delete"}


class RequestMessages:
    """The messages that are stored from now on. Raises `KafkaError` if they cannot be read.

    An asker must read only committed messages, because an answer counts only if its edit is committed. A member reads
    only requests, which are not in transactions, so it sets `uncommitted_too`: otherwise an open transaction of another
    member would delay the requests.
    """

    def __init__(self, config: Config, *, uncommitted_too: bool = False) -> None:
        self._config = config
        Admin(config).ensure_topic(REQUESTS_TOPIC, 1, _A_DAY)
        self._tail = Tail({**config, "auto.offset.reset": "latest"}, REQUESTS_TOPIC, 0, uncommitted_too=uncommitted_too)

    def take(self) -> tuple[str, bytes] | None:
        """Return the key and the value of the next message, or None if none arrives at once.

        Raises `AuthorizationError` if this client may no longer read the topic.
        """
        message = self._tail.take()
        if message is None:
            return None
        if (error := message.error()) is not None:
            if missing := why_not_readable(error, REQUESTS_TOPIC, self._config):
                raise missing
            return None  # librdkafka tries again
        return (message.key() or b"").decode(errors="replace"), message.value() or b""

    def close(self) -> None:
        """Close the connections."""
        self._tail.close()

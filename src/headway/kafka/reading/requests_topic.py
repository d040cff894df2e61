"""Reads the topic of operators' requests about waiting records, from its end on."""

from headway.core.waiting.requests import REQUESTS_TOPIC
from headway.errors import KafkaError
from headway.kafka.admin import Admin
from headway.kafka.missing_permissions import why_not_readable
from headway.kafka.reading.tail import Tail
from headway.settings.config import Config

_A_DAY = {"retention.ms": "86400000", "cleanup.policy": "delete"}


def create_requests_topic(admin: Admin) -> None:
    """Create the topic if it does not exist. Raises `KafkaError` if this is refused."""
    if REQUESTS_TOPIC in admin.topics("Read"):
        return
    try:
        admin.create([REQUESTS_TOPIC], 1, config=_A_DAY)
    except KafkaError:
        # Another process may have created the topic in the meantime.
        if REQUESTS_TOPIC not in admin.topics("Read"):
            raise


class RequestMessages:
    """The requests and committed answers that are stored from now on. Raises `KafkaError` if they cannot be read."""

    def __init__(self, config: Config) -> None:
        self._config = config
        create_requests_topic(Admin(config))
        self._tail = Tail({**config, "auto.offset.reset": "latest"}, REQUESTS_TOPIC, 0)

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

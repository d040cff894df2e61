"""Keeps values by key in a compacted topic with one partition, such as operators' marks and the rules of groups.

Invariants: any client that may write to such a topic can have written a record, so values of more than `MOST_BYTES` are
left out, a topic with more than `MOST_OFFSETS` offsets is not read, and whoever uses a value checks its content.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headway.core.outgoing_record import OutgoingRecord
from headway.errors import ConfigError, KafkaError
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.kafka.reading.compacted import TopicReader
from headway.runtime.lifecycle import Closable
from headway.settings.config import OWN_KEYS, Config

MOST_BYTES = 65_536
MOST_OFFSETS = 200_000

_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}


class KeyedValues(NamedTuple):
    """The latest value of each key, and the offset of the next change."""

    values: Mapping[str, bytes]
    end: int


class KeyedTopic(Closable):
    """Reads and writes the values in one compacted topic. Not thread-safe.

    The topic has one partition, so that all its records are in order. It connects when it is first used.

    Args:
        config: The settings of a client. Headway's own keys are ignored.
        name: The name of the topic.
    """

    def __init__(self, config: Config, name: str) -> None:
        self._config = {key: value for key, value in config.items() if key not in OWN_KEYS}
        self.name = name
        self._connected: TopicReader | None = None
        self._read = KeyedValues({}, -1)

    def close(self) -> None:
        """Close the connections."""
        if self._connected:
            self._connected.close()
            self._connected = None

    def create(self, wanted: str = "Write") -> None:
        """Create the topic if it does not exist.

        `wanted` is the operation that an error about missing permissions names. Raises `KafkaError` if Kafka refuses.
        """
        self._reader().admin.ensure_topic(self.name, 1, _COMPACTED, wanted)

    def read(self, is_over: Callable[[], bool] = lambda: False) -> KeyedValues:
        """Return all values. Only the end is requested if nothing has changed since the last call.

        Without the topic, there are no values.

        Raises:
            AuthorizationError: This client is not permitted to read the topic.
            KafkaError: Kafka does not answer, the topic has too many offsets, or `is_over` returned True.
        """
        try:
            return self._read_changed(is_over)
        except KafkaError:
            self.close()  # a client that was connected to a deleted topic might read nothing from its successor
            raise

    def _read_changed(self, is_over: Callable[[], bool]) -> KeyedValues:
        reader, place = self._reader(), (self.name, 0)
        bounds = reader.bounds(BROKER_ANSWERS_WITHIN)
        end = bounds.ends([place]).get(place)
        if end is None:
            return KeyedValues({}, 0)
        if end != self._read.end:
            size = end - bounds.starts([place]).get(place, 0)
            if size > MOST_OFFSETS:
                raise KafkaError(
                    f"The topic {self.name} has {size:,} offsets, and is read only up to {MOST_OFFSETS:,}. Check who "
                    "writes to it, and that its cleanup.policy is compact."
                )
            found = reader.compacted(self.name, [0], BROKER_ANSWERS_WITHIN, is_over=is_over)[0]
            self._read = KeyedValues({key: each for key, each in found.items() if len(each) <= MOST_BYTES}, end)
        return self._read

    def put(self, key: str, value: bytes) -> None:
        """Store a value in place of the earlier one, and create the topic if it does not exist.

        Raises:
            ConfigError: The value has more than 65,536 bytes.
            KafkaError: Kafka has not stored the value.
        """
        if len(value) > MOST_BYTES:
            raise ConfigError(
                f"The value of {key} has {len(value):,} bytes, but one in {self.name} can have at most {MOST_BYTES:,}."
            )
        self.create()
        self._store(key, value)

    def remove(self, key: str) -> None:
        """Remove a value. Raises `KafkaError` if Kafka has not stored the removal."""
        self._store(key, None)

    def _store(self, key: str, value: bytes | None) -> None:
        refused: list[Any] = []
        # An idempotent producer waits half a second for its id. Without one, a retry can store the value twice, which
        # changes nothing.
        client = ProducerClient({**self._config, "enable.idempotence": False})
        try:
            client.produce(OutgoingRecord(self.name, value, key, 0), lambda error, _: refused.append(error))
        finally:
            left = client.close(BROKER_ANSWERS_WITHIN)
        if left or any(refused):
            reason = next(filter(None, refused), "Kafka did not answer")
            raise KafkaError(f"{key} was not stored in {self.name}: {reason}.")

    def _reader(self) -> TopicReader:
        if self._connected is None:
            self._connected = TopicReader(self._config)
        return self._connected

"""Control records: what operators store in Kafka about its queues, in the compacted topic `headway-control`.

A record's key is `KIND:NAME`, such as `mark:1763745120000-0ac5d81f`, and its value is JSON. Each feature has a kind of
its own, so features share the topic without depending on each other. A record without a value removes the one with the
same key, as in every compacted topic.

Invariants: any client that may write to the topic can have written a record, so values of more than `MOST_BYTES` are
left out, a topic with more than `MOST_OFFSETS` offsets is not read, and the reader of a kind checks the content.
"""

import re
from typing import Any

from headway.core.outgoing_record import OutgoingRecord
from headway.errors import ConfigError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.kafka.reading.compacted import TopicReader
from headway.runtime.lifecycle import Closable
from headway.settings.config import OWN_KEYS, Config

CONTROL_TOPIC = "headway-control"
MOST_BYTES = 65_536
MOST_OFFSETS = 200_000

_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
_is_kind = re.compile(r"[a-z][a-z-]{0,30}").fullmatch


class ControlRecords(Closable):
    """Reads and writes the control records of a cluster. Not thread-safe.

    The topic is created when the first record is stored. It has one partition, so that all records are in order.

    Args:
        config: The settings of a client. Headway's own keys are ignored.
        topic: The name of the topic.
    """

    def __init__(self, config: Config, topic: str = CONTROL_TOPIC) -> None:
        self._config = {key: value for key, value in config.items() if key not in OWN_KEYS}
        self._topic = topic
        self._reader: TopicReader | None = None
        self._end = -1
        self._read: dict[str, bytes] = {}

    def close(self) -> None:
        """Close the connections."""
        if self._reader:
            self._reader.close()

    def read(self, kind: str) -> dict[str, bytes]:
        """Return the values of all records of a kind, by name. The topic is read only if its end has moved.

        Raises `KafkaError` if Kafka does not answer, or if the topic has too many records.
        """
        prefix = f"{_checked(kind)}:"
        return {key.removeprefix(prefix): value for key, value in self._all().items() if key.startswith(prefix)}

    def put(self, kind: str, name: str, value: bytes) -> None:
        """Store a record, in place of an earlier one with this name.

        Raises:
            ConfigError: The value has more than 65,536 bytes.
            KafkaError: Kafka has not stored it.
        """
        if len(value) > MOST_BYTES:
            raise ConfigError(
                f"The {kind} {name} has {len(value):,} bytes, but a control record can have at most {MOST_BYTES:,}."
            )
        self._create_topic()
        self._write(f"{_checked(kind)}:{name}", value)

    def remove(self, kind: str, name: str) -> None:
        """Remove a record. Raises `KafkaError` if Kafka has not stored the removal."""
        self._write(f"{_checked(kind)}:{name}", None)

    def _all(self) -> dict[str, bytes]:
        if self._reader is None:
            self._reader = TopicReader(self._config)
        place = (self._topic, 0)
        bounds = self._reader.bounds()
        end = bounds.ends([place]).get(place)
        if end is None:  # nobody has stored a record yet
            return {}
        if end != self._end:
            start = bounds.starts([place]).get(place, 0)
            if end - start > MOST_OFFSETS:
                raise KafkaError(
                    f"The topic {self._topic} has {end - start:,} offsets, but control records need few. It is read up "
                    f"to {MOST_OFFSETS:,}. Check who writes to it, and that its cleanup.policy is compact."
                )
            found = self._reader.compacted(self._topic, [0], BROKER_ANSWERS_WITHIN)[0]
            self._read = {key: value for key, value in found.items() if len(value) <= MOST_BYTES}
            self._end = end
        return self._read

    def _create_topic(self) -> None:
        admin = Admin(self._config)
        if self._topic in admin.topics("Write"):
            return
        try:
            admin.create([self._topic], 1, config=_COMPACTED)
        except KafkaError:
            if self._topic not in admin.topics("Write"):  # otherwise another process has created it in the meantime
                raise

    def _write(self, key: str, value: bytes | None) -> None:
        errors: list[str] = []
        client = ProducerClient({"enable.idempotence": True, **self._config})

        def reported(error: Any, _: Any) -> None:
            errors.append("" if error is None else error.str().rstrip("."))

        try:
            client.send(OutgoingRecord(self._topic, value, key.encode(), 0), reported)
            client.flush(BROKER_ANSWERS_WITHIN)
        finally:
            client.close(0)
        if errors != [""]:
            why = errors[0] if errors else f"Kafka has not answered within {BROKER_ANSWERS_WITHIN:g} s"
            raise KafkaError(f"The control record {key} was not stored in {self._topic}: {why}.")


def _checked(kind: str) -> str:
    if not _is_kind(kind):
        raise ConfigError(f"{kind!r} is not a kind of control record. Use lower-case letters, such as 'mark'.")
    return kind

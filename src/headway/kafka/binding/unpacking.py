"""Batches that a client cannot unpack, since they take more than the setting allows: the setting, and the sentence."""

from typing import Any

import confluent_kafka as ck

from headway.settings.config import Config

_KEY = "receive.message.max.bytes"
_MOST = 2_147_483_647  # that librdkafka takes

UNPACKS: Config = {_KEY: 536_870_912}
"""The default for clients that read records.

Java's producer bounds a batch by its compressed size, so one that compresses well can unpack to any size. librdkafka's
own default is 100 MB, at which it reads no further in the partition.
"""

_TELL_EVERY = 30.0  # seconds; librdkafka tries again twice a second


class Unpacking:
    """The batches that cannot be unpacked, each told of now and then.

    `config` has the client's settings.
    """

    def __init__(self, config: Config) -> None:
        self._limit = config.get(_KEY, UNPACKS[_KEY])
        self._told: dict[tuple[str | None, int | None], float] = {}

    def sentence(self, message: Any) -> str:
        """Return why the partition of a message with this error is read no further, and what to do."""
        error = message.error()
        return (
            f"Partition {message.partition()} of {message.topic()} is read no further than offset {message.offset()}: "
            f"a batch there cannot be unpacked ({error.str()}). If it unpacks to more than "
            f"{_KEY}={self._limit}, raise this setting of the client; it can be up to {_MOST}."
        )

    def is_due(self, message: Any, now: float) -> bool:
        """Return whether to tell of this message now; `now` is in seconds."""
        place = message.topic(), message.partition()
        is_due = now - self._told.get(place, -_TELL_EVERY) >= _TELL_EVERY
        if is_due:
            self._told[place] = now
        return is_due


def is_not_unpacked(error: ck.KafkaError) -> bool:
    """Return whether an error says that a batch could not be unpacked."""
    return error.code() == ck.KafkaError._BAD_COMPRESSION

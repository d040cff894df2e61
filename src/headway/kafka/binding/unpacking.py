"""Batches that a client cannot unpack because they exceed `receive.message.max.bytes`: the default, and the error."""

from typing import Any

import confluent_kafka as ck

from headway.settings.config import Config

_KEY = "receive.message.max.bytes"
_MAX = 2_147_483_647  # the largest value that librdkafka accepts

UNPACKS: Config = {_KEY: 536_870_912}
"""The default for clients that read records.

Java's producer limits the compressed size of a batch, so a batch that compresses well can unpack to any size.
librdkafka stops reading a partition at a batch that exceeds the limit, which is 100 MB by default.
"""

_REPEAT_AFTER = 30.0  # seconds between two reports; librdkafka itself retries twice a second


class Unpacking:
    """Remembers the batches that cannot be unpacked, so that each is reported only every 30 seconds.

    `config` holds the client's settings.
    """

    def __init__(self, config: Config) -> None:
        self._limit = config.get(_KEY, UNPACKS[_KEY])
        self._reported: dict[tuple[str | None, int | None], float] = {}

    def sentence(self, message: Any) -> str:
        """Return a sentence that says why the partition of this message is not read any further, and what to do."""
        error = message.error()
        return (
            f"Partition {message.partition()} of {message.topic()} cannot be read beyond offset {message.offset()}: "
            f"a batch there cannot be unpacked ({error.str()}). If it unpacks to more than "
            f"{_KEY}={self._limit}, raise this setting of the client; it can be up to {_MAX}."
        )

    def is_due(self, message: Any, now: float) -> bool:
        """Return whether to report this message now; `now` is in seconds."""
        place = message.topic(), message.partition()
        is_due = now - self._reported.get(place, -_REPEAT_AFTER) >= _REPEAT_AFTER
        if is_due:
            self._reported[place] = now
        return is_due


def is_not_unpacked(error: ck.KafkaError) -> bool:
    """Return whether an error means that a batch could not be unpacked."""
    return error.code() == ck.KafkaError._BAD_COMPRESSION

"""Handles batches that a client cannot decompress because they exceed the setting `receive.message.max.bytes`."""

from typing import Any

import confluent_kafka as ck

from headway.settings.config import Config

_KEY = "receive.message.max.bytes"
_MAX = 2_147_483_647  # the largest value that librdkafka accepts

UNPACKS: Config = {_KEY: 536_870_912}
"""Headway's default of `receive.message.max.bytes` for clients that read records.

Java's producer limits the compressed size of a batch, so a batch that compresses well can have any decompressed size.
librdkafka stops reading a partition at a batch that exceeds the limit, which is 100 MB by default.
"""

_REPEAT_AFTER = 30.0  # seconds between two reports; librdkafka itself tries twice a second


class Unpacking:
    """Limits the reports about batches that cannot be decompressed to one every 30 seconds for each partition.

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
            f"the batch there cannot be decompressed ({error.str()}). If its decompressed size exceeds "
            f"{_KEY}={self._limit}, raise this setting of the client; it can be up to {_MAX}."
        )

    def is_due(self, message: Any, now: float) -> bool:
        """Return whether to report this message now. `now` is in seconds."""
        place = message.topic(), message.partition()
        is_due = now - self._reported.get(place, -_REPEAT_AFTER) >= _REPEAT_AFTER
        if is_due:
            self._reported[place] = now
        return is_due


def is_not_unpacked(error: ck.KafkaError) -> bool:
    """Return whether an error means that a batch could not be decompressed."""
    return error.code() == ck.KafkaError._BAD_COMPRESSION

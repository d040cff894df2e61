"""Deletes the records that a relay has handled, from time to time."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from headway.delay.relay.producers import RelayOffsets
from headway.kafka.consumer.relay_consumer import NOT_DELETED, Deletion
from headway.kafka.reading.compacted import TopicReader

log = logging.getLogger(__name__)

DELETE_EVERY = 10.0  # seconds between two deletions


class Deletions:
    """Deletes handled records from the delay topics and the topic of commands.

    If this is not permitted, it logs a warning.

    Args:
        reader: Provides the admin client.
        connection: The settings, from which the principal in the warning is taken.
    """

    def __init__(self, reader: TopicReader, connection: Mapping[str, Any]) -> None:
        self._reader = reader
        self._connection = connection
        self._deletion = Deletion()
        self._deleted_at = time.monotonic()
        self._begun: RelayOffsets = {}

    def begin_from(self, starts: RelayOffsets) -> None:
        """Also delete the records before these offsets, in case an earlier relay has not deleted them."""
        self._begun = starts

    def begin_again(self) -> None:
        """Forget what was deleted, because the topics were recreated."""
        self._deletion = Deletion()

    def is_due(self) -> bool:
        """Return whether it is time for the next deletion."""
        return time.monotonic() - self._deleted_at >= DELETE_EVERY

    def delete_before(self, done: RelayOffsets) -> None:
        """Delete the records below these offsets."""
        self._deleted_at = time.monotonic()
        self._reader.serve()
        self._deletion.delete_before({**self._begun, **done}, self._reader.admin)
        if missing := self._deletion.refused:
            log.warning("%s %s", NOT_DELETED, missing.missing(self._connection))

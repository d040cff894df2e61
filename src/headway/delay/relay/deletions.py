"""Deletes from time to time the records that a relay has handled."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from headway.delay.relay.producers import RelayOffsets
from headway.kafka.consumer.relay_consumer import NOT_DELETED, Deletion
from headway.kafka.reading.compacted import TopicReader

log = logging.getLogger(__name__)

DELETE_EVERY = 10.0  # the time between two deletions, in seconds


class Deletions:
    """Deletes handled records from the delay topics and the topic of commands.

    If the deletion is not permitted, a warning is logged.

    Args:
        reader: The reader whose admin client is used.
        connection: The settings of the connection, which contain the principal that the warning names.
    """

    def __init__(self, reader: TopicReader, connection: Mapping[str, Any]) -> None:
        self._reader = reader
        self._connection = connection
        self._deletion = Deletion()
        self._deleted_at = time.monotonic()
        self._begun: RelayOffsets = {}

    def begin_from(self, starts: RelayOffsets) -> None:
        """Delete the records before these offsets too, because an earlier relay might not have deleted them."""
        self._begun = starts

    def begin_again(self) -> None:
        """Forget what has been deleted, because the topics were recreated."""
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

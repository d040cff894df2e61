"""Commits in the groups of several levels: sent together, and done on Kafka's answer."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

import confluent_kafka as ck

from headway.errors import AuthorizationError, HeadwayError, KafkaError
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.error_causes import cause_of
from headway.records.record_types import TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]
OnCommit = Callable[[Exception | None, Offsets], object]

# A wait for librdkafka is made of such slices (seconds), so that Ctrl-C ends it at once.
_ANSWER_AWAITED_FOR = 0.1


class SentCommit:
    """A commit that is on its way to the groups of one or more levels."""

    def __init__(self, parts: Collection[PendingCommit]) -> None:
        self._parts = parts

    def error(self) -> KafkaError | None:
        """Return why it was refused, None if it is done. Raises `TimeoutError` while there is no answer."""
        for part in self._parts:
            refused = part.refused()
            if refused is None:
                raise TimeoutError
            if refused:
                return next(iter(refused.values()))
        return None

    def wait(self, timeout: float) -> None:
        """Wait for the answers of all levels; raises `KafkaError` if one is refused, or does not come in time."""
        deadline = time.monotonic() + timeout
        try:
            for part in self._parts:
                while part.refused(_ANSWER_AWAITED_FOR) is None:
                    if time.monotonic() > deadline:
                        raise KafkaError(
                            f"Kafka did not answer a commit within {timeout:g} s; it may have happened or not. Commit "
                            "again, or the records since the last commit may be returned again."
                        )
        finally:
            for part in self._parts:
                part.forget()  # an owner of the raised error keeps these too, and their consumer could not be closed
        if error := self.error():
            raise error


class AsyncCommits:
    """The asynchronous commits under way, each with its callback for the answer."""

    def __init__(self) -> None:
        self._sent: deque[tuple[SentCommit, Offsets, OnCommit]] = deque()

    def add(self, sent: SentCommit, offsets: Offsets, on_commit: OnCommit | None) -> None:
        """Add a commit: `on_commit(error, offsets)` is called with its outcome; without one, errors are logged."""
        self._sent.append((sent, offsets, on_commit or log_failure))

    def __len__(self) -> int:
        return len(self._sent)

    def settle(self) -> None:
        """Report the commits that were answered, in the order in which they were sent."""
        while self._sent:
            sent, offsets, on_commit = self._sent[0]
            try:
                error = sent.error()
            except TimeoutError:
                return
            self._sent.popleft()
            on_commit(error, offsets)

    def forget(self) -> None:
        """Let go of unanswered commits; librdkafka wants that before its consumer is closed."""
        self._sent.clear()


def metadata_is_too_large(error: HeadwayError) -> bool:
    """Return whether a commit's metadata was too large: the brokers' `offset.metadata.max.bytes` is smaller."""
    cause = cause_of(error)
    return cause is not None and cause.code() == ck.KafkaError.OFFSET_METADATA_TOO_LARGE


def log_failure(error: Exception | None, offsets: Offsets) -> None:
    """Log that a commit failed, but not for want of a right, which a poll reports now and then."""
    if error is not None and not isinstance(error, AuthorizationError):
        log.warning("A commit of %d partitions failed, and a later one must cover it: %s", len(offsets), error)

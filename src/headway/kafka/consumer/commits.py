"""Commits in the groups of several levels, which are sent together."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

import confluent_kafka as ck

from headway.errors import AuthorizationError, HeadwayError, KafkaError
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.error_causes import librdkafka_error
from headway.records.record_types import TopicPartition

log = logging.getLogger(__name__)

OffsetsOfCommit = Mapping[TopicPartition, int]
OnCommit = Callable[[Exception | None, OffsetsOfCommit], object]

# The seconds of one wait for librdkafka. A long wait is made of many, so that Ctrl-C ends it quickly.
_ANSWER_AWAITED_FOR = 0.1


class SentCommit:
    """A commit that is on its way to the groups of one or more levels."""

    def __init__(self, parts: Collection[PendingCommit]) -> None:
        self._parts = parts

    def error(self) -> KafkaError | None:
        """Return why it was refused, or None if it succeeded. Raises `TimeoutError` while there is no answer."""
        for part in self._parts:
            refused = part.refused()
            if refused is None:
                raise TimeoutError
            if refused:
                return next(iter(refused.values()))
        return None

    def wait(self, timeout: float) -> None:
        """Wait for the answers of all levels. Raises `KafkaError` if one is refused or does not arrive in time."""
        deadline = time.monotonic() + timeout
        try:
            for part in self._parts:
                while part.refused(_ANSWER_AWAITED_FOR) is None:
                    if time.monotonic() > deadline:
                        raise KafkaError(
                            f"Kafka did not answer a commit within {timeout:g} s. It is not known whether the commit "
                            "is stored. Commit again; otherwise its records may be returned again."
                        )
        finally:
            for part in self._parts:
                part.forget()  # the raised error refers to them, and they would keep their consumer from closing
        if error := self.error():
            raise error


class AsyncCommits:
    """The asynchronous commits without an answer, each with its callback."""

    def __init__(self) -> None:
        self._sent: deque[tuple[SentCommit, OffsetsOfCommit, OnCommit]] = deque()

    def add(self, sent: SentCommit, offsets: OffsetsOfCommit, on_commit: OnCommit | None) -> None:
        """Add a commit. `on_commit(error, offsets)` is called with its outcome; without it, errors are logged."""
        self._sent.append((sent, offsets, on_commit or log_failure))

    def __len__(self) -> int:
        return len(self._sent)

    def settle(self) -> None:
        """Call the callbacks of answered commits, in the order in which the commits were sent."""
        while self._sent:
            sent, offsets, on_commit = self._sent[0]
            try:
                error = sent.error()
            except TimeoutError:
                return
            self._sent.popleft()
            on_commit(error, offsets)

    def forget(self) -> None:
        """Drop the commits without an answer, as librdkafka needs it before its consumer is closed."""
        self._sent.clear()


def metadata_is_too_large(error: HeadwayError) -> bool:
    """Return whether a commit's metadata was too large: the brokers' `offset.metadata.max.bytes` is smaller."""
    cause = librdkafka_error(error)
    return cause is not None and cause.code() == ck.KafkaError.OFFSET_METADATA_TOO_LARGE


def log_failure(error: Exception | None, offsets: OffsetsOfCommit) -> None:
    """Log that a commit failed, unless a right is missing, which a poll reports repeatedly."""
    if error is not None and not isinstance(error, AuthorizationError):
        log.warning("A commit of %d partitions failed, and a later one must cover it: %s", len(offsets), error)

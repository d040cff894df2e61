"""Commits in the groups of several levels, which are sent together."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

import confluent_kafka as ck

from headway.errors import AuthorizationError, HeadwayError, KafkaError
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.error_causes import librdkafka_error
from headway.records.record_types import TopicPartition
from headway.runtime.deferred_signals import defer_signals

log = logging.getLogger(__name__)

OffsetsOfCommit = Mapping[TopicPartition, int]
OnCommit = Callable[[Exception | None, OffsetsOfCommit], object]
_AsyncCommit = tuple[OffsetsOfCommit, OnCommit]

# The seconds of one wait for librdkafka. A long wait is made of many, so that Ctrl-C ends it quickly.
_ANSWER_AWAITED_FOR = 0.1


class SentCommit:
    """A commit that is on its way to the groups of one or more levels."""

    def __init__(self, parts: Collection[PendingCommit]) -> None:
        self._parts = parts

    def error(self, timeout: float = 0) -> KafkaError | None:
        """Return why it was refused, or None if it succeeded.

        Waits up to `timeout` seconds for an answer, and raises `TimeoutError` if there is none.
        """
        for part in self._parts:
            refused = part.refused(timeout)
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
                            f"Kafka did not answer a commit within {timeout:.3g} s. It is not known whether the commit "
                            "is stored. Commit again; otherwise its records may be returned again."
                        )
        finally:
            for part in self._parts:
                part.forget()  # the raised error refers to them, and they would keep their consumer from closing
        if error := self.error():
            raise error


class AsyncCommits:
    """Sends commits without waiting, one after another, and calls their callbacks when they are answered.

    librdkafka repeats a refused commit after a pause, by when a later one may have been answered; the stored offset
    would then go back. So only one commit is under way at a time, and those made meanwhile are sent as one.
    """

    def __init__(self, send: Callable[[OffsetsOfCommit], SentCommit]) -> None:
        self._send = send
        self._sent: tuple[SentCommit, list[_AsyncCommit]] | None = None
        self._waiting: list[_AsyncCommit] = []
        self._answered: deque[tuple[KafkaError | None, _AsyncCommit]] = deque()

    def add(self, offsets: OffsetsOfCommit, on_commit: OnCommit | None) -> None:
        """Add a commit. `on_commit(error, offsets)` is called with its outcome; without it, errors are logged."""
        self._waiting.append((dict(offsets), on_commit or log_failure))
        self._advance()

    def __bool__(self) -> bool:
        """Return whether a commit has no answer yet."""
        return bool(self._sent or self._waiting)

    def settle(self) -> None:
        """Send what waits if it can be sent, and call the callbacks of the answered commits in their order."""
        if self._sent is not None:
            self._advance()
        while self._answered:
            error, (offsets, on_commit) = self._answered.popleft()
            on_commit(error, offsets)

    def finish(self, timeout: float) -> None:
        """Wait until every commit is answered, or for `timeout` seconds. `settle` calls their callbacks."""
        deadline = time.monotonic() + timeout
        while self and (left := deadline - time.monotonic()) > 0:
            self._advance(min(_ANSWER_AWAITED_FOR, left))

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Leave out partitions of commits that were not sent yet, because another member may own them now."""
        self._waiting = [
            ({each: offset for each, offset in offsets.items() if each not in partitions}, on_commit)
            for offsets, on_commit in self._waiting
        ]

    def forget(self) -> None:
        """Drop the commits without an answer, as librdkafka needs it before its consumer is closed."""
        self._sent, self._waiting = None, []

    def _advance(self, timeout: float = 0) -> None:
        """Take the answer to the commit under way, for which it waits up to `timeout` seconds, and send the next."""
        if self._sent is not None:
            with contextlib.suppress(TimeoutError):
                self._sent[0].error(timeout)
        with defer_signals():
            self._take_answer()
            if self._sent is None and self._waiting:
                self._send_waiting()

    def _take_answer(self) -> None:
        if self._sent is None:
            return
        sent, commits = self._sent
        with contextlib.suppress(TimeoutError):
            error = sent.error()
            self._sent = None
            self._answered.extend((error, each) for each in commits)

    def _send_waiting(self) -> None:
        commits, self._waiting = self._waiting, []
        together = {at: offset for offsets, _ in commits for at, offset in offsets.items()}
        try:
            self._sent = self._send(together), commits
        except KafkaError as error:
            self._answered.extend((error, each) for each in commits)


def metadata_is_too_large(error: HeadwayError) -> bool:
    """Return whether a commit's metadata was too large: the brokers' `offset.metadata.max.bytes` is smaller."""
    cause = librdkafka_error(error)
    return cause is not None and cause.code() == ck.KafkaError.OFFSET_METADATA_TOO_LARGE


def log_failure(error: Exception | None, offsets: OffsetsOfCommit) -> None:
    """Log that a commit failed, unless a right is missing, which a poll reports repeatedly."""
    if error is not None and not isinstance(error, AuthorizationError):
        log.warning("A commit of %d partitions failed, and a later one must cover it: %s", len(offsets), error)

"""Sends commits to the groups of several levels at the same time, and waits for the answers or calls back."""

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

# A single wait inside librdkafka lasts this many seconds. A longer wait consists of many of these waits, so that Ctrl-C
# ends it soon.
_ANSWER_AWAITED_FOR = 0.1


class SentCommit:
    """A commit that was sent to the groups of one or more levels."""

    def __init__(self, parts: Collection[PendingCommit]) -> None:
        self._parts = parts

    def error(self, timeout: float = 0) -> KafkaError | None:
        """Return the error with which Kafka refused the commit, or None if it succeeded.

        Waits up to `timeout` seconds for each group's answer. Raises `TimeoutError` if an answer is missing.
        """
        for part in self._parts:
            refused = part.refused(timeout)
            if refused is None:
                raise TimeoutError
            if refused:
                return next(iter(refused.values()))
        return None

    def wait(self, deadline: float, timeout: float) -> None:
        """Wait for the answers of all groups until `deadline`.

        Raises `KafkaError` if one of the groups refuses the commit, or does not answer in time. `timeout` is the
        caller's time limit in seconds, which the error names.
        """
        try:
            for part in self._parts:
                while part.refused(_ANSWER_AWAITED_FOR) is None:
                    if time.monotonic() > deadline:
                        raise KafkaError(
                            f"Kafka did not answer a commit within {timeout:g} s. It is not known whether the "
                            "commit is stored. Commit again. Otherwise the records may be delivered again after a "
                            "restart."
                        )
        finally:
            for part in self._parts:
                # The raised error refers to these objects, and an unanswered commit would prevent its consumer from
                # closing.
                part.forget()
        if error := self.error():
            raise error


class AsyncCommits:
    """Sends commits without waiting, one after another, and calls their callbacks when Kafka has answered.

    librdkafka repeats a failed commit after a pause. If a later commit succeeded in the meantime, the retry would set
    the stored offset back. So only one commit is open at a time, and all commits that are added in the meantime are
    sent as one.
    """

    def __init__(self, send: Callable[[OffsetsOfCommit], SentCommit]) -> None:
        self._send = send
        self._sent: tuple[SentCommit, list[_AsyncCommit]] | None = None
        self._waiting: list[_AsyncCommit] = []
        self._answered: deque[tuple[KafkaError | None, _AsyncCommit]] = deque()

    def add(self, offsets: OffsetsOfCommit, on_commit: OnCommit | None) -> None:
        """Add a commit. When it is answered, `settle` calls `on_commit(error, offsets)`.

        Without a callback, errors are logged.
        """
        self._waiting.append((dict(offsets), on_commit or log_failure))
        self._advance()

    def __bool__(self) -> bool:
        """Return whether any commit has no answer yet."""
        return bool(self._sent or self._waiting)

    def settle(self) -> None:
        """Send the waiting commits if no commit is open, and call the callbacks of the answered commits in order."""
        if self._sent is not None:
            self._advance()
        while self._answered:
            error, (offsets, on_commit) = self._answered.popleft()
            on_commit(error, offsets)

    def finish(self, timeout: float) -> None:
        """Wait until every commit is answered, or for at most `timeout` seconds.

        The callbacks are then called by `settle`.
        """
        deadline = time.monotonic() + timeout
        while self and (left := deadline - time.monotonic()) > 0:
            self._advance(min(_ANSWER_AWAITED_FOR, left))

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Remove these partitions from the commits that were not sent yet.

        Another member may own the partitions now.
        """
        self._waiting = [
            ({each: offset for each, offset in offsets.items() if each not in partitions}, on_commit)
            for offsets, on_commit in self._waiting
        ]

    def forget(self) -> None:
        """Abandon all commits without an answer. librdkafka requires this before its consumer is closed."""
        self._sent, self._waiting = None, []

    def _advance(self, timeout: float = 0) -> None:
        """Wait up to `timeout` seconds for the answer to the open commit, and then send the next one."""
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
    """Return whether a commit failed because its metadata exceeded the brokers' `offset.metadata.max.bytes`."""
    cause = librdkafka_error(error)
    return cause is not None and cause.code() == ck.KafkaError.OFFSET_METADATA_TOO_LARGE


def log_failure(error: Exception | None, offsets: OffsetsOfCommit) -> None:
    """Log that a commit failed, unless a permission is missing, because polls report that repeatedly."""
    if error is not None and not isinstance(error, AuthorizationError):
        log.warning(
            "A commit of %d partitions failed, so their offsets are stored only with a later commit: %s",
            len(offsets),
            error,
        )

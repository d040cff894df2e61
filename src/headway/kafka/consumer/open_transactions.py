"""Warnings about open transactions in the input, after which nothing can be read. Kafka's own clients do not warn.

If a producer dies, the brokers abort its transaction after its `transaction.timeout.ms`. But a hanging transaction,
which the brokers have lost track of, never ends by itself. It hides all later records of its partitions from every
consumer with `read_committed`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headway.errors import KafkaError
from headway.kafka.binding.questions import OFFSET_END, FoundOffsets, Question
from headway.records.record_types import TopicPartition

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""The seconds after which a member checks again whether a partition with more records stands still."""
_OPEN_FOR = 10.0  # seconds; shorter transactions are normal
_WARN_AGAIN_AFTER = 60.0
_ANSWERED_WITHIN = 5.0
_COMMITTED, _UNCOMMITTED = "read_committed", "read_uncommitted"

Ask = Callable[[TopicPartition, int, float, str], Question[FoundOffsets]]
"""The question for the offset of a place in a partition, in a time, at an isolation level."""


@dataclass(slots=True)
class _Standstill:
    """A partition whose position has not moved since a time, although its log has more."""

    position: int
    since: float
    asked: dict[str, Question[FoundOffsets]]
    ends: dict[str, int]
    warned_at: float | None = None
    no_transaction_before: int | None = None  # the log end before which no transaction was open


class OpenTransactions:
    """A periodic check of the partitions that stand still although their logs have more. Not thread-safe.

    Without such a partition it asks nothing, because the end of each log is known from the latest fetch.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._standing: dict[TopicPartition, _Standstill] = {}
        self.look_at = 0.0
        """When to call `look` again."""

    def look(
        self, positions: Mapping[TopicPartition, int], end_of: Callable[[TopicPartition], int | None], now: float
    ) -> None:
        """Warn about each partition that has stood before an open transaction for long, without waiting."""
        self.look_at = now + LOOK_EVERY
        self.forget([each for each in self._standing if each not in positions])
        for partition, position in positions.items():
            end = end_of(partition)
            before = self._standing.get(partition)
            if end is None or end <= position or (before and before.position != position):
                self.forget([partition])
            if end is not None and end > position:
                standing = self._standing.setdefault(partition, _Standstill(position, now, {}, {}))
                if end != standing.no_transaction_before:  # a log may end with the marker of an ended transaction
                    self._consider(partition, standing, end, now)

    def _consider(self, partition: TopicPartition, standing: _Standstill, end: int, now: float) -> None:
        if now - standing.since < LOOK_EVERY:
            return
        for level, question in list(standing.asked.items()):
            try:
                answer = question.answer()
            except KafkaError:
                answer = {}  # asked again
            if answer is None:
                continue
            del standing.asked[level]
            for offset in answer.values():
                if isinstance(offset, int):
                    standing.ends[level] = offset
        if standing.asked:
            return
        committed, uncommitted = standing.ends.get(_COMMITTED), standing.ends.get(_UNCOMMITTED)
        standing.ends.clear()
        if committed is not None and uncommitted is not None:
            if committed > standing.position:
                standing.no_transaction_before = end
                return
            self._warn(partition, standing, uncommitted, now)
        for level in (_COMMITTED, _UNCOMMITTED):
            standing.asked[level] = self._ask(partition, OFFSET_END, _ANSWERED_WITHIN, level)

    def _warn(self, partition: TopicPartition, standing: _Standstill, end: int, now: float) -> None:
        open_for = now - standing.since
        if open_for < _OPEN_FOR or (standing.warned_at is not None and now - standing.warned_at < _WARN_AGAIN_AFTER):
            return
        standing.warned_at = now
        log.warning(
            "Nothing can be read from %s from offset %d on, because a transaction that began there has been open for "
            "at least %.0f s. %d offsets wait after it, until its producer ends it, or the brokers abort it after its "
            "transaction.timeout.ms. If that does not happen, Kafka's own kafka-transactions.sh names the producer "
            "(describe-producers), and ends the transaction (abort).",
            *(partition, standing.position, open_for, end - standing.position),
        )

    def forget(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Abandon the questions about these partitions, or all questions before the client is closed."""
        for partition in list(self._standing if partitions is None else partitions):
            if standing := self._standing.pop(partition, None):
                for question in standing.asked.values():
                    question.forget()

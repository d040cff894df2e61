"""Warns about transactions that stay open in the input topics, because they hide all later records of their partitions.

Kafka's own clients do not warn about this. If a producer dies, the brokers abort its transaction after its
`transaction.timeout.ms`. But a hanging transaction, which the brokers have lost track of, never ends by itself. Such a
transaction hides all later records of its partitions from every consumer with `read_committed`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headway.errors import KafkaError
from headway.kafka.binding.questions import OFFSET_END, FoundOffsets, Question
from headway.records.record_types import TopicPartition

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""How often each partition with unread records is checked for progress, in seconds."""
_OPEN_FOR = 10.0  # seconds; shorter transactions are normal
_WARN_AGAIN_AFTER = 60.0
_ANSWERED_WITHIN = 5.0
_COMMITTED, _UNCOMMITTED = "read_committed", "read_uncommitted"

Ask = Callable[[TopicPartition, int, float, str], Question[FoundOffsets]]
"""A function (partition, place in the log, time limit in seconds, isolation level) that requests an offset."""


@dataclass(slots=True)
class _Standstill:
    """A partition whose position has not moved since the time `since`, although its log has unread records."""

    position: int
    since: float
    asked: dict[str, Question[FoundOffsets]]
    ends: dict[str, int]
    warned_at: float | None = None
    no_transaction_before: int | None = None  # at the last check, no transaction was open before this end offset


class OpenTransactions:
    """Checks periodically for partitions that make no progress although their logs have unread records.

    Not thread-safe.

    As long as every partition makes progress, no requests are sent, because each fetch returns the end of the log.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._standing: dict[TopicPartition, _Standstill] = {}
        self.look_at = 0.0
        """The time at which to call `look` again."""

    def look(
        self, positions: Mapping[TopicPartition, int], end_of: Callable[[TopicPartition], int | None], now: float
    ) -> None:
        """Warn about each partition that has been waiting for an open transaction for too long. This never waits."""
        self.look_at = now + LOOK_EVERY
        self.forget([each for each in self._standing if each not in positions])
        for partition, position in positions.items():
            end = end_of(partition)
            before = self._standing.get(partition)
            if end is None or end <= position or (before and before.position != position):
                self.forget([partition])
            if end is not None and end > position:
                standing = self._standing.setdefault(partition, _Standstill(position, now, {}, {}))
                # If the two offsets are equal, there may be nothing after the position but the end marker of a
                # transaction.
                if end != standing.no_transaction_before:
                    self._consider(partition, standing, end, now)

    def _consider(self, partition: TopicPartition, standing: _Standstill, end: int, now: float) -> None:
        if now - standing.since < LOOK_EVERY:
            return
        for level, question in list(standing.asked.items()):
            try:
                answer = question.answer()
            except KafkaError:
                answer = {}  # the request is sent again below
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
            "at least %.0f s. The %d offsets from there to the end of the log can be read only when its producer ends "
            "the transaction, or when the brokers abort it after transaction.timeout.ms. If neither happens, find the "
            "producer with `kafka-transactions.sh describe-producers`, and end the transaction with "
            "`kafka-transactions.sh abort`.",
            *(partition, standing.position, open_for, end - standing.position),
        )

    def forget(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Abandon the requests about these partitions.

        Without `partitions`, abandon all requests, before the client is closed.
        """
        for partition in list(self._standing if partitions is None else partitions):
            if standing := self._standing.pop(partition, None):
                for question in standing.asked.values():
                    question.forget()

"""Commits of offsets and offset maps: from time to time, and when partitions leave."""

import logging
from collections.abc import Collection
from typing import Literal

from headway.core.ticks import Tick
from headway.errors import KafkaError
from headway.kafka.commits import SentCommit
from headway.kafka.level_consumers import LevelConsumers
from headway.parallel.dispatch import Dispatch
from headway.parallel.transactions import Transactions
from headway.records import TopicPartition

log = logging.getLogger(__name__)

CommitMode = Literal["async", "sync", "transactional"]

_ANSWER_WITHIN = 10.0
_ASK_EVERY = 0.05


class Committing:
    """Commits what the engine's ticks say; a tick is done when Kafka has said so, and due again until then.

    With `transactions`, or if not `asynchronous`, each commit is waited for by the control thread; handlers go on.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        interval: float,
        now: float,
        *,
        asynchronous: bool,
    ) -> None:
        self._dispatch = dispatch
        self._levels = levels
        self._interval = interval
        self._asynchronous = asynchronous
        self.transactions: Transactions | None = None
        self._due_at = now + interval
        self._sent: tuple[Tick, SentCommit] | None = None

    def next_turn(self, now: float) -> float:
        """When to look again though nothing else has happened: an answer wakes nobody."""
        return now + _ASK_EVERY if self._sent else self._due_at

    def request(self) -> None:
        """Commit at the next turn."""
        self._due_at = 0.0

    def turn(self, now: float) -> None:
        """See to the commit that was sent, and make the next one when it is due."""
        if self._sent:
            self._settle(*self._sent)
        if self._sent is None and now >= self._due_at:
            self._due_at = now + self._interval
            if self._asynchronous:
                self._send()
            else:
                self.commit()

    def _send(self) -> None:
        tick = self._tick(None)
        if tick.commits:
            try:
                self._sent = tick, self._request(tick)
            except KafkaError as error:
                _log_refusal(tick, error)

    def commit(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Commit what is done of these partitions, or of all, and wait for the answer; a refusal is logged.

        Raises `TransactionError`, or `HandlerError` for an output that Kafka refuses; after that nothing is committed.
        """
        transactions = self.transactions
        if transactions:
            if transactions.over:
                return
            if transactions.committed:  # Ctrl-C may have come before this was said, or in the midst
                self._done(transactions.committed)
        tick = self._tick(partitions)
        if not tick.commits:
            return
        try:
            if transactions:
                transactions.commit(tick)
            else:
                self._request(tick).wait(_ANSWER_WITHIN)
            self._done(tick)
        except KafkaError as error:
            _log_refusal(tick, error)

    def forget(self) -> None:
        """Let go of the commit that was not answered; librdkafka wants that before its consumer is closed."""
        self._sent = None

    def _tick(self, partitions: Collection[TopicPartition] | None) -> Tick:
        with self._dispatch.lock:
            return self._dispatch.engine.tick(partitions)

    def _request(self, tick: Tick) -> SentCommit:
        return self._levels.commit_with_metadata({each: commit[:2] for each, commit in tick.commits.items()})

    def _settle(self, tick: Tick, sent: SentCommit) -> None:
        try:
            error = sent.error()
        except TimeoutError:
            return
        self._sent = None
        if error:
            _log_refusal(tick, error)
        else:
            self._done(tick)

    def _done(self, tick: Tick) -> None:
        with self._dispatch.lock:
            self._dispatch.engine.committed(tick)


def _log_refusal(tick: Tick, error: KafkaError) -> None:
    log.warning("A commit of %d partitions failed, and a later one must cover it: %s", len(tick.commits), error)

"""Commits of offsets and offset maps: from time to time, and when partitions leave."""

import logging
from collections.abc import Collection
from typing import Any

from headway.core.engine import Engine
from headway.core.ticks import Tick
from headway.errors import KafkaError
from headway.kafka.commits import SentCommit
from headway.kafka.level_consumers import LevelConsumers
from headway.records import TopicPartition

log = logging.getLogger(__name__)

_ANSWER_WITHIN = 10.0
_ASK_EVERY = 0.05


class Committing:
    """Commits what the engine's ticks say; a tick is done when Kafka has said so, and due again until then."""

    def __init__(self, engine: Engine[Any], levels: LevelConsumers, interval: float, now: float) -> None:
        self._engine = engine
        self._levels = levels
        self._interval = interval
        self._due_at = now + interval
        self._sent: tuple[Tick, SentCommit] | None = None

    def next_turn(self, now: float) -> float:
        """When to look again though nothing else has happened: an answer wakes nobody."""
        return now + _ASK_EVERY if self._sent else self._due_at

    def turn(self, now: float) -> None:
        """See to the commit that was sent, and send the next one when it is due; never waits."""
        if self._sent:
            self._settle(*self._sent)
        if self._sent is None and now >= self._due_at:
            self._due_at = now + self._interval
            self._send()

    def _send(self) -> None:
        tick = self._engine.tick()
        if tick.commits:
            try:
                self._sent = tick, self._request(tick)
            except KafkaError as error:
                self._refused(tick, error)

    def commit(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Commit what is done of these partitions, or of all, and wait for the answer; a refusal is logged."""
        tick = self._engine.tick(partitions)
        if not tick.commits:
            return
        try:
            self._request(tick).wait(_ANSWER_WITHIN)
        except KafkaError as error:
            self._refused(tick, error)
        else:
            self._engine.committed(tick)

    def forget(self) -> None:
        """Let go of the commit that was not answered; librdkafka wants that before its consumer is closed."""
        self._sent = None

    def _request(self, tick: Tick) -> SentCommit:
        return self._levels.commit_with_metadata({each: commit[:2] for each, commit in tick.commits.items()})

    def _settle(self, tick: Tick, sent: SentCommit) -> None:
        try:
            error = sent.error()
        except TimeoutError:
            return
        self._sent = None
        if error:
            self._refused(tick, error)
        else:
            self._engine.committed(tick)

    def _refused(self, tick: Tick, error: KafkaError) -> None:
        self._engine.aborted(tick)
        log.warning("A commit of %d partitions failed, and a later one must cover it: %s", len(tick.commits), error)

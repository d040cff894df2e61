"""Finds out whether a parallel consumer works, for probes.

A restart must help whenever a consumer is not live. So a slow handler, an open circuit, a pause, a full buffer or a
missing broker is never a reason.
"""

import time
from collections.abc import Iterator

from headway.core.engine.standing_partitions import StandingPartitions
from headway.execution.dispatch import Dispatch
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.metrics.health import Health
from headway.parallel.commits import Commits
from headway.parallel.observations import Observations
from headway.parallel.run import Run
from headway.records.record_types import TopicPartition

_LOOK_EVERY = 0.5  # the time between two looks, in seconds
# Kafka counts as gone if it has not answered a request for this many seconds. An election takes less.
_GONE_AFTER = 10.0


class HealthWatch:
    """Watches whether partitions move and commits succeed.

    Args:
        dispatch: The dispatch.
        levels: The group members of all levels.
        commits: Sends the commits.
        run: The run of the consumer.
        observations: What the control thread sees of Kafka.
        stalls_after: After how many seconds without movement a partition stands still.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        commits: Commits,
        run: Run,
        observations: Observations,
        stalls_after: float,
    ) -> None:
        self._dispatch = dispatch
        self._levels = levels
        self._commits = commits
        self._run = run
        self._observations = observations
        self._stalls_after = stalls_after
        self._fetching: StandingPartitions[TopicPartition] = StandingPartitions()
        self._idle_since: float | None = None  # since when nothing runs although records could start
        self._look_at = 0.0

    def look(self, now: float) -> None:
        """Look whether partitions move, if it is time. The control thread calls this in each round."""
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY
        seen = self._observations
        with self._dispatch.lock:
            engine = self._dispatch.engine
            progress = engine.observe(seen.positions, seen.log_ends)
            has_space = engine.has_space
        waits = self._dispatch.paused or self._dispatch.ending or self._commits.is_waited_for or seen.unanswered_for
        able = {
            each.partition
            for each in progress
            if each.unread
            and not (waits or each.is_full or each.partition in seen.reasons_to_wait)
            and has_space[each.partition.level]
        }
        self._fetching.look(seen.positions, able, now)
        if not self._dispatch.is_idle_though_ready(now):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def close(self) -> None:
        """Do nothing, because there are no requests to abandon."""

    def health(self) -> Health:
        """Return the present health. Any thread can call this."""
        now = time.monotonic()
        return Health(tuple(self._not_live(now)), tuple(self._not_ready()))

    def _not_live(self, now: float) -> Iterator[str]:
        if self._run.has_ended or self._run.is_stopping:
            if failure := self._run.failure:
                yield f"The consumer has ended with an error: {failure}"
            return
        round_at, patience = self._observations.round_at, self._stalls_after
        if round_at is not None and now - round_at > patience:
            count = len(self._levels.assignment())
            yield (
                f"The control thread has made no round for {now - round_at:.0f} s, so {count} partitions stand still. "
                "A function that it calls, such as tenant, does not return."
            )
            return
        for partition, seconds in self._fetching.seconds(now).items():
            if seconds > patience:
                yield (
                    f"{_capitalised(str(partition))} has stood still for {seconds:.0f} s, although its log has further "
                    "records, memory is free, and its broker answers."
                )
        if self._idle_since is not None and now - self._idle_since > patience:
            yield (
                f"No handler has been started for {now - self._idle_since:.0f} s, although records are ready and all "
                "slots are free."
            )

    def _not_ready(self) -> Iterator[str]:
        if self._run.has_ended or self._run.is_stopping:
            yield "The consumer is stopping or has ended."
            return
        if self._observations.round_at is None:
            yield "The consumer has not started yet, or its lifespan has not been entered."
            return
        for member in self._levels:
            if member.client.refused:
                yield member.client.refused
            if not member.membership.was_member:
                yield f"The group {member.client.group} has not given this member an assignment yet."
        if self._commits.refused:
            yield self._commits.refused
        for level, error in self._commits.failing.items():
            yield f"The last commit of level {level} failed: {error}"
        if (seconds := self._observations.unanswered_for) > _GONE_AFTER:
            yield f"Kafka has not answered for {seconds:.0f} s."


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]

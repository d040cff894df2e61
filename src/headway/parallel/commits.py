"""Commits offsets and offset maps, at intervals and when partitions leave this consumer.

After a commit has been sent, each round of the control thread checks for Kafka's answer. A commit that Kafka does not
acknowledge is repeated. Only the method `commit` waits for Kafka. If the commits of a level fail, that level backs off,
and the other levels continue to commit. If the group expels the member of a level, the level gives up its partitions as
lost, and the member joins the group again.
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headway.core.engine.commit_schedule import CommitSchedule
from headway.core.engine.commit_tick import CommitTick
from headway.errors import KafkaError
from headway.execution.dispatch import Dispatch
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.time_limits import COMMIT_ANSWERED_WITHIN
from headway.kafka.consumer.commits import OffsetsOfCommit, metadata_is_too_large
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.kafka.consumer.standing import Standing, standing
from headway.metrics.histogram import Histogram
from headway.metrics.table import CONSUMER_COMMIT_TIME, CONSUMER_MAP_TIME
from headway.parallel.callbacks import Callbacks
from headway.parallel.fetching import Fetching
from headway.parallel.run_parts import RunParts
from headway.parallel.transactions import LevelRefusals, OutcomeUnknownError, Transactions
from headway.records.record_types import TopicPartition
from headway.runtime.deferred_signals import defer_signals

if TYPE_CHECKING:
    from headway.tracing.spans import Spans

log = logging.getLogger(__name__)

# How long a member has to catch up with a rebalance of its group before its partitions count as lost, in seconds.
_BEHIND_FOR = 10.0
# The time between two checks for answers, in seconds. The control thread must poll, because the answer to a plain
# commit does not wake any thread.
_CHECK_ANSWERS_EVERY = 0.05
_WARN_EVERY = 10.0  # the minimum time between two warnings, in seconds
# The longest wait for an answer, in seconds. librdkafka gives up a request after socket.timeout.ms, which is a minute
# by default, and may then send the request a second time.
_ANSWERED_AT_LAST_WITHIN = 120.0


class UnansweredError(KafkaError):
    """No broker has answered a commit in time."""


class SentOffsets(Protocol):
    """Offsets that have been sent to Kafka, in a plain commit or in a transaction."""

    def answer(self, timeout: float) -> LevelRefusals | None:
        """Wait up to `timeout` seconds for the answer. Returns None if there is no answer yet.

        Otherwise, returns the levels whose commit Kafka has refused, with the reasons. If the commit succeeded, the
        mapping is empty.
        """
        ...

    def give_up(self) -> bool:
        """Stop waiting for the answer.

        Returns False if the caller must still take the answer before the next commit.
        """
        ...


class _UnansweredCommit(NamedTuple):
    levels: set[int]
    tick: CommitTick
    sent: SentOffsets
    at: float


class Commits:
    """Commits the offsets of completed records, separately for each level or in one transaction for all healthy levels.

    Args:
        dispatch: The dispatch. Its engine returns the offsets to commit.
        levels: The group members of all levels, whose offsets are committed.
        fetching: Gives up the partitions of a level whose member was expelled, and lets the member join again.
        callbacks: The user's callbacks. `on_commit` gets the outcome of each commit.
        parts: The parts of the run, which include the `Transactions` if the run commits in transactions.
        interval: The time between two commits, in seconds.
        waits: True if no records are fetched while a commit is pending.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        fetching: Fetching,
        callbacks: Callbacks,
        parts: RunParts,
        interval: float,
        *,
        waits: bool,
    ) -> None:
        self._dispatch = dispatch
        self._levels = levels
        self._fetching = fetching
        self._callbacks = callbacks
        self._parts = parts
        self._schedule = CommitSchedule(levels.count, interval, time.monotonic())
        self._waits = waits
        self._pending: list[_UnansweredCommit] = []
        self._behind_since: dict[int, float] = {}
        # For each level whose coordinator has not answered in time: how long to wait for the coordinator's next answer,
        # in seconds.
        self._answered_within: dict[int, float] = {}
        self._maps_are_shortened = False
        self._warned_at = -_WARN_EVERY
        self._failures = 0  # failed commits since the last warning
        self.acknowledged = self.failed = 0
        """How many commits Kafka has acknowledged, and how many have failed."""
        self.map_times = Histogram(CONSUMER_MAP_TIME.bounds)
        """How long the offset maps of each commit took to encode."""
        self.times = Histogram(CONSUMER_COMMIT_TIME.bounds)
        """How long Kafka took to acknowledge each commit, in seconds."""
        self.failing: dict[int, str] = {}
        """The levels whose last commit has failed, each with a sentence that says why."""

    @property
    def _transactions(self) -> Transactions | None:
        return self._parts.transactions

    @property
    def refused(self) -> str | None:
        """A sentence that names a missing permission to write outputs, or None if no such permission is missing."""
        return self._transactions.refused if self._transactions else None

    @property
    def is_waited_for(self) -> bool:
        """True if no records must be fetched until the pending commit is answered."""
        return self._waits and bool(self._pending)

    def next_time(self, now: float) -> float:
        """Return the latest time at which `serve` must be called again."""
        return now + _CHECK_ANSWERS_EVERY if self._pending else self._schedule.next_time()

    def request(self) -> None:
        """Commit at the next call of `serve`."""
        self._schedule.request()

    def serve(self, now: float) -> None:
        """Take the answers to pending commits, and send the commits that are due.

        Raises:
            TransactionError: The transactional producer cannot continue. No further commits are made.
            HandlerError: Kafka refused an output, and there is no dead-letter topic. No further commits are made.
            KafkaError: Another consumer with the same `group.instance.id` has replaced this one.
        """
        self._take_answers(0.0)
        self._warn_of_slow_answers(now)
        if self._dispatch.engine.wants_commit():
            self._schedule.request()
        self._send_due(now, None)
        if self.is_waited_for:
            self._take_answers(_CHECK_ANSWERS_EVERY)

    def commit(self, partitions: Collection[TopicPartition] | None, deadline: float) -> Iterator[None]:
        """Commit the completed records of these partitions, or of all partitions, and wait for the answers.

        This is a generator, so that the caller can do other work during the wait. A commit that Kafka has not
        acknowledged by the deadline is abandoned, so the next owner of the partitions might handle the records again.
        Raises the errors of `serve`.
        """
        self._schedule.hurry(self._levels_of(partitions))
        while self._is_uncommitted(partitions) and (left := deadline - time.monotonic()) > 0:
            self._schedule.request()
            self._send_due(time.monotonic(), partitions)
            self._take_answers(min(_CHECK_ANSWERS_EVERY, left))
            yield
        self._give_up(lambda each: partitions is None or not each.tick.commits.keys().isdisjoint(partitions))

    def forget(self) -> None:
        """Give up all pending commits, as librdkafka requires before its consumer is closed."""
        self._give_up(lambda _: True)

    def _levels_of(self, partitions: Collection[TopicPartition] | None) -> set[int]:
        return set(range(self._levels.count)) if partitions is None else {each.level for each in partitions}

    def _give_up(self, chosen: Callable[[_UnansweredCommit], bool]) -> None:
        given_up = [each for each in self._pending if chosen(each) and each.sent.give_up()]
        self._pending = [each for each in self._pending if each not in given_up]
        for each in given_up:
            self._callbacks.committed(
                KafkaError("Kafka did not answer a commit in time. It is unknown whether the commit was made."),
                _offsets(each.tick),
            )

    def _is_uncommitted(self, partitions: Collection[TopicPartition] | None) -> bool:
        if self._transactions and self._transactions.over:
            return False
        with self._dispatch.lock:
            return self._dispatch.engine.is_uncommitted(partitions)

    # Sending

    def _send_due(self, now: float, partitions: Collection[TopicPartition] | None) -> None:
        """Send the commits that are due, limited to these partitions unless `partitions` is None."""
        if self._parts.can_begin_transactions:
            self._begin_transactions()
        busy = {level for each in self._pending for level in each.levels}
        for due in self._schedule.due(now):
            levels = due & self._levels_of(partitions)
            if self._transactions is None:
                for level in levels - busy:
                    self._send_if_any({level}, now, partitions)
            elif self._pending or self._transactions.over:
                return
            elif levels:
                self._send_if_any(levels, now, partitions)
            if partitions is None and not levels & busy:
                self._schedule.began(levels, now)

    def _begin_transactions(self) -> None:
        """Commit in transactions from now on, unless an earlier plain commit could still reach the brokers.

        If it arrived after a transaction, it would mark the moved records as not done.
        """
        if not self._pending and not self._answered_within:
            self._parts.begin_transactions()
            self._schedule.request()

    def _send_if_any(self, levels: set[int], now: float, partitions: Collection[TopicPartition] | None) -> None:
        with self._dispatch.lock:
            engine = self._dispatch.engine
            chosen = engine.assigned() if partitions is None else partitions
            began = time.monotonic()
            tick = engine.tick({each for each in chosen if each.level in levels})
            if tick.commits:
                self.map_times.observe(time.monotonic() - began)
        if not tick.commits:
            if partitions is None:
                self._schedule.succeeded(levels)
                self.failing = {level: why for level, why in self.failing.items() if level not in levels}
                if self._transactions:
                    self._transactions.nothing_to_commit(levels)
            return
        try:
            with defer_signals():  # Ctrl-C must not interrupt between sending a commit and adding it to `_pending`
                sent: SentOffsets = self._transactions.commit(tick) if self._transactions else self._send(tick)
                if spans := self._parts.spans:
                    sent = self._traced(spans, sent, tick)
                self._pending.append(_UnansweredCommit(levels, tick, sent, now))
        except KafkaError as error:
            self._refused(tick, dict.fromkeys(levels, error), now)

    def _send(self, tick: CommitTick) -> "_PlainCommit":
        [level] = {partition.level for partition in tick.commits}
        offsets = {each: commit[:2] for each, commit in tick.commits.items()}
        within = self._answered_within.get(level, COMMIT_ANSWERED_WITHIN)
        return _PlainCommit(level, self._levels[level].client.commit_with_metadata(offsets), within)

    def _traced(self, spans: "Spans", sent: SentOffsets, tick: CommitTick) -> SentOffsets:
        from headway.parallel.traced_parts import TracedCommit  # noqa: PLC0415 - only a run that is traced needs this

        is_transaction = self._transactions is not None
        span = spans.commit(self._parts.group, len(tick.commits), is_transaction=is_transaction)
        return sent if span is None else TracedCommit(sent, span)

    # Answers

    def _take_answers(self, timeout: float) -> None:
        """Process the answers that have arrived. If there is none yet, wait up to `timeout` seconds for one."""
        if not self._pending:
            time.sleep(timeout)
        for each in list(self._pending):
            refusals = each.sent.answer(timeout)
            timeout = 0.0
            if refusals is None or each not in self._pending:
                continue
            if not refusals:
                self._committed(each)  # called before `remove`, because Ctrl-C can interrupt between the two calls
            self._pending.remove(each)
            if refusals:
                self._refused(each.tick, refusals, time.monotonic())
                if each.levels - refusals.keys():
                    # Commit the other levels of the transaction again, because they did not cause its failure.
                    self._schedule.request()

    def _committed(self, about: _UnansweredCommit) -> None:
        """Record that a commit has succeeded. Calling this twice for the same commit is harmless."""
        with self._dispatch.lock:
            self._dispatch.engine.committed(about.tick)
        self._callbacks.committed(None, _offsets(about.tick))
        self._schedule.succeeded(about.levels)
        self.acknowledged += 1
        self.times.observe(time.monotonic() - about.at)
        for level in about.levels:
            self.failing.pop(level, None)
            self._behind_since.pop(level, None)
            self._answered_within.pop(level, None)

    def _refused(self, tick: CommitTick, refusals: LevelRefusals, now: float) -> None:
        if not (refusals := self._shorten_maps(tick, refusals)):
            return
        self._schedule.failed(refusals, now, random.random())  # noqa: S311 - it spreads retries over time
        self._failures += 1
        self.failed += 1
        self.failing |= {level: str(error) for level, error in refusals.items()}
        self._warn("A commit of level %d failed and will be repeated: %s", *next(iter(refusals.items())))
        for level, error in refusals.items():
            self._callbacks.committed(
                error, {each: offset for each, offset in _offsets(tick).items() if each.level == level}
            )
            if self._transactions:
                self._levels[level].client.hear_refusal(error)
            if isinstance(error, UnansweredError):
                # Wait longer for the next answer, because a coordinator that is always slower than the limit would
                # otherwise never answer in time.
                within = self._answered_within.get(level, COMMIT_ANSWERED_WITHIN)
                self._answered_within[level] = min(2 * within, _ANSWERED_AT_LAST_WITHIN)
            membership = standing(error)
            if membership is Standing.REPLACED:
                self._fetching.give_up(level)
                raise KafkaError(
                    f"The consumer for level {level} cannot continue: {error} If another consumer has the same "
                    "group.instance.id, give each consumer an id of its own."
                ) from error
            if membership is Standing.BEHIND:
                is_lost = now - self._behind_since.setdefault(level, now) > _BEHIND_FOR
            else:
                is_lost = membership is Standing.EXPELLED or isinstance(error, OutcomeUnknownError)
            if is_lost and _has_still(tick, level):
                log.warning(
                    "The consumer for level %d treats its partitions as lost and joins its group again: %s",
                    level,
                    error,
                )
                self._fetching.rejoin(level)
            if is_lost:
                self._behind_since.pop(level, None)

    def _shorten_maps(self, tick: CommitTick, refusals: LevelRefusals) -> LevelRefusals:
        """If Kafka has refused an offset map as too large, make smaller maps from now on and commit again at once.

        Returns the refusals that have other reasons.
        """
        too_large = {level for level, error in refusals.items() if metadata_is_too_large(error)}
        characters = max((len(each.metadata) for at, each in tick.commits.items() if at.level in too_large), default=0)
        if not characters:
            return refusals
        if not self._maps_are_shortened:
            self._maps_are_shortened = True
            log.warning(
                "Kafka refuses an offset map of %d characters. From now on, maps are kept small enough, so fewer "
                "records are handled ahead of an unfinished one, and a restart can repeat more records. To prevent "
                "this, set offset.metadata.max.bytes on the brokers to at least 4096, its default.",
                characters,
            )
        with self._dispatch.lock:
            self._dispatch.engine.refuse_maps(characters)
        self._schedule.request()
        return {level: error for level, error in refusals.items() if level not in too_large}

    def _warn_of_slow_answers(self, now: float) -> None:
        for each in self._pending:
            if now - each.at > COMMIT_ANSWERED_WITHIN:
                self._warn("Kafka has not answered a commit of level %d for %.0f s.", min(each.levels), now - each.at)

    def _warn(self, text: str, *about: Any) -> None:
        now = time.monotonic()
        if now - self._warned_at < _WARN_EVERY:
            return
        if self._failures > 1:
            text += f" ({self._failures} commits have failed since the last warning)"
        log.warning(text, *about)
        self._warned_at, self._failures = now, 0


def _offsets(tick: CommitTick) -> OffsetsOfCommit:
    return {partition: commit.offset for partition, commit in tick.commits.items()}


def _has_still(tick: CommitTick, level: int) -> bool:
    """Return whether at least one partition of this level that is in the tick has not been revoked."""
    return any(part.assignment.current for part in tick.parts if part.assignment.level == level)


class _PlainCommit:
    """A commit of one level, outside transactions."""

    def __init__(self, level: int, sent: PendingCommit, within: float) -> None:
        self._level = level
        self._sent = sent
        self._within = within
        self._deadline = time.monotonic() + within

    def answer(self, timeout: float) -> LevelRefusals | None:
        """Wait up to `timeout` seconds for the answer; see `SentOffsets.answer`."""
        refused = self._sent.refused(timeout)
        if refused is None:
            if time.monotonic() < self._deadline:
                return None
            return {self._level: UnansweredError(f"Kafka did not answer a commit within {self._within:g} s.")}
        return dict.fromkeys([self._level], _gravest(refused.values())) if refused else {}

    def give_up(self) -> bool:
        """Stop waiting for the answer. Always returns True, because a later commit can replace this one."""
        return True


def _gravest(errors: Iterable[KafkaError]) -> KafkaError:
    """Return the first error after which the member cannot continue. If there is no such error, return the first."""
    return min(errors, key=lambda error: standing(error) in (Standing.UNKNOWN, Standing.BEHIND))

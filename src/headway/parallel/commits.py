"""Commits offsets and offset maps: at intervals, and when partitions leave.

A commit is sent, checked at each turn, and due again until Kafka has acknowledged it; only `commit` waits for Kafka. A
level whose commits fail has a back-off of its own, and keeps no other level from committing. A level whose member was
expelled gives its partitions up as lost, and joins its group again.
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from headway.core.engine.commit_schedule import CommitSchedule
from headway.core.engine.commit_tick import CommitTick
from headway.errors import KafkaError
from headway.execution.dispatch import Dispatch
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.time_limits import COMMIT_ANSWERED_WITHIN
from headway.kafka.consumer.commits import Offsets, metadata_is_too_large
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.kafka.consumer.standing import Standing, standing
from headway.parallel.callbacks import Callbacks
from headway.parallel.fetching import Fetching
from headway.parallel.transactions import OutcomeUnknownError, Refusals, Transactions
from headway.records.record_types import TopicPartition
from headway.runtime.deferred_signals import defer_signals

log = logging.getLogger(__name__)

_BEHIND_FOR = 10.0  # seconds after which a member that is behind its group is not waited for
_LOOK_FOR_ANSWERS_EVERY = 0.05
_WARN_EVERY = 10.0
_ANSWERED_AT_LAST_WITHIN = 120.0  # librdkafka itself gives a request up after socket.timeout.ms, a minute


class UnansweredError(KafkaError):
    """No broker has said in time whether a commit is done."""


class SentOffsets(Protocol):
    """Offsets that were sent, in a plain commit or in a transaction."""

    def answer(self, timeout: float) -> Refusals | None:
        """Return the refused levels, empty if the commit is done; or None if no answer came in time."""
        ...

    def give_up(self) -> bool:
        """Stop waiting. Returns True if the commit is over, False if its outcome must still be asked for."""
        ...


class _OnItsWay(NamedTuple):
    levels: set[int]
    tick: CommitTick
    sent: SentOffsets
    at: float


class Commits:
    """Makes the commits that the engine's ticks ask for: level by level, or all healthy levels in one transaction.

    Args:
        dispatch: The dispatch whose engine says what must be committed.
        levels: The members that commit.
        fetching: Gives a level's partitions up as lost, and joins its group again.
        callbacks: The user's callbacks, one of which is called with the outcome of each commit.
        interval: The seconds between commits.
        waits: True to fetch nothing while a commit is on its way.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        fetching: Fetching,
        callbacks: Callbacks,
        interval: float,
        *,
        waits: bool,
    ) -> None:
        self._dispatch = dispatch
        self._levels = levels
        self._fetching = fetching
        self._callbacks = callbacks
        self._turns = CommitSchedule(levels.count, interval, time.monotonic())
        self._waits = waits
        self.transactions: Transactions | None = None
        self._on_their_way: list[_OnItsWay] = []
        self._behind_since: dict[int, float] = {}
        self._answered_within: dict[int, float] = {}  # for a coordinator that takes longer than ordinary ones
        self._maps_are_shortened = False
        self._warned_at = -_WARN_EVERY
        self._failures = 0  # failures since the last warning

    @property
    def refused(self) -> str | None:
        """A sentence that names a missing right to write outputs, or None if no right is known to be missing."""
        return self.transactions.refused if self.transactions else None

    @property
    def is_waited_for(self) -> bool:
        """True if nothing may be fetched before the commit on its way is answered."""
        return self._waits and bool(self._on_their_way)

    def next_turn(self, now: float) -> float:
        """Return when the next turn is due if nothing else happens: the answer to a plain commit wakes no thread."""
        return now + _LOOK_FOR_ANSWERS_EVERY if self._on_their_way else self._turns.next_turn()

    def request(self) -> None:
        """Commit at the next turn."""
        self._turns.request()

    def turn(self, now: float) -> None:
        """Take answers to the commits that were sent, and send those that are due.

        Raises `TransactionError`, or `HandlerError` for an output that Kafka refuses; after that nothing is committed.
        Raises `KafkaError` if another consumer has taken this one's place.
        """
        self._take_answers(0.0)
        self._warn_of_what_takes_long(now)
        if self._dispatch.engine.wants_commit():
            self._turns.request()
        self._send_due(now, None)
        if self.is_waited_for:
            self._take_answers(_LOOK_FOR_ANSWERS_EVERY)

    def commit(self, partitions: Collection[TopicPartition] | None, deadline: float) -> Iterator[None]:
        """Commit the completed records of these partitions, or of all; the caller can act between the iterations.

        A commit that is not acknowledged by the deadline is given up, and the next owner repeats its records. Raises
        as `turn` does.
        """
        self._turns.hurry(self._levels_of(partitions))
        while self._is_uncommitted(partitions) and (left := deadline - time.monotonic()) > 0:
            self._turns.request()
            self._send_due(time.monotonic(), partitions)
            self._take_answers(min(_LOOK_FOR_ANSWERS_EVERY, left))
            yield
        self._give_up(lambda each: partitions is None or not each.tick.commits.keys().isdisjoint(partitions))

    def forget(self) -> None:
        """Let go of unanswered commits, as librdkafka requires before its consumer is closed."""
        self._give_up(lambda _: True)

    def _levels_of(self, partitions: Collection[TopicPartition] | None) -> set[int]:
        return set(range(self._levels.count)) if partitions is None else {each.level for each in partitions}

    def _give_up(self, chosen: Callable[[_OnItsWay], bool]) -> None:
        given_up = [each for each in self._on_their_way if chosen(each) and each.sent.give_up()]
        self._on_their_way = [each for each in self._on_their_way if each not in given_up]
        for each in given_up:
            self._callbacks.committed(
                KafkaError("Kafka did not answer a commit in time. It is unknown whether it was made."),
                _offsets(each.tick),
            )

    def _is_uncommitted(self, partitions: Collection[TopicPartition] | None) -> bool:
        if self.transactions and self.transactions.over:
            return False
        with self._dispatch.lock:
            return self._dispatch.engine.is_uncommitted(partitions)

    # Sending

    def _send_due(self, now: float, partitions: Collection[TopicPartition] | None) -> None:
        """Send the commits of the levels that are due, for these partitions or for all."""
        busy = {level for each in self._on_their_way for level in each.levels}
        for due in self._turns.due(now):
            levels = due & self._levels_of(partitions)
            if self.transactions is None:
                for level in levels - busy:
                    self._send_if_any({level}, now, partitions)
            elif self._on_their_way or self.transactions.over:
                return
            elif levels:
                self._send_if_any(levels, now, partitions)
            if partitions is None and not levels & busy:
                self._turns.began(levels, now)

    def _send_if_any(self, levels: set[int], now: float, partitions: Collection[TopicPartition] | None) -> None:
        with self._dispatch.lock:
            engine = self._dispatch.engine
            chosen = engine.assigned() if partitions is None else partitions
            tick = engine.tick({each for each in chosen if each.level in levels})
        if not tick.commits:
            if partitions is None:
                self._turns.succeeded(levels)
                if self.transactions:
                    self.transactions.nothing_to_commit(levels)
            return
        try:
            with defer_signals():  # so that no commit is sent without being noted as on its way
                sent = self.transactions.commit(tick) if self.transactions else self._send(tick)
                self._on_their_way.append(_OnItsWay(levels, tick, sent, now))
        except KafkaError as error:
            self._refused(tick, dict.fromkeys(levels, error), now)

    def _send(self, tick: CommitTick) -> "_PlainCommit":
        [level] = {partition.level for partition in tick.commits}
        offsets = {each: commit[:2] for each, commit in tick.commits.items()}
        within = self._answered_within.get(level, COMMIT_ANSWERED_WITHIN)
        return _PlainCommit(level, self._levels[level].client.commit_with_metadata(offsets), within)

    # Answers

    def _take_answers(self, timeout: float) -> None:
        """Take the answers that have arrived, or wait up to `timeout` seconds for the first."""
        if not self._on_their_way:
            time.sleep(timeout)
        for each in list(self._on_their_way):
            refusals = each.sent.answer(timeout)
            timeout = 0.0
            if refusals is None or each not in self._on_their_way:
                continue
            if not refusals:
                self._committed(each)  # before it leaves the list, because Ctrl-C can come in between
            self._on_their_way.remove(each)
            if refusals:
                self._refused(each.tick, refusals, time.monotonic())
                if each.levels - refusals.keys():
                    self._turns.request()  # the commit did not fail because of these levels

    def _committed(self, about: _OnItsWay) -> None:
        """Note in the engine that a commit is done. Noting it twice is harmless."""
        with self._dispatch.lock:
            self._dispatch.engine.committed(about.tick)
        self._callbacks.committed(None, _offsets(about.tick))
        self._turns.succeeded(about.levels)
        for level in about.levels:
            self._behind_since.pop(level, None)
            self._answered_within.pop(level, None)

    def _refused(self, tick: CommitTick, refusals: Refusals, now: float) -> None:
        if not (refusals := self._shorten_maps(tick, refusals)):
            return
        self._turns.failed(refusals, now, random.random())  # noqa: S311 - it spreads retries
        self._failures += 1
        self._warn("A commit of level %d failed, and a later one must cover it: %s", *next(iter(refusals.items())))
        for level, error in refusals.items():
            self._callbacks.committed(
                error, {each: offset for each, offset in _offsets(tick).items() if each.level == level}
            )
            if self.transactions:
                self._levels[level].client.hear_refusal(error)
            if isinstance(error, UnansweredError):  # with the same time a slow coordinator might never answer
                within = self._answered_within.get(level, COMMIT_ANSWERED_WITHIN)
                self._answered_within[level] = min(2 * within, _ANSWERED_AT_LAST_WITHIN)
            member = standing(error)
            if member is Standing.REPLACED:
                self._fetching.give_up(level)
                raise KafkaError(
                    f"Level {level} cannot go on: {error} If another consumer has the same group.instance.id, give "
                    "each its own."
                ) from error
            if member is Standing.BEHIND:
                is_lost = now - self._behind_since.setdefault(level, now) > _BEHIND_FOR
            else:
                is_lost = member is Standing.EXPELLED or isinstance(error, OutcomeUnknownError)
            if is_lost and _has_still(tick, level):
                log.warning("Level %d gives its partitions up as lost, and joins its group again: %s", level, error)
                self._fetching.rejoin(level)
            if is_lost:
                self._behind_since.pop(level, None)

    def _shorten_maps(self, tick: CommitTick, refusals: Refusals) -> Refusals:
        """Commit smaller offset maps at once if these were too large for Kafka. Returns the other refusals."""
        too_large = {level for level, error in refusals.items() if metadata_is_too_large(error)}
        characters = max((len(each.metadata) for at, each in tick.commits.items() if at.level in too_large), default=0)
        if not characters:
            return refusals
        if not self._maps_are_shortened:
            self._maps_are_shortened = True
            log.warning(
                "Kafka refuses an offset map of %d characters. From now on maps are shortened until they fit: "
                "partitions are read less far ahead of what is not done, and a restart repeats more. Set "
                "offset.metadata.max.bytes of the brokers to 4096, its default, or more.",
                characters,
            )
        with self._dispatch.lock:
            self._dispatch.engine.refuse_maps(characters)
        self._turns.request()
        return {level: error for level, error in refusals.items() if level not in too_large}

    def _warn_of_what_takes_long(self, now: float) -> None:
        for each in self._on_their_way:
            if now - each.at > COMMIT_ANSWERED_WITHIN:
                self._warn("A commit of level %d has no answer for %.0f s yet.", min(each.levels), now - each.at)

    def _warn(self, text: str, *about: Any) -> None:
        now = time.monotonic()
        if now - self._warned_at < _WARN_EVERY:
            return
        if self._failures > 1:
            text += f" ({self._failures} have failed since the last warning)"
        log.warning(text, *about)
        self._warned_at, self._failures = now, 0


def _offsets(tick: CommitTick) -> Offsets:
    return {partition: commit.offset for partition, commit in tick.commits.items()}


def _has_still(tick: CommitTick, level: int) -> bool:
    """Return whether a level still has partitions of this tick; if not, it gave them up already."""
    return any(part.assignment.current for part in tick.parts if part.assignment.level == level)


class _PlainCommit:
    """A commit of one level, outside transactions."""

    def __init__(self, level: int, sent: PendingCommit, within: float) -> None:
        self._level = level
        self._sent = sent
        self._within = within
        self._deadline = time.monotonic() + within

    def answer(self, timeout: float) -> Refusals | None:
        """Return the reasons for a refusal, empty if the commit is done; or None if there is no answer yet."""
        refused = self._sent.refused(timeout)
        if refused is None:
            if time.monotonic() < self._deadline:
                return None
            return {self._level: UnansweredError(f"Kafka did not answer a commit within {self._within:g} s.")}
        return dict.fromkeys([self._level], _gravest(refused.values())) if refused else {}

    def give_up(self) -> bool:
        """Stop waiting. It is unknown whether the commit was made."""
        return True


def _gravest(errors: Iterable[KafkaError]) -> KafkaError:
    """Return the first error after which the member cannot go on, or otherwise the first error."""
    return min(errors, key=lambda error: standing(error) in (Standing.UNKNOWN, Standing.BEHIND))

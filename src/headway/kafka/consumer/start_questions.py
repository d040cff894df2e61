"""Requests the starts of partitions from Kafka, for many partitions at a time.

After a failure, a separate request is sent for each partition, and the pause before its next request gets longer.

At first, the member's own client requests the commits. If no answer arrives within a second, a second client sends the
request and waits as long as necessary, because a slow coordinator still answers. The second client has its own
connection, so neither heartbeats nor fetches have to wait for this answer. The answer contains a separate result for
each partition, so a partition whose offset is part of an open transaction does not delay the others.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.offsets.lost_place import RESETS, Reset
from headway.errors import KafkaError
from headway.kafka.binding.capi import CommittedOffset, Partition, committed_each
from headway.kafka.binding.error_causes import librdkafka_error
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.questions import (
    FoundCommits,
    FoundOffsets,
    Question,
    ask_committed,
    ask_offsets,
)
from headway.settings.config import Config, settings_beside

log = logging.getLogger(__name__)

_MEMBER_ASKS_FOR = 1.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
# The time limit in seconds of the first request to a leader. The limit is short, because the leader may have died and
# another leader may have been elected. The limit is doubled for each further request.
_LEADERS_ANSWER_WITHIN = 1.0
# The value of librdkafka's socket.timeout.ms, after which librdkafka itself closes the connection.
_LEADERS_ANSWER_AT_LAST_WITHIN = 60.0
_SLOW = 1.0  # an answer of the coordinator that took this many seconds is logged as late
_SILENT = 5.0  # a missing answer is logged after this many seconds, which a broker may need to restart
_WARN_AGAIN_AFTER = 10.0

_PLACES: Final[Mapping[Reset, int]] = {Reset.EARLIEST: ck.OFFSET_BEGINNING, Reset.LATEST: ck.OFFSET_END}


class StartOffset(NamedTuple):
    """The offset at which a partition begins.

    If the start is a commit, `metadata` is not None. If the metadata is not empty, `log_end` is the end of the log.
    """

    offset: int
    metadata: bytes | None = None  # None if the start is not a commit
    log_end: int = 0


@dataclass(slots=True)
class _Lookup:
    """A partition whose start is being looked up, with the state of its requests."""

    number: int  # the number of the latest call of `StartOffsets.ask` with this partition
    asked_at: float | None = None
    takes_long: bool = False  # the member's own client got no answer about the partition's commit
    is_looked_up: bool = False
    commit: CommittedOffset | None = None
    is_asked: bool = False
    alone: bool = False  # after a failure, the partition gets a request of its own
    not_before: float = 0.0
    pause: float = _FIRST_PAUSE
    leader_within: float = _LEADERS_ANSWER_WITHIN


class _Asked(NamedTuple):
    question: Question[FoundCommits] | Question[FoundOffsets]
    lookups: Mapping[Partition, _Lookup]
    at: float


class StartQuestions:
    """The open requests of one member. Only one thread uses this object.

    `config` is the member's own configuration, whose credentials may change. `may_reset` returns whether partitions can
    begin without a commit. `fail` gets the errors that prevent a partition from beginning.
    """

    def __init__(
        self,
        client: cimpl.Consumer,
        config: Config,
        is_new: Callable[[str, int], bool],
        wake_fd: int,
        may_reset: Callable[[Collection[Partition]], bool],
        fail: Callable[[KafkaError, str], None],
    ) -> None:
        self._member = client
        self._beside: cimpl.Consumer | None = None
        self._config = config
        self._group = str(config["group.id"])
        self._isolation = str(config.get("isolation.level", "read_committed"))
        reset = RESETS.get(str(config.get("auto.offset.reset", "latest")).lower())
        self._reset = None if reset is None else _PLACES.get(reset)
        self._is_new = is_new
        self._wake_fd = wake_fd
        self._may_reset = may_reset
        self._fail = fail
        self._lookups: dict[Partition, _Lookup] = {}
        self._open: list[_Asked] = []
        self._warned_at = -_WARN_AGAIN_AFTER

    def turn(self, asked: Mapping[Partition, int], now: float) -> dict[Partition, StartOffset]:
        """Process answers, and send the requests that are due for these partitions.

        Returns the starts that are now known.

        `asked` maps each partition to the number of the latest call of `StartOffsets.ask` with that partition. Raises
        `ClosedError` if the member's client was closed.
        """
        self._lookups = {
            each: known if (known := self._lookups.get(each)) and known.number == number else _Lookup(number)
            for each, number in asked.items()
        }
        found: dict[Partition, StartOffset] = {}
        for about in list(self._open):
            answer: FoundCommits | FoundOffsets | KafkaError | None
            try:
                answer = about.question.answer()
            except KafkaError as error:
                answer = error
            if answer is None:
                self._warn_if_slow(about, now, _SILENT)
                continue
            self._open.remove(about)
            self._warn_if_slow(about, now, _SLOW)
            self._take(about, answer, found, now)
        self._ask_for_commits(now, found)
        self._ask_for_ends(now)
        return found

    def next_turn(self) -> float | None:
        """Return when to call `turn` again if no answer arrives, or None if nothing is due."""
        due = [each.not_before for each in self._lookups.values() if not each.is_asked]
        silent = [about.at + _SILENT for about in self._open]
        return min(due + silent, default=None)

    def forget(self) -> None:
        """Abandon all requests, and stop using the member's client."""
        for about in self._open:
            about.question.forget()
        self._open.clear()
        self._lookups.clear()

    def close(self) -> None:
        """Abandon all requests, and close the second client."""
        self.forget()
        self._end_client_beside()

    # Requests

    def _due(self, now: float) -> dict[Partition, _Lookup]:
        return {each: about for each, about in self._lookups.items() if not about.is_asked and about.not_before <= now}

    def _ask_for_commits(self, now: float, found: dict[Partition, StartOffset]) -> None:
        due = {each: about for each, about in self._due(now).items() if not about.is_looked_up}
        if first := {each: about for each, about in due.items() if not about.takes_long}:
            answers = committed_each(self._member, list(first), _MEMBER_ASKS_FOR)
            for each, answer in answers.items():
                first[each].asked_at = first[each].asked_at or now
                if isinstance(answer, KafkaError) and _code(answer) == ck.KafkaError._TIMED_OUT:
                    first[each].takes_long = True
                else:
                    self._told(each, first[each], answer, found, now)
        if slow := {each: about for each, about in due.items() if about.takes_long}:
            if self._beside is None:
                own = {"group.id": self._group, "enable.auto.commit": False, "log_level": 2}
                self._beside = make_client(cimpl.Consumer, {**settings_beside(self._config), **own})
            self._ask(ask_committed(self._beside, self._group, slow.keys(), self._wake_fd), slow, now)

    def _ask_for_ends(self, now: float) -> None:
        due = {each: about for each, about in self._due(now).items() if about.is_looked_up}
        missing = [each for each, about in due.items() if about.commit is None]
        if missing and not self._may_reset(missing):
            for each in missing:  # `may_reset` has reported the reason
                about = due.pop(each)
                about.not_before = now + about.pause
                about.pause = min(2 * about.pause, _LONGEST_PAUSE)
        alone = [each for each, about in due.items() if about.alone]
        together = [each for each in due if each not in alone]
        for group in ([together] if together else []) + [[each] for each in alone]:
            of_group = {each: due[each] for each in group}
            places = {each: self._place_of(each, about) for each, about in of_group.items()}
            within = max(about.leader_within for about in of_group.values())
            self._ask(ask_offsets(self._member, places, self._isolation, within, self._wake_fd), of_group, now)

    def _place_of(self, partition: Partition, about: _Lookup) -> int:
        if about.commit is not None or self._reset is None:
            return int(ck.OFFSET_END)
        return int(ck.OFFSET_BEGINNING) if self._is_new(*partition) else self._reset

    def _ask(
        self,
        question: Question[FoundCommits] | Question[FoundOffsets],
        lookups: Mapping[Partition, _Lookup],
        now: float,
    ) -> None:
        for about in lookups.values():
            about.is_asked = True
        self._open.append(_Asked(question, lookups, now))

    # Answers

    def _take(
        self,
        about: _Asked,
        answer: Mapping[Partition, CommittedOffset | int | KafkaError | None] | KafkaError,
        found: dict[Partition, StartOffset],
        now: float,
    ) -> None:
        if isinstance(answer, KafkaError) and _code(answer) == ck.KafkaError.NOT_COORDINATOR:
            # The second client would send its next requests to the same broker: see docs/design/librdkafka.md.
            self._end_client_beside()
        for partition, lookup in about.lookups.items():
            lookup.is_asked = False
            # Skip partitions that were forgotten or asked for again in the meantime.
            if self._lookups.get(partition) is lookup:
                told = answer if isinstance(answer, KafkaError) else answer.get(partition, _not_told(partition))
                self._told(partition, lookup, told, found, now)

    def _told(
        self,
        partition: Partition,
        lookup: _Lookup,
        told: CommittedOffset | int | KafkaError | None,
        found: dict[Partition, StartOffset],
        now: float,
    ) -> None:
        if isinstance(told, int) and told < 0:  # the broker cannot determine the offset yet
            told = _not_told(partition)
        if isinstance(told, KafkaError):
            self._failed(partition, lookup, told, now)
        elif isinstance(told, int):
            found[partition] = StartOffset(told) if lookup.commit is None else StartOffset(*lookup.commit, told)
        elif told is not None and not told[1]:
            found[partition] = StartOffset(*told)
        else:
            lookup.is_looked_up, lookup.commit, lookup.pause = True, told, _FIRST_PAUSE
        if partition in found:
            del self._lookups[partition]

    def _failed(self, partition: Partition, lookup: _Lookup, error: KafkaError, now: float) -> None:
        lookup.not_before = now + lookup.pause
        lookup.pause = min(2 * lookup.pause, _LONGEST_PAUSE)
        if lookup.is_looked_up:
            lookup.alone = True
            lookup.leader_within = min(2 * lookup.leader_within, _LEADERS_ANSWER_AT_LAST_WITHIN)
        self._fail(error, partition[0])

    def _end_client_beside(self) -> None:
        client, self._beside = self._beside, None
        if client is None:
            return
        for about in [each for each in self._open if each.question.client is client]:
            about.question.forget()
            self._open.remove(about)
            for lookup in about.lookups.values():
                lookup.is_asked = False
        client.close()

    def _warn_if_slow(self, about: _Asked, now: float, bound: float) -> None:
        since = min((each.asked_at for each in about.lookups.values() if each.asked_at is not None), default=now)
        is_about_commits = not any(each.is_looked_up for each in about.lookups.values())
        if not is_about_commits or now - since < bound or now - self._warned_at < _WARN_AGAIN_AFTER:
            return
        self._warned_at = now
        log.warning(
            "The coordinator of the group %s is slow: after %s s, it %s the commits of %d partitions, which cannot be "
            "read before that. The coordinator may be overloaded, or it may delay its answers because this client "
            "exceeds a quota.",
            self._group,
            f"{now - since:.1f}" if bound == _SLOW else f"{now - since:.0f}",
            "returned" if bound == _SLOW else "has not returned",
            len(about.lookups),
        )


def _code(error: KafkaError) -> int | None:
    cause = librdkafka_error(error)
    return None if cause is None else cause.code()


def _not_told(partition: Partition) -> KafkaError:
    topic, number = partition
    error = KafkaError(f"The offset at which partition {number} of {topic} begins is not known yet.")
    error.__cause__ = ck.KafkaException(ck.KafkaError(ck.KafkaError.LEADER_NOT_AVAILABLE))
    return error

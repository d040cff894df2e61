"""The questions to Kafka that say where partitions begin: asked together, answered and asked again one by one.

The member's own client asks for commits first. Without an answer after a second, a client beside it asks, and waits
until it is answered: a coordinator that takes long is late, and not unreachable. That client has a connection of its
own, so neither heartbeats nor fetches wait behind the question, and it is told of each partition by itself: one whose
offset is in an open transaction holds up no other. After a failure a partition waits for longer and longer before it
is asked for again.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import confluent_kafka as ck

from headway.core.offsets.lost_place import RESETS, Reset
from headway.errors import KafkaError
from headway.kafka.binding.capi import Partition, committed_each
from headway.kafka.binding.error_causes import cause_of
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.questions import (
    Commit,
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
# The first question to a leader, which may be gone and another one elected: an answer that takes longer is waited for
# twice as long the next time.
_LEADERS_ANSWER_WITHIN = 1.0
_LEADERS_ANSWER_AT_LAST_WITHIN = 60.0  # librdkafka's socket.timeout.ms: then it gives the connection up itself
_SLOW = 1.0  # a coordinator that takes this long is worth a log line
_SILENT = 5.0  # one that is silent for this long, too; a broker that restarts is not
_TELL_AGAIN_AFTER = 10.0

_PLACES: Final[Mapping[Reset, int]] = {Reset.EARLIEST: ck.OFFSET_BEGINNING, Reset.LATEST: ck.OFFSET_END}


class Start(NamedTuple):
    """Where a partition begins; with a commit also its metadata, and if that is not empty the log's end."""

    offset: int
    metadata: bytes | None = None  # None without a commit
    log_end: int = 0


@dataclass(slots=True)
class _Sought:
    """What is known of a partition, and when to ask again."""

    number: int  # of the user's question
    asked_at: float | None = None
    takes_long: bool = False  # the member's own client was not told its commit
    is_looked_up: bool = False
    commit: Commit | None = None
    is_asked: bool = False
    alone: bool = False  # its leader is not asked along with those of others
    not_before: float = 0.0
    pause: float = _FIRST_PAUSE
    leader_within: float = _LEADERS_ANSWER_WITHIN


class _Asked(NamedTuple):
    question: Question[FoundCommits] | Question[FoundOffsets]
    sought: Mapping[Partition, _Sought]
    at: float


class StartQuestions:
    """The questions under way, for one thread.

    `config` is the member's own, whose credentials may change. `may_reset` says whether partitions may begin without a
    commit. `fail` gets what keeps a partition from beginning.
    """

    def __init__(
        self,
        client: ck.Consumer,
        config: Config,
        is_new: Callable[[str, int], bool],
        wake_fd: int,
        may_reset: Callable[[Collection[Partition]], bool],
        fail: Callable[[KafkaError, str], None],
    ) -> None:
        self._member = client
        self._beside: ck.Consumer | None = None
        self._config = config
        self._group = str(config["group.id"])
        self._isolation = str(config.get("isolation.level", "read_committed"))
        reset = RESETS.get(str(config.get("auto.offset.reset", "latest")).lower())
        self._reset = None if reset is None else _PLACES.get(reset)
        self._is_new = is_new
        self._wake_fd = wake_fd
        self._may_reset = may_reset
        self._fail = fail
        self._sought: dict[Partition, _Sought] = {}
        self._open: list[_Asked] = []
        self._told_slow_at = -_TELL_AGAIN_AFTER

    def turn(self, asked: Mapping[Partition, int], now: float) -> dict[Partition, Start]:
        """Ask what is due about these partitions, each with a number of its own; return the starts that are known.

        Raises `ClosedError` if the member's client was closed.
        """
        self._sought = {
            each: known if (known := self._sought.get(each)) and known.number == number else _Sought(number)
            for each, number in asked.items()
        }
        found: dict[Partition, Start] = {}
        for about in list(self._open):
            answer: FoundCommits | FoundOffsets | KafkaError | None
            try:
                answer = about.question.answer()
            except KafkaError as error:
                answer = error
            if answer is None:
                self._tell_if_slow(about, now, _SILENT)
                continue
            self._open.remove(about)
            self._tell_if_slow(about, now, _SLOW)
            self._take(about, answer, found, now)
        self._ask_for_commits(now, found)
        self._ask_for_ends(now)
        return found

    def next_turn(self) -> float | None:
        """Return when something is due without an answer, None if there is no such time."""
        due = [each.not_before for each in self._sought.values() if not each.is_asked]
        silent = [about.at + _SILENT for about in self._open]
        return min(due + silent, default=None)

    def forget(self) -> None:
        """Wait for no answer any longer, and do not use the member's client any more."""
        for about in self._open:
            about.question.forget()
        self._open.clear()
        self._sought.clear()

    def close(self) -> None:
        """End what was made for the questions."""
        self.forget()
        self._end_client_beside()

    # Questions

    def _due(self, now: float) -> dict[Partition, _Sought]:
        return {each: about for each, about in self._sought.items() if not about.is_asked and about.not_before <= now}

    def _ask_for_commits(self, now: float, found: dict[Partition, Start]) -> None:
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
                self._beside = make_client(ck.Consumer, {**settings_beside(self._config), **own})
            self._ask(ask_committed(self._beside, self._group, slow.keys(), self._wake_fd), slow, now)

    def _ask_for_ends(self, now: float) -> None:
        due = {each: about for each, about in self._due(now).items() if about.is_looked_up}
        missing = [each for each, about in due.items() if about.commit is None]
        if missing and not self._may_reset(missing):
            for each in missing:  # `may_reset` has told why
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

    def _place_of(self, partition: Partition, about: _Sought) -> int:
        if about.commit is not None or self._reset is None:
            return int(ck.OFFSET_END)
        return int(ck.OFFSET_BEGINNING) if self._is_new(*partition) else self._reset

    def _ask(
        self, question: Question[FoundCommits] | Question[FoundOffsets], sought: Mapping[Partition, _Sought], now: float
    ) -> None:
        for about in sought.values():
            about.is_asked = True
        self._open.append(_Asked(question, sought, now))

    # Answers

    def _take(
        self,
        about: _Asked,
        answer: Mapping[Partition, Commit | int | KafkaError | None] | KafkaError,
        found: dict[Partition, Start],
        now: float,
    ) -> None:
        if isinstance(answer, KafkaError) and _code(answer) == ck.KafkaError.NOT_COORDINATOR:
            self._end_client_beside()  # it goes on to ask the same broker: see docs/design/librdkafka.md
        for partition, sought in about.sought.items():
            sought.is_asked = False
            if self._sought.get(partition) is sought:  # not forgotten, or asked for again since
                told = answer if isinstance(answer, KafkaError) else answer.get(partition, _not_told(partition))
                self._told(partition, sought, told, found, now)

    def _told(
        self,
        partition: Partition,
        sought: _Sought,
        told: Commit | int | KafkaError | None,
        found: dict[Partition, Start],
        now: float,
    ) -> None:
        if isinstance(told, int) and told < 0:  # from a broker that does not know it yet
            told = _not_told(partition)
        if isinstance(told, KafkaError):
            self._failed(partition, sought, told, now)
        elif isinstance(told, int):
            found[partition] = Start(told) if sought.commit is None else Start(*sought.commit, told)
        elif told is not None and not told[1]:
            found[partition] = Start(*told)
        else:
            sought.is_looked_up, sought.commit, sought.pause = True, told, _FIRST_PAUSE
        if partition in found:
            del self._sought[partition]

    def _failed(self, partition: Partition, sought: _Sought, error: KafkaError, now: float) -> None:
        sought.not_before = now + sought.pause
        sought.pause = min(2 * sought.pause, _LONGEST_PAUSE)
        if sought.is_looked_up:
            sought.alone = True
            sought.leader_within = min(2 * sought.leader_within, _LEADERS_ANSWER_AT_LAST_WITHIN)
        self._fail(error, partition[0])

    def _end_client_beside(self) -> None:
        client, self._beside = self._beside, None
        if client is None:
            return
        for about in [each for each in self._open if each.question.client is client]:
            about.question.forget()
            self._open.remove(about)
            for sought in about.sought.values():
                sought.is_asked = False
        client.close()

    def _tell_if_slow(self, about: _Asked, now: float, bound: float) -> None:
        since = min((each.asked_at for each in about.sought.values() if each.asked_at is not None), default=now)
        is_about_commits = not any(each.is_looked_up for each in about.sought.values())
        if not is_about_commits or now - since < bound or now - self._told_slow_at < _TELL_AGAIN_AFTER:
            return
        self._told_slow_at = now
        log.warning(
            "The coordinator of the group %s is slow: it %s what is committed of %d partitions, which begin only then. "
            "It may be overloaded, or hold back its answers to this client because of a quota.",
            self._group,
            f"took {now - since:.1f} s to say" if bound == _SLOW else f"has not said for {now - since:.0f} s",
            len(about.sought),
        )


def _code(error: KafkaError) -> int | None:
    cause = cause_of(error)
    return None if cause is None else cause.code()


def _not_told(partition: Partition) -> KafkaError:
    topic, number = partition
    error = KafkaError(f"The offset at which partition {number} of {topic} begins is not known yet.")
    error.__cause__ = ck.KafkaException(ck.KafkaError(ck.KafkaError.LEADER_NOT_AVAILABLE))
    return error

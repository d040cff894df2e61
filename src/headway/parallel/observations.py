"""What the control thread of a measured consumer sees of Kafka: the ends of the logs, and whether Kafka answers."""

import logging
import time
from collections.abc import Mapping

from headway.errors import HeadwayError
from headway.execution.dispatch import Dispatch
from headway.kafka.binding.questions import FoundOffsets, Question
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.parallel.fetching import Fetching
from headway.parallel.record_ages import RecordAges
from headway.records.record_types import TopicPartition

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.5  # the time between two looks, in seconds
# How often the ends of the logs are asked for, in seconds. While buffers are full, nothing is fetched for minutes, so
# the end that the last fetch has returned could be old.
_ASK_EVERY = 5.0
_ANSWERED_WITHIN = 10.0


class Observations:
    """Collects what only the control thread can see, so that other threads can read it without a request to Kafka.

    The attributes are replaced and never changed, so that other threads can read them.
    """

    def __init__(self, dispatch: Dispatch, levels: LevelConsumers, fetching: Fetching) -> None:
        self._dispatch = dispatch
        self._levels = levels
        self._fetching = fetching
        self.ages = RecordAges()
        with dispatch.lock:
            fetching.ages = self.ages
        self.log_ends: Mapping[TopicPartition, int] = {}
        """The ends of the logs of assigned partitions, as far as they are known."""
        self.positions: Mapping[TopicPartition, int] = {}
        """The next offset to fetch from each assigned partition whose start is known."""
        self.reasons_to_wait: Mapping[TopicPartition, str] = {}
        """The partitions that wait for the user, for a callback or for a seek."""
        self.round_at: float | None = None
        """When the control thread last came by, in monotonic time; None before its first round."""
        self.unanswered_since: float | None = None
        """Since when Kafka has not answered a request, in monotonic time; None if it answers."""
        self._look_at = 0.0
        self._ask_at = 0.0
        self._asked: dict[LevelConsumer, tuple[float, Question[FoundOffsets]]] = {}

    def look(self, now: float) -> None:
        """Look at Kafka's side if it is time. The control thread calls this in each round; it never waits."""
        self.round_at = now
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY
        assigned = self._levels.assignment()
        self.positions = self._levels.positions()
        self.reasons_to_wait = self._fetching.reasons_to_wait()
        with self._dispatch.lock:
            lowest = {each.partition: each.committable for each in self._dispatch.engine.observe({}, {})}
            self.ages.forget(lowest, assigned)
        self.log_ends = {each: end for each, end in self.log_ends.items() if each in assigned}
        self._take_answers()
        is_new = not self.log_ends.keys() >= assigned and not self._asked
        if now >= self._ask_at or (is_new and now >= self._ask_at - _ASK_EVERY + 2 * _LOOK_EVERY):
            self._ask(now)

    def _ask(self, now: float) -> None:
        self._ask_at = now + _ASK_EVERY
        for member in self._levels:
            partitions = list(member.membership.begun())
            if partitions and member not in self._asked:
                try:
                    self._asked[member] = now, member.client.ask_ends(partitions, _ANSWERED_WITHIN)
                except HeadwayError as error:
                    log.debug("The ends of the logs could not be asked for: %s", error)

    def _take_answers(self) -> None:
        for member, (asked_at, question) in list(self._asked.items()):
            try:
                answer = question.answer()
            except HeadwayError as error:  # no answer in time, or the client was replaced
                log.debug("The ends of the logs are not known: %s", error)
                answer = {}
            if answer is None:
                continue
            del self._asked[member]
            ends = {member.client.addresses.of(*name): end for name, end in answer.items() if isinstance(end, int)}
            self.log_ends = {**self.log_ends, **{each: end for each, end in ends.items() if end >= 0}}
            if ends:
                self.unanswered_since = None
            elif self.unanswered_since is None:
                self.unanswered_since = asked_at

    @property
    def unanswered_for(self) -> float:
        """How many seconds Kafka has not answered the oldest request that is open, or 0 if none is open."""
        since = [asked_at for asked_at, _ in list(self._asked.values())]
        if self.unanswered_since is not None:
            since.append(self.unanswered_since)
        return max(0.0, time.monotonic() - min(since)) if since else 0.0

    def close(self) -> None:
        """Abandon the open requests, before the clients are closed."""
        for _, question in self._asked.values():
            question.forget()
        self._asked.clear()

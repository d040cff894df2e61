"""Keeps track of the delay topics that a relay reads, and detects whether topics were recreated."""

import logging
import time
from collections.abc import Collection

from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.relay_state import COMMANDS_KEY, MEMORY_KEY, delay_topic_key
from headway.delay.fit_records import FIT_KEY, fit_state_from
from headway.delay.topic_names import TopicNames
from headway.delay.topics import Layout, ladder_from, layout_seen_by, usable
from headway.kafka.binding.capi import Partition
from headway.kafka.reading.compacted import TopicReader
from headway.records.record_types import Message

log = logging.getLogger(__name__)

_READ_AGAIN_AFTER = 0.1  # the first pause, in seconds; doubled after each attempt, up to `_READ_AT_LEAST_EVERY`
_READ_AT_LEAST_EVERY = 15.0


class DelayTopicsInUse:
    """The delay topics that exist, and the ladder of the delay topics to which records are written.

    Until `begin` has found delay topics, `delay_topics` is empty.
    """

    def __init__(self, reader: TopicReader, names: TopicNames) -> None:
        self._reader = reader
        self._names = names
        self.ladder = Ladder.exponential()
        self.delay_topics: tuple[int, ...] = ()
        self.unread: frozenset[int] = frozenset()
        # True if another ladder was put into use, or a delay topic was created or is being retired.
        self.is_outdated = False
        self._other_ladder = self._other_unread = False
        self._read_at = time.monotonic()
        self._read_again_after = _READ_AGAIN_AFTER
        self._ids: dict[str, str] = {}

    def begin(self) -> bool:
        """Look for delay topics, unless some were found earlier. Returns whether there are any."""
        if not self.delay_topics and (layout := self._layout()):
            self._use(layout)
        return bool(self.delay_topics)

    def _layout(self) -> Layout | None:
        return layout_seen_by(self._reader, self._names.name)

    @property
    def state_keys(self) -> dict[str, str]:
        """For each topic that the relay reads, the key of its stored progress."""
        keys = {
            self._names.delay_topic(delay_topic): MEMORY_KEY if delay_topic == MEMORY else delay_topic_key(delay_topic)
            for delay_topic in self.delay_topics
        }
        return {**keys, self._names.commands: COMMANDS_KEY}

    @property
    def unread_topics(self) -> list[str]:
        """The delay topics that are no longer read and will soon be deleted."""
        return list(map(self._names.delay_topic, self.unread))

    def owned(self, assigned: Collection[Partition]) -> list[int]:
        """Return the assigned partition numbers.

        The group assigns only the partitions of the topic of commands. A relay also owns the partitions of the delay
        topics that have the same numbers.
        """
        return sorted(number for topic, number in assigned if topic == self._names.commands)

    @property
    def usable(self) -> Ladder:
        """The ladder, without delay topics that do not exist."""
        return usable(self.ladder, self.delay_topics)

    def note(self, message: Message) -> None:
        """Process a record of the ladder's topic. The record can put other delay topics into use, or retire some."""
        key, value = message.key(), message.value()
        if ladder := ladder_from(self._names, key, value):
            self._other_ladder = ladder != self.ladder
        elif key == FIT_KEY.encode():
            retiring = fit_state_from(self._names.ladder, value).retiring.difference(self.ladder.delays)
            self._other_unread = retiring.intersection(self.delay_topics) != set() or bool(
                self.unread.difference(retiring)
            )
        else:
            return
        self.is_outdated = self._other_ladder or self._other_unread
        self._read_again_after = _READ_AGAIN_AFTER

    def update(self) -> bool:
        """Switch to the delay topics that were put into use. Returns whether anything has changed.

        While delay topics that existed before are missing, nothing is changed, and a later call checks again.
        """
        if time.monotonic() - self._read_at < self._read_again_after:
            return False
        layout = self._layout()
        self._read_at = time.monotonic()
        if layout is None or self._lost(layout):
            self._read_again_after = min(2 * self._read_again_after, _READ_AT_LEAST_EVERY)
            return False
        self._read_again_after = _READ_AGAIN_AFTER
        self.is_outdated = self._other_ladder = self._other_unread = False
        if (layout.ladder, layout.delay_topics) == (self.ladder, self.delay_topics):
            return False
        self._use(layout)
        log.info("The delay topics of %s are now: %s.", self._names.name, self.usable)
        return True

    def _use(self, layout: Layout) -> None:
        self.ladder, self.delay_topics, self.unread = layout.ladder, layout.delay_topics, layout.unread

    def _lost(self, layout: Layout) -> list[int]:
        """Return the delay topics of the ladder that existed before and are missing now."""
        return sorted(set(layout.ladder.delays).intersection(self.delay_topics).difference(layout.delay_topics))

    def refresh(self) -> bool:
        """Use the delay topics that exist now. Returns False while delay topics that existed before are missing.

        Brokers get the metadata of a new topic one after another, so a missing topic might soon be listed.
        """
        layout = self._layout()
        lost = [] if layout is None else list(map(self._names.delay_topic, self._lost(layout)))
        if layout is None:
            lost = [self._names.commands, self._names.state, self._names.ladder]
        if layout is None or lost:
            log.warning(
                "Nothing is delivered, because these topics of the scheduler %s are missing: %s.",
                self._names.name,
                ", ".join(lost),
            )
            return False
        self._use(layout)
        return True

    def topic_ids(self) -> dict[str, str]:
        """Return the id that Kafka has given to each existing topic."""
        return self._reader.admin.topic_ids(list(self.state_keys))

    def were_recreated(self, ids: dict[str, str]) -> bool:
        """Remember the ids of the topics. Returns whether an id has changed, because the topic was recreated."""
        before, self._ids = self._ids, ids
        return any(ids.get(topic, id_) != id_ for topic, id_ in before.items())

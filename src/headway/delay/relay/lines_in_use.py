"""The delay lines of a relay: which topics it reads, and whether the brokers' topics are still the same."""

import logging
import time
from collections import Counter
from collections.abc import Collection
from enum import Enum

from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.relay_state import COMMANDS_KEY, MEMORY_KEY, line_key
from headway.delay.topics import TopicNames, ladder_from, layout_seen_by, usable
from headway.errors import ConfigError
from headway.kafka.binding.capi import Partition
from headway.kafka.reading.compacted import TopicReader
from headway.records import Message

log = logging.getLogger(__name__)

_LOOK_AGAIN_AFTER = 0.1  # seconds; twice as long each time,
_LOOK_AT_LEAST_EVERY = 15.0


class Changed(Enum):
    """The changes that a look at the lines has found."""

    NOTHING = "nothing"
    LADDER = "the lines to which records go"
    TOPICS = "the topics to read"


class LinesInUse:
    """The lines that exist, and the ladder of those to which records go. Raises `ConfigError` if there are none yet."""

    def __init__(self, reader: TopicReader, names: TopicNames) -> None:
        self._reader = reader
        self._names = names
        self.ladder, self.lines = self._layout()
        self.is_outdated = False  # another ladder was put in use, or a line has a topic by now
        self._looked_at = time.monotonic()
        self._look_again_after = _LOOK_AGAIN_AFTER
        self._ids: dict[str, str] = {}

    def _layout(self) -> tuple[Ladder, tuple[int, ...]]:
        layout = layout_seen_by(self._reader, self._names.name)
        if layout is None:
            raise ConfigError(
                f"The scheduler {self._names.name} has no topics. Create them with `headway schedule init`, or let a "
                "Scheduler do so."
            )
        return layout.ladder, layout.lines

    @property
    def topics(self) -> list[str]:
        """The topics to read: of the lines and of the commands."""
        return [*(self._names.line(line) for line in self.lines), self._names.commands]

    @property
    def state_keys(self) -> dict[str, str]:
        """The key of the stored progress of each of these topics."""
        keys = {self._names.line(line): MEMORY_KEY if line == MEMORY else line_key(line) for line in self.lines}
        return {**keys, self._names.commands: COMMANDS_KEY}

    def owned(self, assigned: Collection[Partition]) -> list[int]:
        """Return the numbers whose partitions are all assigned; a group may disagree for a moment about new topics."""
        topics = set(self.topics)
        counts = Counter(number for topic, number in assigned if topic in topics)
        return sorted(number for number, count in counts.items() if count == len(topics))

    @property
    def usable(self) -> Ladder:
        """The ladder of the lines that exist."""
        return usable(self.ladder, self.lines)

    @property
    def to_come(self) -> list[str]:
        """The topics of lines that may be used and do not exist, until a delay needs them."""
        return [self._names.line(line) for line in self.ladder.lines if line not in self.lines]

    def hear(self, message: Message) -> None:
        """Take in a record of the topic that says which lines are in use."""
        if ladder := ladder_from(self._names, message.key(), message.value()):
            self.is_outdated = ladder != self.ladder
            self._look_again_after = _LOOK_AGAIN_AFTER

    def update(self) -> Changed:
        """Use the lines that were put in use; look again later while topics are missing that were there."""
        if time.monotonic() - self._looked_at < self._look_again_after:
            return Changed.NOTHING
        ladder, lines = self._layout()
        self._looked_at = time.monotonic()
        if self._lost(ladder, lines):
            self._look_again_after = min(2 * self._look_again_after, _LOOK_AT_LEAST_EVERY)
            return Changed.NOTHING
        self._look_again_after = _LOOK_AGAIN_AFTER
        self.is_outdated = False
        if (ladder, lines) == (self.ladder, self.lines):
            return Changed.NOTHING
        changed = Changed.LADDER if lines == self.lines else Changed.TOPICS
        self.ladder, self.lines = ladder, lines
        log.info("The lines of %s are from now on: %s.", self._names.name, self.usable)
        return changed

    def _lost(self, ladder: Ladder, lines: Collection[int]) -> list[int]:
        """Return the lines of a ladder whose topics were there and are not now."""
        return sorted(set(ladder.lines).intersection(self.lines).difference(lines))

    def look_for_missing(self) -> Changed:
        """Look for the lines when no number has all its partitions: a topic was deleted, or is still to come."""
        ladder, lines = self._layout()
        if lost := self._lost(ladder, lines):
            names = ", ".join(map(self._names.line, lost))
            log.warning("Nothing is delivered: the lines of %s lack the topics %s.", self._names.name, names)
        elif lines != self.lines:
            self.ladder, self.lines = ladder, lines
            return Changed.TOPICS
        return Changed.NOTHING

    def topic_ids(self) -> dict[str, str]:
        """Return Kafka's id of each topic that exists."""
        return self._reader.admin.topic_ids(list(self.state_keys))

    def are_remade(self, ids: dict[str, str]) -> bool:
        """Return whether topics have other ids than when they were remembered: they were deleted and made anew."""
        before = self._ids
        return any(ids.get(topic, id_) != id_ for topic, id_ in before.items())

    def remember(self, ids: dict[str, str]) -> None:
        """Remember the topics by their ids."""
        self._ids = ids

    def look_at_remade(self) -> Changed | None:
        """Look at the lines after topics were made anew; None while some are missing.

        Brokers learn of new topics one after the other.
        """
        layout = layout_seen_by(self._reader, self._names.name)
        if layout is None or self._lost(layout.ladder, layout.lines):
            return None
        if (layout.ladder, layout.lines) == (self.ladder, self.lines):
            return Changed.NOTHING
        self.ladder, self.lines = layout.ladder, layout.lines
        return Changed.TOPICS

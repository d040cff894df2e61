"""The lines of a scheduler: which one a record goes to, and the topics of lines that no delay has needed before."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headway.core.delay.ladder import FIRST_DELAYS, MEMORY, Ladder
from headway.delay.topics import Layout, TopicNames, add_lines, create_topics, read_layout
from headway.errors import HeadwayError
from headway.kafka.producer.delivery import Destination

log = logging.getLogger(__name__)

LAYOUT_LASTS = 30.0  # seconds; then other lines may be in use, or all topics deleted and created again


class Lines(NamedTuple):
    """The layout of a scheduler's topics, and the destination for each line.

    Delays from `reach` milliseconds on need a line that has no topic yet.
    """

    layout: Layout
    ladder: Ladder
    destinations: Mapping[int, Destination]
    reach: float


class LineChoice:
    """The lines as a scheduler knows them now. On the first use it creates the topics of short delays.

    Args:
        connection: The settings to reach Kafka with.
        names: The scheduler's.

    Raises `KafkaError` if topics are missing and cannot be created.
    """

    def __init__(self, connection: Mapping[str, Any], names: TopicNames) -> None:
        self._connection = connection
        self._names = names
        self.layout = self._look()
        self._destination: Callable[[str], Destination]
        self._lines: Lines
        self._adding = threading.Lock()
        self._look_again_at = time.monotonic() + LAYOUT_LASTS

    def connect(self, destination: Callable[[str], Destination]) -> None:
        """Begin, with the function that makes the destination of a topic."""
        self._destination = destination
        self._lines = self._lines_of(self.layout)

    def of_now(self) -> Lines:
        """Return the lines; look for others now and then, in a thread, so that nobody waits."""
        if time.monotonic() > self._look_again_at:
            self._look_again_at = time.monotonic() + LAYOUT_LASTS
            threading.Thread(target=self._look_again, name="headway-layout", daemon=True).start()
        return self._lines

    def covers(self, delay: float) -> bool:
        """Return whether all lines have topics that so many milliseconds need: `reaching` does not wait."""
        return delay < self._lines.reach

    def reaching(self, delay: int) -> Lines:
        """Return the lines, with those that a delay needs: create their topics, and wait until brokers know them.

        Raises `AuthorizationError` for topics that may not be created, and `KafkaError` if no broker answers.
        """
        with self._adding:
            if not self.covers(delay):  # else another thread has added them meanwhile
                self._lines = self._lines_of(add_lines(self._connection, self._names.name, delay))
                log.info("The lines of %s are from now on: %s.", self._names.name, self._lines.ladder)
            return self._lines

    def _look(self) -> Layout:
        name = self._names.name
        return read_layout(self._connection, name, "Write") or create_topics(self._connection, name, delay=FIRST_DELAYS)

    def _look_again(self) -> None:
        try:
            self._lines = self._lines_of(self._look())
        except HeadwayError as error:
            log.warning("The scheduler %s goes on with the lines that it knows: %s", self._names.name, error)

    def _lines_of(self, layout: Layout) -> Lines:
        ladder, destination = layout.usable, self._destination
        topics = {line: self._names.line(line) for line in (MEMORY, *ladder.lines)}
        return Lines(layout, ladder, {line: destination(topic) for line, topic in topics.items()}, layout.reach)

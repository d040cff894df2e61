"""Marks: moments that operators want to see beside the curves of queues, such as the deployment of a version.

They are stored in the compacted topic `headway-marks`, so all dashboards of a cluster show them.
"""

import getpass
import secrets
import time
from typing import Annotated

import msgspec

from headway.core.untrusted import Time, read_json
from headway.errors import ConfigError, UnreadableError
from headway.kafka.keyed.keyed_topic import KeyedTopic
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config

MARKS_TOPIC = "headway-marks"
LONGEST_MARK = 200
"""The highest number of characters of a mark's text."""
MOST_MARKS = 500
"""The number of marks that are kept. A new mark removes the oldest ones beyond that."""

_MarkText = Annotated[str, msgspec.Meta(max_length=LONGEST_MARK)]


class OperatorMark(msgspec.Struct, frozen=True):
    """A moment with a text. `at` is in milliseconds since the epoch, and `by` is who has set the mark."""

    at: Time
    text: _MarkText
    by: _MarkText = ""


_decoder = msgspec.json.Decoder(OperatorMark)
_encode = msgspec.json.Encoder().encode


class OperatorMarks(Closable):
    """Reads and sets the marks of a cluster. Not thread-safe.

    Args:
        config: The settings of a client. Headway's own keys are ignored.
        topic: The topic in which the marks are stored. It is created with the first mark.
    """

    def __init__(self, config: Config, topic: str = MARKS_TOPIC) -> None:
        self._topic = KeyedTopic(config, topic)

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()

    def all(self) -> list[OperatorMark]:
        """Return the marks, the oldest first. Records that cannot be read are left out.

        Raises `KafkaError` if the topic cannot be read.
        """
        return [mark for _, mark in self._by_time()]

    def set(self, text: str, by: str | None = None, at: float | None = None) -> OperatorMark:
        """Store a mark, and remove the oldest ones if there are too many.

        Args:
            text: What the mark says, such as "v1.2.3": 1 to 200 characters.
            by: Who sets it. By default the user of this process.
            at: When, in seconds since the epoch. By default now.

        Raises:
            ConfigError: The text is empty or too long.
            KafkaError: Kafka has not stored the mark.
        """
        text = text.strip()
        if not 0 < len(text) <= LONGEST_MARK:
            raise ConfigError(f"The text of a mark has {len(text):,} characters, but needs 1 to {LONGEST_MARK}.")
        moment = round((time.time() if at is None else at) * 1000)
        mark = OperatorMark(moment, text, (this_user() if by is None else by)[:LONGEST_MARK])
        earlier = self._by_time()
        self._topic.put(f"{moment}-{secrets.token_hex(4)}", _encode(mark))
        for key, _ in earlier[: max(0, len(earlier) + 1 - MOST_MARKS)]:
            self._topic.remove(key)
        return mark

    def _by_time(self) -> list[tuple[str, OperatorMark]]:
        found = []
        for key, value in self._topic.read().values.items():
            try:
                found.append((key, read_json(value, _decoder, f"The mark {key[:50]}")))
            except UnreadableError:
                continue  # written by another program, or a later version
        return sorted(found, key=lambda each: each[1].at)


def this_user() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container can have a user id without a name
        return ""

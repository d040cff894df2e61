"""The targets of seeks, and the requests for the offsets of these targets."""

from typing import Final, Literal, NamedTuple

from headway.errors import KafkaError
from headway.kafka.binding.questions import OFFSET_BEGINNING, OFFSET_END, FoundOffsets, Question
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.records.record_types import TopicPartition

_BEGINNING, _END, _TIME = "the beginning", "the end", "the first record since that time"
_NEEDED: Final = {
    "offset": (_BEGINNING, _END),
    "beginning": (_BEGINNING,),
    "end": (_END,),
    "time": (_TIME, _END),
}


class SeekTarget(NamedTuple):
    """The target of a seek: an offset, the beginning or end of the log, or the first record since a timestamp.

    The timestamp is in milliseconds since the epoch.
    """

    what: Literal["offset", "beginning", "end", "time"]
    value: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.value}" if self.what in ("offset", "time") else f"its {self.what}"

    def ask(self, level: LevelConsumer, partition: TopicPartition, within: float) -> "SeekQuestion":
        """Request the offset of this target from the partition's leader. The answer wakes the control thread."""
        return SeekQuestion(self, level, partition, within)


class SeekQuestion:
    """The pending requests to a partition's leader for the offset of a target."""

    def __init__(self, target: SeekTarget, level: LevelConsumer, partition: TopicPartition, within: float) -> None:
        numbers = {_BEGINNING: OFFSET_BEGINNING, _END: OFFSET_END, _TIME: target.value}
        self._target = target
        self._partition = partition
        self._known: dict[str, int] = {}
        self._asked: dict[str, Question[FoundOffsets]] = {
            what: level.client.ask_offset(partition, numbers[what], within) for what in _NEEDED[target.what]
        }

    def answer(self) -> int | None:
        """Return the offset of the target, or None if Kafka has not answered all requests yet.

        If the target is a time after the last record, the result is the end of the log. Raises `KafkaError` if Kafka
        refuses a request.
        """
        for what, question in list(self._asked.items()):
            answer = question.answer()
            if answer is None:
                continue
            del self._asked[what]
            [offset] = answer.values()
            if isinstance(offset, KafkaError):
                raise offset
            if offset < 0 and what != _TIME:  # a leader that was elected a moment ago might not have the offset yet
                raise KafkaError(f"The leader of {self._partition} does not know the offset of {what} yet.")
            self._known[what] = offset
        return None if self._asked else self._offset()

    def _offset(self) -> int:
        known = self._known
        if self._target.what == "offset":
            return max(known[_BEGINNING], min(self._target.value, known[_END]))
        if self._target.what == "time":
            return known[_END] if known[_TIME] < 0 else known[_TIME]
        return next(iter(known.values()))

    def forget(self) -> None:
        """Stop waiting for the answers."""
        for question in self._asked.values():
            question.forget()

"""The offsets at which newly assigned partitions begin: read in a thread of ours, never by librdkafka.

If librdkafka 2.16 reads committed offsets itself and an OffsetFetch fails at a bad moment, it never reads that
partition. It then also swallows later revocations. Headway therefore gives it every partition with its start offset.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import confluent_kafka as ck

from headway.errors import ClosedError, ConfigError, HeadwayError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.retrying import passes
from headway.kafka.consumer.other_commits import OtherCommits

_ANSWER_TIMEOUT = 5.0
_LEADERS_TIMEOUT = 1.0  # of all partitions together: one without a leader holds up all others asked for with it
_LEADER_TIMEOUT = 0.2  # of one alone
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_SILENT_FOR = 5.0  # a broker that restarts is not worth a report
_TELL_AGAIN_AFTER = 10.0

# The meaning of auto.offset.reset, as the time that a ListOffsets request asks for.
_RESET_TIMES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("smallest", "earliest", "beginning"), ck.OFFSET_BEGINNING),
    **dict.fromkeys(("largest", "latest", "end"), ck.OFFSET_END),
}


OnFailure = Callable[[str, str | None, ck.KafkaError | None], None]
"""The callback for a failure: (reason, topic, librdkafka's error), called in the thread of `StartOffsets`."""


class StartOffsets:
    """The start of each partition asked for: its committed offset, or without one the offset that `reset` says.

    Its thread runs only while there are questions. It asks until it has an answer or the partition is forgotten, and a
    partition without an answer holds up no other. `on_answer` and `on_failure` are called in that thread. `on_failure`
    is called at once for a refusal, after some seconds for an error that may pass, and at most every ten seconds.
    `on_refusal` gets the error of partitions that never begin: `others` have commits that would be passed over, or the
    user wants an error for a partition without a commit.
    """

    def __init__(
        self,
        consumer: ck.Consumer,
        reset: str,
        on_answer: Callable[[], None],
        on_failure: OnFailure,
        on_refusal: Callable[[HeadwayError], None],
        others: OtherCommits | None = None,
    ) -> None:
        self._consumer = consumer
        self._on_refusal = on_refusal
        self._others = others
        self._reset = reset.lower()
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._asked: dict[Partition, int] = {}  # each with the number of its question
        self._questions = 0
        self._found: dict[Partition, int] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()
        self._closed = False
        self._failing_since: float | None = None
        self._told_at = 0.0

    def ask(self, partitions: Collection[Partition]) -> None:
        """Look up the starts of partitions; an answer to an earlier question about them does not count any more."""
        with self._lock:
            if self._closed or not partitions:
                return
            self._questions += 1
            self._asked |= dict.fromkeys(partitions, self._questions)
            for partition in partitions:
                self._found.pop(partition, None)
            self._changed.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._answer, name="headway-starts", daemon=True)
                self._thread.start()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Ask no longer about these partitions."""
        with self._lock:
            for partition in partitions:
                self._asked.pop(partition, None)
                self._found.pop(partition, None)

    def take(self) -> dict[Partition, int]:
        """Return the offsets that were found since the last call."""
        if not self._found:
            return {}
        with self._lock:
            found, self._found = self._found, {}
            return found

    def close(self) -> threading.Thread | None:
        """Ask nothing more; return the thread, which may wait for an answer and use the consumer until then."""
        with self._lock:
            self._closed = True
            self._asked.clear()
            self._changed.set()
            return self._thread

    # In the thread

    def _answer(self) -> None:
        pause = _FIRST_PAUSE
        while asked := self._questions_left():
            if self._look_up(asked):
                pause = _FIRST_PAUSE
            else:
                self._changed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _questions_left(self) -> dict[Partition, int]:
        with self._lock:
            self._changed.clear()
            if not self._asked:
                self._thread = None
            return dict(self._asked)

    def _look_up(self, asked: Mapping[Partition, int]) -> bool:
        """Answer the questions that can be answered now; return whether these were all."""
        try:
            committed = capi.committed_each(self._consumer, list(asked), _ANSWER_TIMEOUT)
        except ClosedError:
            self.close()
            return False
        refused = [answer for answer in committed.values() if isinstance(answer, KafkaError)]
        found = {partition: answer[0] for partition, answer in committed.items() if isinstance(answer, tuple)}
        missing = [partition for partition, answer in committed.items() if answer is None]
        if missing and self._may_reset(missing):
            found |= self._reset_offsets(missing)
        with self._lock:
            answered = {each: offset for each, offset in found.items() if self._asked.get(each) == asked[each]}
            for partition in answered:
                del self._asked[partition]
            self._found |= answered
        if answered:
            self._on_answer()
        if len(found) == len(asked):
            self._failing_since = None
        elif refused:
            self._fail(refused[0], next(iter(asked))[0])
        return len(found) == len(asked)

    def _may_reset(self, missing: Collection[Partition]) -> bool:
        """Return whether these partitions may begin without a commit; a refusal is told."""
        if self._others is None:
            return True
        try:
            self._others.check(missing)
        except ConfigError as refusal:
            if self._is_due():
                self._on_refusal(refusal)
            return False
        except KafkaError as error:
            self._fail(error, next(iter(missing))[0])
            return False
        return True

    def _reset_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        if self._reset not in _RESET_TIMES:
            topic, number = next(iter(partitions))
            if self._is_due():
                self._on_refusal(
                    KafkaError(
                        f"Partition {number} of {topic} has no committed offset in the group, and with "
                        f"auto.offset.reset={self._reset} it does not begin without one. Commit an offset, for example "
                        f"by `headway offsets reset`, or set auto.offset.reset to earliest or latest."
                    )
                )
            return {}
        try:
            return self._list_offsets(partitions, _LEADERS_TIMEOUT)
        except ck.KafkaException:
            found: dict[Partition, int] = {}
            for partition in partitions:
                try:
                    found |= self._list_offsets([partition], _LEADER_TIMEOUT)
                except ck.KafkaException as error:
                    topic, number = partition
                    self._fail(_explained(f"The offset at which partition {number} of {topic} begins", error), topic)
            return found

    def _list_offsets(self, partitions: Collection[Partition], timeout: float) -> dict[Partition, int]:
        when = _RESET_TIMES[self._reset]
        asked = [ck.TopicPartition(topic, number, when) for topic, number in partitions]
        answers = self._consumer.offsets_for_times(asked, timeout)
        if refused := next((each for each in answers if each.error), None):
            error = _explained("The offset at which a partition begins", ck.KafkaException(refused.error))
            self._fail(error, refused.topic)
        # An offset below 0 without an error comes from a broker that does not know it yet.
        return {(each.topic, each.partition): each.offset for each in answers if not each.error and each.offset >= 0}

    def _fail(self, error: KafkaError, topic: str) -> None:
        cause = error.__cause__
        code = cause.args[0] if isinstance(cause, ck.KafkaException) else None
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        may_pass = code is not None and passes(code)
        if not may_pass or now - self._failing_since > _SILENT_FOR:
            self._tell(str(error), topic, code)

    def _tell(self, reason: str, topic: str | None = None, error: ck.KafkaError | None = None) -> None:
        if self._is_due():
            self._on_failure(reason, topic, error)

    def _is_due(self) -> bool:
        now = time.monotonic()
        is_due = not self._told_at or now - self._told_at > _TELL_AGAIN_AFTER
        if is_due:
            self._told_at = now
        return is_due


def _explained(what: str, error: ck.KafkaException) -> KafkaError:
    explained = KafkaError(f"{what} is not known: {error.args[0].str().rstrip('.')}.")
    explained.__cause__ = error
    return explained

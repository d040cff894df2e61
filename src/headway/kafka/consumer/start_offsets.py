"""The offsets at which newly assigned partitions begin: read in a thread of ours, never by librdkafka.

If librdkafka 2.16 reads committed offsets itself and an OffsetFetch fails at a bad moment, it never reads that
partition. It then also swallows later revocations. Headway therefore gives it every partition with its start offset.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping

import confluent_kafka as ck

from headway.core.offsets.lost_place import RESETS, Reset
from headway.errors import ClosedError, ConfigError, HeadwayError, KafkaError, OffsetError
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.error_causes import cause_of
from headway.kafka.binding.retrying import passes
from headway.kafka.consumer.other_commits import OtherCommits
from headway.kafka.consumer.start_questions import Start, StartQuestions
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config

_SILENT_FOR = 5.0  # a broker that restarts is not worth a report
_TELL_AGAIN_AFTER = 10.0

OnFailure = Callable[[str, str | None, ck.KafkaError | None], None]
"""The callback for a failure: (reason, topic, librdkafka's error), called in the thread of `StartOffsets`."""


class StartOffsets:
    """The start of each partition asked for: its committed offset, or without one the offset that `reset` says.

    A partition that `is_new`, as it was added to a topic that the member reads, begins at its first record: with
    "latest" what is sent to it before the group has met would be passed over.

    Its thread runs only while there are questions. It asks until it has an answer or the partition is forgotten, and a
    partition without an answer holds up no other. `on_answer` and `on_failure` are called in that thread. `on_failure`
    is called at once for a refusal, after some seconds for an error that may pass, and at most every ten seconds.
    `on_refusal` gets the error of partitions that never begin: `others` have commits that would be passed over, or the
    user wants an error for a partition without a commit.
    """

    def __init__(
        self,
        consumer: ck.Consumer,
        config: Config,
        is_new: Callable[[str, int], bool],
        on_answer: Callable[[], None],
        on_failure: OnFailure,
        on_refusal: Callable[[HeadwayError], None],
        others: OtherCommits | None = None,
    ) -> None:
        self._consumer = consumer
        self._on_refusal = on_refusal
        self._others = others
        self._config = config
        self._is_new = is_new
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._asked: dict[Partition, int] = {}  # each with the number of its question
        self._questions = 0
        self._found: dict[Partition, Start] = {}
        self._thread: threading.Thread | None = None
        self._wake: Wakeup | None = None  # of the thread
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
            if self._wake is None:
                self._wake = Wakeup()
                args = (self._wake,)
                self._thread = threading.Thread(target=self._answer, args=args, name="headway-starts", daemon=True)
                self._thread.start()
            self._wake.set()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Ask no longer about these partitions."""
        with self._lock:
            for partition in partitions:
                self._asked.pop(partition, None)
                self._found.pop(partition, None)
            if self._wake and not self._asked:
                self._wake.set()

    def take(self) -> dict[Partition, Start]:
        """Return the starts that were found since the last call."""
        if not self._found:
            return {}
        with self._lock:
            found, self._found = self._found, {}
            return found

    def close(self) -> threading.Thread | None:
        """Ask nothing more; return the thread, which may use the consumer until it ends."""
        with self._lock:
            self._closed = True
            self._asked.clear()
            if self._wake:
                self._wake.set()
            return self._thread

    # In the thread

    def _answer(self, wake: Wakeup) -> None:
        questions = StartQuestions(self._consumer, self._config, self._is_new, wake.fd, self._may_reset, self._fail)
        try:
            while asked := self._questions_left(questions):
                found = questions.turn(asked, time.monotonic())
                self._note(asked, found)
                if not found:
                    due = questions.next_turn()
                    wake.wait(None if due is None else max(0.0, due - time.monotonic()))
        except ClosedError:
            self.close()
            self._questions_left(questions)
        finally:
            questions.close()
            wake.close()

    def _questions_left(self, questions: StartQuestions) -> dict[Partition, int]:
        with self._lock:
            if not self._asked:
                questions.forget()  # nobody waits for the end of this thread from now on
                self._wake = self._thread = None
            return dict(self._asked)

    def _note(self, asked: Mapping[Partition, int], found: Mapping[Partition, Start]) -> None:
        with self._lock:
            answered = {each: start for each, start in found.items() if self._asked.get(each) == asked[each]}
            for partition in answered:
                del self._asked[partition]
            self._found |= answered
            if not self._asked:
                self._failing_since = None
        if answered:
            self._on_answer()

    def _may_reset(self, missing: Collection[Partition]) -> bool:
        """Return whether these partitions may begin without a commit; a refusal is told."""
        reset = str(self._config.get("auto.offset.reset", "latest"))
        if RESETS.get(reset.lower(), Reset.ERROR) is Reset.ERROR:
            topic, number = next(iter(missing))
            if self._is_due():
                self._on_refusal(
                    OffsetError(
                        f"Partition {number} of {topic} has no committed offset in the group, and with "
                        f"auto.offset.reset={reset} it does not begin without one. Commit an offset, for example by "
                        "`headway offsets reset`, or set auto.offset.reset to earliest or latest."
                    )
                )
            return False
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

    def _fail(self, error: KafkaError, topic: str) -> None:
        code = cause_of(error)
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
